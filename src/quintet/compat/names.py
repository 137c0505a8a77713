"""Modules of the original packages that have no counterpart: their names are refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def refuse_names(module: str, instead: str) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module whose names cannot be imported."""

    def refuse(name: str) -> NoReturn:
        if name.startswith("__"):  # what the import system asks for
            raise AttributeError(name)
        raise ImportError(f"cannot import {name} from {module}: {instead} (see docs/migration.md)")

    return refuse
