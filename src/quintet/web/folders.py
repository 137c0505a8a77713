"""Owns which runs lie below the given folders, and that nothing outside of these is ever read.

Every path of a run that is read is made by `Place.path`. A run is known by its id, which only a scan of the folders
can make; a link that leads out of them is as good as missing.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from quintet.errors import UsageError

DEEPEST = 4
"""How many folders below a given one a run may lie."""
MOST_ENTRIES = 5_000
"""Of a folder that is no run; a data set of a million files must not keep the scan busy."""
PASSED_OVER = frozenset({"checkpoints", "samples", "tensorboard", "wandb", "node_modules", "__pycache__"})


class Missing(Exception):
    """A file or run that is not there, or not there for this page; the message says which."""


def parsed(text: str | bytes) -> Any:
    """What JSON says; none where it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class Place:
    """A run's folder, with everything in it read through one door."""

    def __init__(self, root: str, folder: str) -> None:
        self.root = root
        self.folder = folder

    def path(self, *parts: str) -> str:
        """The real path of a regular file or folder of the run; `Missing` if it leads out of the given folder."""
        given = os.path.join(self.folder, *parts)
        real = os.path.realpath(given)
        if real != self.root and not real.startswith(self.root.rstrip(os.sep) + os.sep):
            raise Missing(f"{parts[-1] if parts else self.folder} is not in the folder")
        return real

    def open(self, *parts: str) -> IO[bytes]:
        try:
            # Not to wait for a pipe that somebody put in the place of a file.
            descriptor = os.open(self.path(*parts), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            raise Missing(f"{parts[-1]} is missing") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Missing(f"{parts[-1]} is no file")
        return os.fdopen(descriptor, "rb")

    def read(self, *parts: str, most: int = 2**22) -> bytes:
        """A small file; of a larger one than `most` bytes nothing is believed."""
        with self.open(*parts) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise Missing(f"{parts[-1]} is too large to show")
        return content

    def text(self, *parts: str, most: int = 2**22) -> str:
        """A small file of text; nothing where it cannot be read."""
        try:
            return self.read(*parts, most=most).decode("utf-8", errors="replace")
        except (OSError, Missing):
            return ""

    def json(self, *parts: str, most: int = 2**22) -> dict[str, Any]:
        """A file of ours; anything else is as good as empty."""
        try:
            found = parsed(self.read(*parts, most=most))
        except (OSError, Missing):
            return {}
        return found if isinstance(found, dict) else {}

    def tail(self, *parts: str, most: int) -> bytes:
        with self.open(*parts) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read(most)

    def stamp(self, *parts: str) -> tuple[int, int, int]:
        """What changes when a file or folder does; zeros if it is not there."""
        try:
            found = os.stat(self.path(*parts))
        except (OSError, ValueError, Missing):
            return (0, 0, 0)
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def names(self, *parts: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(*parts)))
        except (OSError, ValueError, Missing):
            return []

    def exists(self) -> bool:
        return self.stamp("config.yaml") != (0, 0, 0)


class Folders:
    """The given folders. A run's id is its path below them, with their own name in front where there are several."""

    def __init__(self, given: Sequence[Path]) -> None:
        for folder in given:
            if not folder.is_dir():
                what = "is a file" if folder.exists() else "does not exist"
                raise UsageError(f"{folder} {what}; give a run, or a folder that runs lie in")
        self.roots = {name: os.path.realpath(folder) for name, folder in _named(given).items()}
        self._inside: dict[str, tuple[int, list[str]]] = {}

    def scan(self) -> dict[str, Place]:
        found: dict[str, Place] = {}
        for name, root in self.roots.items():
            for folder in self._runs(root, root, DEEPEST):
                below = os.path.relpath(folder, root)
                parts = [name, below] if len(self.roots) > 1 else [below]
                label = "/".join(part for part in parts if part != ".") or os.path.basename(root)
                found[_sayable(label)] = Place(root, folder)
        return found

    def _runs(self, root: str, folder: str, depth: int) -> Iterator[str]:
        if os.path.isfile(os.path.join(folder, "config.yaml")):
            yield folder
            return
        if depth > 0:
            for inside in self._folders(root, folder):
                yield from self._runs(root, inside, depth - 1)

    def _folders(self, root: str, folder: str) -> list[str]:
        """The folders in a folder, listed anew when it has changed."""
        try:
            changed = os.stat(folder).st_mtime_ns
        except OSError:
            return []
        known = self._inside.get(folder)
        if known is None or known[0] != changed:
            self._inside[folder] = known = (changed, list(_list_folders(root, folder)))
        return known[1]


def _sayable(label: str) -> str:
    """An id goes through JSON and addresses, and comes back: what is no text in a folder's name is written as text."""
    return os.fsencode(label).decode("utf-8", errors="backslashreplace")


def _list_folders(root: str, folder: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= MOST_ENTRIES:
                return
            if entry.name in PASSED_OVER or entry.name.startswith(".") or not entry.is_dir():
                continue
            real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            if real.startswith(root.rstrip(os.sep) + os.sep):
                yield entry.path


def _named(given: Sequence[Path]) -> dict[str, Path]:
    """The folders by their names; two of one name get numbers."""
    named: dict[str, Path] = {}
    for folder in given:
        name = label = folder.resolve().name or "runs"
        number = 1
        while label in named:
            number += 1
            label = f"{name}-{number}"
        named[label] = folder
    return named
