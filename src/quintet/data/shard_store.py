"""Owns where shards lie: which files of a folder are shards, and one of them as a file on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from quintet.data.shard_index import INDEX_NAME
from quintet.errors import UsageError

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

    def file(self, name: str) -> Path:
        return self.root / name


def chosen_shards(names: Sequence[str]) -> list[str]:
    """Of all files those that are shards. Parquet files beside tar files are tables about them."""
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


def holds_shards(root: Path, media: frozenset[str]) -> bool:
    """Whether a folder is to be read as shards: it has an index, or shards and, beside them, no file of media."""
    if root.is_file():
        return is_shard(root.name)
    if (root / INDEX_NAME).is_file():
        return True
    try:
        with os.scandir(root) as listing:
            names = [entry.name for entry in listing if entry.is_file()]
    except OSError:
        return False
    if any(os.path.splitext(name)[1].lower() in media for name in names):
        return False
    return bool(chosen_shards(names)) or bool(_tables(root / "data"))


def _tables(folder: Path) -> list[str]:
    """Parquet files where data sets of Hugging Face have them."""
    return [path.name for path in folder.glob(f"*{PARQUET}")] if folder.is_dir() else []


def _files_below(root: Path) -> list[str]:
    return [
        os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
        for folder, _, names in os.walk(root)
        for name in names
        if not name.startswith(".")
    ]
