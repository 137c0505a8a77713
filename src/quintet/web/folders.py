"""Finds the runs in the served folders, and makes sure that nothing outside of these folders is ever read.

Every path that is read comes from `RunDir.path`. A run is identified by its id, which only a scan of the folders
creates. A link that leads out of the folders counts as missing.
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

MAX_DEPTH = 4
"""Maximum depth of a run below a served folder."""
MAX_ENTRIES = 5_000
"""Entries scanned in a folder that is not a run; a dataset of a million files must not slow down the scan."""
SKIPPED_NAMES = frozenset({"checkpoints", "samples", "tensorboard", "wandb", "node_modules", "__pycache__"})


class Missing(Exception):
    """A file or run that does not exist or may not be served; the message names it."""


def parsed(text: str | bytes) -> Any:
    """The parsed JSON; None if the text is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class RunDir:
    """The folder of a run; all reading of its files goes through this class."""

    def __init__(self, root: str, folder: str) -> None:
        self.root = root
        self.folder = folder

    def path(self, *parts: str) -> str:
        """Real path of a file or folder of the run; raises `Missing` if it leads out of the served folder."""
        real = os.path.realpath(os.path.join(self.folder, *parts))
        if real != self.root and not real.startswith(self.root.rstrip(os.sep) + os.sep):
            raise Missing(f"{parts[-1] if parts else self.folder} is not in the served folder")
        return real

    def open(self, *parts: str) -> IO[bytes]:
        try:
            # O_NONBLOCK: do not wait for a named pipe with the name of a file.
            descriptor = os.open(self.path(*parts), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            raise Missing(f"{parts[-1]} is missing") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Missing(f"{parts[-1]} is not a regular file")
        return os.fdopen(descriptor, "rb")

    def read(self, *parts: str, max_bytes: int = 2**22) -> bytes:
        """Content of a file; raises `Missing` if it is larger than `max_bytes`."""
        with self.open(*parts) as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise Missing(f"{parts[-1]} is too large to show")
        return content

    def text(self, *parts: str, max_bytes: int = 2**22) -> str:
        """Text of a file; empty if it cannot be read."""
        try:
            return self.read(*parts, max_bytes=max_bytes).decode("utf-8", errors="replace")
        except (OSError, Missing):
            return ""

    def json(self, *parts: str, max_bytes: int = 2**22) -> dict[str, Any]:
        """The object in a JSON file; empty if the file cannot be read or holds something else."""
        try:
            found = parsed(self.read(*parts, max_bytes=max_bytes))
        except (OSError, Missing):
            return {}
        return found if isinstance(found, dict) else {}

    def tail(self, *parts: str, max_bytes: int) -> bytes:
        with self.open(*parts) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
            return file.read(max_bytes)

    def stamp(self, *parts: str) -> tuple[int, int, int]:
        """Inode, size and modification time, which change with a file or folder; zeros if it is missing."""
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
    """The served folders. The id of a run is its relative path, prefixed by the folder's name if there are several."""

    def __init__(self, paths: Sequence[Path]) -> None:
        for folder in paths:
            if not folder.is_dir():
                problem = "is a file" if folder.exists() else "does not exist"
                raise UsageError(f"{folder} {problem}; name a run folder, or a folder that contains runs")
        self.roots = {name: os.path.realpath(folder) for name, folder in _named(paths).items()}
        self._subfolders: dict[str, tuple[int, list[str]]] = {}

    def scan(self) -> dict[str, RunDir]:
        found: dict[str, RunDir] = {}
        for name, root in self.roots.items():
            for folder in self._runs(root, root, MAX_DEPTH):
                relative = os.path.relpath(folder, root)
                parts = [name, relative] if len(self.roots) > 1 else [relative]
                label = "/".join(part for part in parts if part != ".") or os.path.basename(root)
                found[_as_text(label)] = RunDir(root, folder)
        return found

    def _runs(self, root: str, folder: str, depth: int) -> Iterator[str]:
        if os.path.isfile(os.path.join(folder, "config.yaml")):
            yield folder
            return
        if depth > 0:
            for subfolder in self._folders(root, folder):
                yield from self._runs(root, subfolder, depth - 1)

    def _folders(self, root: str, folder: str) -> list[str]:
        """Subfolders of a folder, listed again when it has changed."""
        try:
            changed = os.stat(folder).st_mtime_ns
        except OSError:
            return []
        known = self._subfolders.get(folder)
        if known is None or known[0] != changed:
            self._subfolders[folder] = known = (changed, list(_list_folders(root, folder)))
        return known[1]


def _as_text(label: str) -> str:
    """The label as valid text for JSON and URLs: bytes of a folder name that are not text are escaped."""
    return os.fsencode(label).decode("utf-8", errors="backslashreplace")


def _list_folders(root: str, folder: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= MAX_ENTRIES:
                return
            if entry.name in SKIPPED_NAMES or entry.name.startswith(".") or not entry.is_dir():
                continue
            real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            if real.startswith(root.rstrip(os.sep) + os.sep):
                yield entry.path


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """The folders by name; equal names get numbers."""
    named: dict[str, Path] = {}
    for folder in paths:
        name = label = folder.resolve().name or "runs"
        number = 1
        while label in named:
            number += 1
            label = f"{name}-{number}"
        named[label] = folder
    return named
