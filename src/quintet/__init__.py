"""quintet: train and sample discrete-token generative models of images, video, audio and meshes on your own files.

The classes of every family can be imported from here; nothing is loaded before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name[0].isupper():
        for entry in import_module("quintet.registry").RECIPES.values():
            if name in entry.public_names():
                return getattr(import_module(entry.public_names()[name]), name)
    if name == "runs":  # as errors and docs name it
        return import_module("quintet.runs")
    raise AttributeError(f"module 'quintet' has no attribute '{name}'")


def __dir__() -> list[str]:
    entries = import_module("quintet.registry").RECIPES.values()
    return sorted([*globals(), *(name for entry in entries for name in entry.public_names())])
