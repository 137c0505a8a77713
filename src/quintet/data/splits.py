"""From the folders that a configuration names to the splits of a run, whatever the medium: which items are trained on,
which validate, which are set aside, what `data.json` says about them, and the base of datasets of files.

Each medium adds how its files are read and augmented. What was decoded stays in memory as far as there is room.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from quintet.common.batch import Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.config import DataConfig
from quintet.data.index.entry import Entry, Scan
from quintet.data.index.listing import fingerprint_of, joined, list_media, split_items
from quintet.data.index.shards import ShardEntries
from quintet.errors import UsageError
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
    def load(self, item: int, rng: ItemRNG) -> Item:
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


@dataclass(frozen=True)
class ShardShuffle:
    """Items that are shuffled a portion at a time: of each item the file it is in, and how many files are a portion."""

    file_of: npt.NDArray[np.int64]
    shards_per_group: int


@dataclass(frozen=True)
class Splits:
    """The data of a run. `about` holds what `data.json` should say beside the names."""

    train: Dataset
    validation: Dataset
    fingerprint: str
    skipped: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    extra_splits: Mapping[str, Dataset] = field(default_factory=dict)
    """What is neither trained on nor validated with, by the name of its split; a generator can be judged on it."""
    shard_shuffle: ShardShuffle | None = None
    """Which training items are shuffled among each other, where not all are."""
    listed: bool = True
    """Whether `data.json` names each item; not where the fingerprint is that of an index, which does."""
    dataset: str | None = None
    """The synthetic data set that the data is, by its marker; none for a person's own."""


MakeDataset = Callable[..., FolderDataset[Any]]
"""Files below a root as items; takes what every `FolderDataset` does."""


def split_folder(config: DataConfig, extensions: frozenset[str], make: MakeDataset, *, films: bool = False) -> Splits:
    """The folders that the configuration names, split for validation; with `films`, folders of pictures are items."""
    root = _required(config)
    found = list_media(root, extensions, films=films, cache=config.cache_dir)
    train, held_out, aside = split_items(
        found.entries, config.validation_fraction, config.split_seed, config.validation_group
    )
    held_root, dataset = root, _dataset(found)
    held_dataset = dataset
    skipped = _reasons(found.skipped)
    prints = fingerprint_of(root, found.entries)
    if config.validation_path is not None:
        other = list_media(config.validation_path, extensions, films=films, cache=config.cache_dir)
        train = joined(train, held_out)
        held_out, held_root, held_dataset = other.entries, config.validation_path, _dataset(other)
        skipped.update({f"validation: {name}": reason for name, reason in _reasons(other.skipped).items()})
        prints += fingerprint_of(held_root, held_out)
    about = {"path": root, "captions_from": found.captions_from, "notes": found.notes}
    extra_splits = {split: make(root, entries, train=False, dataset=dataset) for split, entries in aside.items()}
    # Without a validation set the training items are looked at, unaugmented.
    looked_at = make(held_root, held_out if len(held_out) else train, train=False, dataset=held_dataset)
    sharded = isinstance(train, ShardEntries)
    shard_shuffle = None
    if config.shuffle_shards is not None:
        if not isinstance(train, ShardEntries):
            raise UsageError(f"data.shuffle_shards={config.shuffle_shards} is for shards, and {root} holds none")
        shard_shuffle = ShardShuffle(train.shard_numbers, config.shuffle_shards)
    trained_on = make(root, train, train=True, dataset=dataset)
    return Splits(trained_on, looked_at, prints, skipped, about, extra_splits, shard_shuffle, not sharded, dataset)


def _dataset(found: Scan) -> str | None:
    return None if found.marker is None else str(found.marker["name"])


def _reasons(skipped: Sequence[tuple[str, str]]) -> dict[str, str]:
    """One text a file; a metadata file may have several lines that were left out."""
    reasons: dict[str, str] = {}
    for name, reason in skipped:
        reasons[name] = f"{reasons[name]}; {reason}" if name in reasons else reason
    return reasons


def _required(config: DataConfig) -> str:
    if config.path is None:
        raise UsageError(
            "this run was given a data set in Python and can only be resumed from Python, with the same one"
        )
    return config.path
