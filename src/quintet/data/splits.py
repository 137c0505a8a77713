"""Splits of a run (training, validation and extra splits), and the base class of datasets of files.

`split_folder` lists the folders that a configuration names and splits their items, for every medium. Each medium adds
how its files are read and augmented. Decoded files are cached in memory up to a limit.
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
from quintet.common.logging import say
from quintet.common.printable import printable
from quintet.common.rng import ItemRNG
from quintet.config import DataConfig
from quintet.data.index.entry import Entry, Scan, no_training_items, unused_split_notes
from quintet.data.index.folder import METADATA_NAMES
from quintet.data.index.listing import fingerprint_of, joined, list_media, split_items
from quintet.data.index.shards import ShardEntries
from quintet.errors import UsageError
from quintet.media.files import MediaFile

HEADERS = 2**14
"""Largest number of cached headers; a set of shards may have millions of files."""

DecodedT = TypeVar("DecodedT")
HeaderT = TypeVar("HeaderT")


@dataclass
class FolderDataset(ABC, Generic[DecodedT]):
    """The files of a folder or of shards as items. Nothing is random if `train` is false."""

    root: str | os.PathLike[str]
    entries: Sequence[Entry]
    train: bool = field(default=True, kw_only=True)
    memory: int = field(default=0, kw_only=True)
    """Bytes of decoded files that each process caches; other files are read again."""
    dataset: str | None = field(default=None, kw_only=True)
    """Name of the synthetic data set in the folder, from its marker."""
    _cached: dict[int, DecodedT] = field(default_factory=dict, init=False, repr=False)
    _used: int = field(default=0, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.entries)

    def name(self, item: int) -> str:
        """The file of an item, as it is named in logs and summaries."""
        return self.entries[item].file

    @abstractmethod
    def load(self, item: int, rng: ItemRNG) -> Item:
        """Read one item; raises `UnreadableItem` with the reason if its file cannot be used."""

    def metadata(self, item: int) -> Item:
        """The fields of an item that need no media file: its caption (`texts`), and for a synthetic data set its name
        (`dataset`) and the other columns of the item (`metadata`)."""
        entry = self.entries[item]
        synthetic = {} if self.dataset is None else {"dataset": self.dataset, "metadata": entry.extra}
        return {"texts": entry.text or "", **synthetic}

    def _file(self, item: int) -> MediaFile:
        return self.entries[item].media(self.root)

    def _cache(self, item: int, decoded: DecodedT, size: int) -> DecodedT:
        """Cache a decoded file of `size` bytes if there is room, and return it."""
        if self._may_cache(item, size):
            self._cached[item] = decoded
            self._used += size
        return decoded

    def _may_cache(self, item: int, size: int) -> bool:
        """Whether a decoded file fits. Shards may hold millions of items: theirs are cached only if all of them fit,
        because memory would otherwise grow during the whole epoch without a hit."""
        all_fit = self.entries[item].stored is None or size * len(self.entries) <= self.memory
        return all_fit and self._used + size <= self.memory


class HeaderCache(dict[int, HeaderT]):
    """Headers of files by item; cleared when it is full."""

    def __setitem__(self, item: int, header: HeaderT) -> None:
        if len(self) >= HEADERS:
            self.clear()
        super().__setitem__(item, header)


@dataclass(frozen=True)
class ShardShuffle:
    """Shuffling within groups of shards: the shard of each item (`file_of`), and the number of shards in a group."""

    file_of: npt.NDArray[np.int64]
    shards_per_group: int


@dataclass(frozen=True)
class Splits:
    """The data of a run. `about` holds the entries of `data.json` other than the names of the items."""

    train: Dataset
    validation: Dataset
    fingerprint: str
    skipped: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    extra_splits: Mapping[str, Dataset] = field(default_factory=dict)
    """Items of neither training nor validation, by the name of their split; a generator can be evaluated on them."""
    shard_shuffle: ShardShuffle | None = None
    """Shuffle training items within groups of shards; None shuffles all of them."""
    listed: bool = True
    """Whether `data.json` lists the items; false for shards, whose index lists them."""
    dataset: str | None = None
    """Name of the synthetic data set, from its marker; None for a user's own data."""


