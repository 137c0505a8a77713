"""Owns where shards lie: which files of a folder are shards, and one of them as a file on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from quintet.data.index.marker import MARKER
from quintet.data.index.shard_index import INDEX_NAME
from quintet.errors import UsageError
from quintet.media import audio as sounds
from quintet.media import image as images
from quintet.media import mesh as meshes
from quintet.media import video as films

MEDIA = images.EXTENSIONS | sounds.EXTENSIONS | meshes.EXTENSIONS | films.EXTENSIONS
TAR, PARQUET = ".tar", ".parquet"


class Found(NamedTuple):
    """A shard as it lies there: its path below the root, its size, and when or as what it was last written."""

    name: str
    size: int
    version: str


class Store(Protocol):
    """A place of shards."""

    @property
    def shown(self) -> str:
        """What it is called in messages."""

    def found(self) -> list[Found]:
        """Its shards, by name."""

    def index(self) -> Path | None:
        """The index that lies beside them, if there is one."""

    def marker(self) -> Path | None:
        """The marker of a synthetic data set beside them, if there is one."""

    def file(self, name: str) -> Path:
        """A shard as a file on this machine."""


@dataclass(frozen=True)
class FolderStore:
    """Shards in a folder of this machine; `only` one of its files where that was named."""

    root: Path
    only: str | None = None

    @property
    def shown(self) -> str:
        return str(self.root if self.only is None else self.root / self.only)

    def found(self) -> list[Found]:
        names = [self.only] if self.only is not None else chosen_shards(_files_below(self.root))
        return [self._found(name) for name in names]

    def _found(self, name: str) -> Found:
        try:
            facts = os.stat(self.root / name)
        except OSError as error:
            raise UsageError(f"the shard {self.root / name} cannot be opened: {error.strerror}") from None
        return Found(name, facts.st_size, str(facts.st_mtime_ns))

    def index(self) -> Path | None:
        path = self.root / INDEX_NAME
        return path if self.only is None and path.is_file() else None

    def marker(self) -> Path | None:
        return self.root / MARKER

    def file(self, name: str) -> Path:
        return self.root / name


def chosen_shards(files: Iterable[str]) -> list[str]:
    """Of all files those that are shards. Parquet files beside tar files are tables about them."""
    names = [*files]
    for extension in (TAR, PARQUET):
        chosen = sorted(name for name in names if name.lower().endswith(extension))
        if chosen:
            return chosen
    return []


def is_shard(name: str) -> bool:
    return name.lower().endswith((TAR, PARQUET))


def is_address(root: str | os.PathLike[str]) -> bool:
    """Whether data lies behind an address, rather than in a folder of this machine."""
    return "://" in str(root)


def holds_shards(root: Path) -> bool:
    """Whether a place is to be read as shards: it has an index, or holds shards and nowhere a file of media.

    Nowhere, since classes lie in folders of their own: a backup beside those is not what is to be trained on.
    """
    if root.is_file():
        return is_shard(root.name)
    if (root / INDEX_NAME).is_file():
        return True
    found = False
    for name in _files_below(root):
        if os.path.splitext(name)[1].lower() in MEDIA:
            return False
        found = found or is_shard(name)
    return found


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder on the way to it, is hidden: what was thrown away, or is kept by a program."""
    return any(part.startswith(".") for part in name.split("/"))


def _files_below(root: Path) -> Iterator[str]:
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
