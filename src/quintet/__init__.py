"""quintet: train and sample discrete-token generative models of images, video, audio and meshes on your own files.

The classes of every family can be imported from here; nothing is loaded before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    from quintet import compat, recipes

    for entry in recipes.RECIPES.values():
        if name in entry.public_names():
            return getattr(import_module(entry.public_names()[name]), name)
    if name in compat.TRAINERS:
        compat.require_landed(name)
    raise AttributeError(f"module 'quintet' has no attribute '{name}'")


def __dir__() -> list[str]:
    from quintet import recipes

    return sorted([*globals(), *(name for entry in recipes.RECIPES.values() for name in entry.public_names())])