MakeDataset = Callable[..., FolderDataset[Any]]
"""Makes a dataset; takes the arguments of `FolderDataset`."""


def split_folder(
    config: DataConfig,
    extensions: frozenset[str],
    make: MakeDataset,
    *,
    image_sequences: bool = False,
    uses_captions: bool | None = None,
) -> Splits:
    """Splits of the folders of a configuration; with `image_sequences`, a folder of numbered images is one item.

    `uses_captions` tells the user of missing captions; None: if the configuration can allow them to be missing.
    """
    root = _required(config)
    found = list_media(root, extensions, image_sequences=image_sequences, cache=config.cache_dir)
    train, held_out, aside = split_items(
        found.entries, config.validation_fraction, config.split_seed, config.validation_group
    )
    # A folder that only validates (`eval --data`, `encode`, …) needs no training items.
    if not len(train) and config.validation_path != root:
        raise no_training_items([*aside, *(["validation"] if len(held_out) else [])])
    if uses_captions is None:
        uses_captions = "allow_missing_captions" in type(config).model_fields
    _say_notes(root, found, uses_captions)
    if config.validation_path != root:
        for note in unused_split_notes(aside):
            say(f"note: {printable(note)}")
    held_root, dataset = root, _dataset(found)
    held_dataset = dataset
    skipped = _reasons(found.skipped)
    prints = fingerprint_of(root, found.entries)
    if config.validation_path is not None:
        other = list_media(config.validation_path, extensions, image_sequences=image_sequences, cache=config.cache_dir)
        if config.validation_path != root:
            _say_notes(config.validation_path, other, uses_captions)
        train = joined(train, held_out)
        held_out, held_root, held_dataset = other.entries, config.validation_path, _dataset(other)
        skipped.update({f"validation: {name}": reason for name, reason in _reasons(other.skipped).items()})
        prints += fingerprint_of(held_root, held_out)
    about = {"path": root, "captions_from": found.captions_from, "notes": found.notes}
    extra_splits = {split: make(root, entries, train=False, dataset=dataset) for split, entries in aside.items()}
    # Without a validation set, the training items validate, without augmentation.
    validation = make(held_root, held_out if len(held_out) else train, train=False, dataset=held_dataset)
    sharded = isinstance(train, ShardEntries)
    shard_shuffle = None
    if config.shuffle_shards is not None:
        if not isinstance(train, ShardEntries):
            raise UsageError(
                f"data.shuffle_shards={config.shuffle_shards} needs shards, but {root} holds none; set it to null"
            )
        shard_shuffle = ShardShuffle(train.shard_numbers, config.shuffle_shards)
    training = make(root, train, train=True, dataset=dataset)
    return Splits(training, validation, prints, skipped, about, extra_splits, shard_shuffle, not sharded, dataset)


def _say_notes(root: str, found: Scan, uses_captions: bool) -> None:
    """Tell the user what of a folder is not used as it may have been meant."""
    for note in found.notes:
        if uses_captions or note != found.uncaptioned:
            say(f"note: {printable(note)}")
    lines = [f"{name}: {reason}" for name, reason in found.skipped if name.rpartition("/")[2] in METADATA_NAMES]
    if lines:
        say(f"note: lines of metadata that are not used: {len(lines)}, the first in {printable(lines[0])}")
    if found.left_out:
        folder, what = found.left_out[0]
        more = f" and {len(found.left_out) - 1} more" if len(found.left_out) > 1 else ""
        unused = f"{printable(folder)} ({what}){more}"
        say(f"note: folders in {printable(root)} that quintet wrote are not used as data: {unused}")


def _dataset(found: Scan) -> str | None:
    return None if found.marker is None else str(found.marker["name"])


def _reasons(skipped: Sequence[tuple[str, str]]) -> dict[str, str]:
    """One text per file; a metadata file may have several skipped lines."""
    reasons: dict[str, str] = {}
    for name, reason in skipped:
        reasons[name] = f"{reasons[name]}; {reason}" if name in reasons else reason
    return reasons


def _required(config: DataConfig) -> str:
    if config.path is None:
        raise UsageError(
            "this run was trained on a Python data set and can only be resumed from Python, with the same data set"
        )
    return config.path
