"""The base of folder datasets: files of a scanned folder as training items, with their captions.

Each medium adds how its files are read and augmented. What was decoded stays in memory as far as there is room.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from quintet.common.batch import Item
from quintet.common.rng import ItemRNG
from quintet.data.index.entry import Entry
from quintet.media.files import MediaFile

HEADERS = 2**14
"""Headers that are kept; a set of shards may have millions."""

DecodedT = TypeVar("DecodedT")
HeaderT = TypeVar("HeaderT")


@dataclass
class FolderDataset(ABC, Generic[DecodedT]):
    """Items by the files of a folder. With `train` false nothing is random."""

    root: str | os.PathLike[str]
    entries: Sequence[Entry]
    train: bool = field(default=True, kw_only=True)
    memory: int = field(default=0, kw_only=True)
    """Bytes of decoded files kept by each process; what does not fit is read again."""
    dataset: str | None = field(default=None, kw_only=True)
    """The synthetic data set that the folder holds, by its marker."""
    _kept: dict[int, DecodedT] = field(default_factory=dict, init=False, repr=False)
    _used: int = field(default=0, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.entries)

    def name(self, item: int) -> str:
        """The file of an item, as logs and summaries call it."""
        return self.entries[item].file

    @abstractmethod
    def load(self, item: int, draw: ItemRNG) -> Item:
        """Read one item; `UnreadableItem` with the reason if its file cannot be used."""

    def metadata(self, item: int) -> Item:
        """The fields of an item that are known without opening its file: its caption, and of a synthetic data set its
        name, `dataset`, and what is true of the item, `metadata`: its other columns."""
        entry = self.entries[item]
        synthetic = {} if self.dataset is None else {"dataset": self.dataset, "metadata": entry.extra}
        return {"texts": entry.text or "", **synthetic}

    def _file(self, item: int) -> MediaFile:
        return self.entries[item].media(self.root)

    def _keep(self, item: int, decoded: DecodedT, size: int) -> DecodedT:
        """Remember what was decoded, if it may stay in memory."""
        if self._may_keep(item, size):
            self._kept[item] = decoded
            self._used += size
        return decoded

    def _may_keep(self, item: int, size: int) -> bool:
        """Of shards, which may hold millions, nothing stays where all items of that size would not fit: few would be
        met again before the end of an epoch, and the memory would grow until then."""
        few = self.entries[item].stored is None or size * len(self.entries) <= self.memory
        return few and self._used + size <= self.memory


class HeaderCache(dict[int, HeaderT]):
    """Headers of files by item; it is emptied when it is full."""

    def __setitem__(self, item: int, header: HeaderT) -> None:
        if len(self) >= HEADERS:
            self.clear()
        super().__setitem__(item, header)
