"""Usages: small pieces of scripts for the original packages, executed with quintet.compat.

A usage is a function of `tests/compat/usages/<module>.py` with the decorator `usage`. It runs as a user's script would,
with only the import changed; its assertions are what the script relies on. It may take a parameter `folder`: an empty
folder, which is also the working directory.

    @usage("MaskGit", "forward returns the loss")
    def maskgit_forward() -> None: ...

    @usage("MaskGit", "no_mask_token_prob is not supported", refused="no_mask_token_prob")
    def maskgit_no_mask() -> None: ...

With `refused`, the function must end with an error that contains this text. `record.py` executes the usages for
the page docs/migration-tables.md. A test executes every usage and compares the outcome with the record.
"""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quintet.compat import CompatibilityNotice
from quintet.compat.views import NoAttributeError
from quintet.errors import QuintetError

FOLDER = Path(__file__).parent / "usages"


@dataclass(frozen=True)
class Usage:
    """One use of a public name of an original package."""

    module: str
    """The module in `usages/`: the package, or the package and `_trainers`."""
    name: str
    """The public name of the package that it shows."""
    title: str
    """What the usage does, for the table."""
    function: Callable[..., Any]
    refused: str
    """A part of the message with which it is refused; empty if it works."""

    @property
    def id(self) -> str:
        return f"{self.module}: {self.name}: {self.title}"

    def execute(self, folder: Path) -> str:
        """Run the usage in an empty folder; the message with which quintet refused it, or an empty text."""
        arguments = [folder] if inspect.signature(self.function).parameters else []
        torch.manual_seed(0)
        with _working_directory(folder), warnings.catch_warnings():
            warnings.simplefilter("ignore", CompatibilityNotice)
            try:
                self.function(*arguments)
            except (QuintetError, NoAttributeError) as error:
                message = str(error).replace(str(folder), "FOLDER")
                if not self.refused or self.refused not in message:
                    raise
                return message
        assert not self.refused, f"worked, but was expected to be refused with: {self.refused}"
        return ""


_registered: dict[str, list[Usage]] = {}


def usage(name: str, title: str, *, refused: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a usage of the public name `name`; `refused` is a part of the expected message of refusal."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        module = function.__module__.rpartition(".")[2]
        known = _registered.setdefault(module, [])
        assert (name, title) not in [(each.name, each.title) for each in known], (
            f"two usages are called {name}: {title}"
        )
        known.append(Usage(module, name, title, function, refused))
        return function

    return register


def usages_of(module: str) -> list[Usage]:
    """The usages of `usages/<module>.py`, in the order of the file."""
    importlib.import_module(f"compat.usages.{module}")
    return _registered[module]


def all_usages() -> list[Usage]:
    return [each for module in modules() for each in usages_of(module)]


def modules() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "__init__")


@contextmanager
def _working_directory(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
