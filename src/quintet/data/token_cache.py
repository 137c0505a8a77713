"""Owns codes kept on disk: media go through a frozen tokenizer once, and training reads codes instead of media.
What a frozen model makes of media need not be codes: a vector of each item is kept in the same way.

A cache is a folder named by what its codes depend on: the tokenizer's weights, the data's fingerprint and how items are
cut. It is written shard by shard, each under a temporary name and then renamed, so that a killed encoding goes on where
it was; a shard that is not what it was is made again. Augmentations are variants: variant v of an item is drawn as in
epoch v, and training chooses one of them per epoch and item.

The codes of items may differ in length, their first axis. Where arrays have to be of one shape, the shorter ones end in
-1, which is no code; an item is read without it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quintet.common import files
from quintet.common.batch import Batch, Dataset, Item
from quintet.common.caches import part_lock
from quintet.common.rank import RankInfo
from quintet.common.rng import ItemRNG
from quintet.common.weights import checkpoint
from quintet.errors import UnreadableItem

FORMAT = 2
SHARD = 1024
"""Items of a file: few enough to lose little by a kill, many enough to have few files."""
BATCH = 32
"""Items that go through the tokenizer together."""

Encode = Callable[[Batch], Tensor]
Collate = Callable[[Sequence[Item]], dict[str, Any]]
Codes = npt.NDArray[Any]
"""Whole numbers of 32 bits, or, of a vector, fractions."""
Tell = Callable[[int, int], None]
"""Called with the items encoded so far, and how many there are."""


@runtime_checkable
class MediaDataset(Dataset, Protocol):
    """A source that can tell of an item what is known without opening its file: the caption."""

    def metadata(self, item: int) -> Item: ...


@dataclass(frozen=True)
class CacheKey:
    """What the codes of a source depend on; `coded.py` makes it."""

    tokenizer: str
    """Hash of the tokenizer's weights."""
    data: str
    """Which items stand at which place, and what their files are."""
    transform: str
    """How items are cut and augmented."""
    variants: int

    @property
    def name(self) -> str:
        text = json.dumps([FORMAT, self.tokenizer, self.data, self.transform, self.variants])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass
class TokenCache:
    """The codes of one source of media: made where they are missing, then read as memory-mapped files."""

    folder: Path
    key: CacheKey
    media: MediaDataset
    collate: Collate
    encode: Encode
    tell: Tell = dataclasses.field(default=lambda done, total: None)
    field: str = "codes"
    """The field of items."""

    def open(self) -> TokenDataset:
        """The codes as a dataset. Processes that open it together share the encoding, a shard at a time."""
        place = self.folder / f"codes-{self.key.name}"
        place.mkdir(parents=True, exist_ok=True)
        numbers = range(-(-len(self.media) // SHARD))
        # Without a lock: each process checks the hashes of what it will read.
        shards = {number: shard for number in numbers if (shard := _sound_shard(place, number)) is not None}
        missing = _from_own_share([number for number in numbers if number not in shards])
        if missing:
            with files.open_no_follow(place / "lock", "ab") as lock:
                # What nobody is at first; then what the others have made since.
                for wait in (False, True):
                    for number in [number for number in missing if number not in shards]:
                        with part_lock(lock, number, wait) as writes:
                            if writes:
                                shards[number] = _sound_shard(place, number) or self._make(place, number)
        skipped = {item: reason for number in numbers for item, reason in shards[number].skipped.items()}
        paths = [shards[number].path for number in numbers]
        return TokenDataset(self.media, paths, self.key.variants, skipped, self.field)

    def _make(self, place: Path, number: int) -> _Shard:
        items = range(number * SHARD, min((number + 1) * SHARD, len(self.media)))
        if not items.start:  # the end of one part tells of the beginning of the next
            self.tell(0, len(self.media))
        skipped: dict[int, str] = {}
        rows: list[list[Codes]] = []
        for start in range(items.start, items.stop, BATCH):
            rows += self._encoded(range(start, min(start + BATCH, items.stop)), skipped)
        shard = _write_shard(place, number, rows, skipped)
        done = sum(1 for _ in place.glob("shard-*.json"))
        self.tell(min(done * SHARD, len(self.media)), len(self.media))
        return shard

    def _encoded(self, items: range, skipped: dict[int, str]) -> list[list[Codes]]:
        """Of each readable item its variants."""
        made: dict[int, list[Codes]] = {item: [] for item in items}
        for variant in range(self.key.variants):
            read = dict(self._read([item for item in items if item not in skipped], variant, skipped))
            if read:
                rng = ItemRNG(0, [variant] * len(read), list(read))
                names = tuple(self.media.name(item) for item in read)
                codes = self.encode(Batch(self.collate(list(read.values())), names, rng))
                kept = np.float32 if codes.is_floating_point() else np.int32
                for item, one in zip(read, codes.cpu().numpy().astype(kept), strict=True):
                    made[item].append(one)
        return [made[item] for item in items if item not in skipped]

    def _read(self, items: Sequence[int], variant: int, skipped: dict[int, str]) -> Iterator[tuple[int, Item]]:
        for item in items:
            try:
                yield item, self.media.load(item, ItemRNG(0, [variant], [item]))
            except UnreadableItem as problem:
                skipped[item] = str(problem)


@dataclass
class TokenDataset:
    """Items whose media stay on files, unread: what was made of them, and whatever else an item has but media."""

    media: MediaDataset
    shards: Sequence[Path]
    variants: int
    skipped: dict[int, str]
    """Items whose media could not be read, with the reason."""
    field: str = "codes"
    """The field of items."""
    _open: dict[int, tuple[Codes, npt.NDArray[np.int64]]] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

    def __len__(self) -> int:
        return len(self.media)

    def name(self, item: int) -> str:
        return self.media.name(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        if item in self.skipped:
            raise UnreadableItem(self.skipped[item])
        variant = int(rng.number("variant") * self.variants)
        codes = self.codes(item)[variant]
        kept = codes.copy() if _is_vector(codes) else codes[: length(codes)].astype(np.int64)
        return {**self.media.metadata(item), self.field: torch.from_numpy(kept)}

    def lengths(self) -> list[int]:
        """The length of each item, the longest of its variants; 0 where its media could not be read."""
        return [
            0 if item in self.skipped else max(length(codes) for codes in self.codes(item)) for item in range(len(self))
        ]

    def codes(self, item: int) -> Codes:
        """All variants of an item, padded with -1 to the length of the longest item of its file."""
        number = item // SHARD
        if number not in self._open:
            # The rows of readable items stand one after another.
            first = number * SHARD
            readable = [int(first + place not in self.skipped) for place in range(min(SHARD, len(self) - first))]
            codes = np.load(self.shards[number], mmap_mode="r", allow_pickle=False)
            self._open[number] = codes, np.cumsum(readable) - 1
        codes, rows = self._open[number]
        return np.asarray(codes[rows[item % SHARD]])

    def __getstate__(self) -> dict[str, Any]:
        """Data workers open the files themselves."""
        return {**self.__dict__, "_open": {}}


def length(codes: Codes) -> int:
    """How many rows come before the padding."""
    return int((codes >= 0).any(axis=tuple(range(1, codes.ndim))).sum())


def _is_vector(codes: Codes) -> bool:
    return bool(np.issubdtype(codes.dtype, np.floating))


def _from_own_share(numbers: list[int]) -> list[int]:
    """In an order in which the processes of a launcher begin at different shards."""
    own = RankInfo.from_environment()
    start = own.rank * len(numbers) // own.world_size
    return numbers[start:] + numbers[:start]


# --- shards on disk -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shard:
    path: Path
    skipped: dict[int, str]


def _write_shard(place: Path, number: int, rows: Sequence[Sequence[Codes]], skipped: dict[int, str]) -> _Shard:
    path = place / f"shard-{number:05d}.npy"
    # Threads of one process are not kept apart by the lock.
    with files.atomic_write(path, concurrent=True) as temporary, temporary.open("wb") as file:
        np.save(file, _stacked(rows) if rows else np.zeros((0,), np.int32), allow_pickle=False)
    # The record comes last: a shard without one is made again.
    record = {"sha256": checkpoint.hash_file(path), "skipped": {str(item): why for item, why in skipped.items()}}
    files.replace_bytes(path.with_suffix(".json"), json.dumps(record).encode(), concurrent=True)
    return _Shard(path, skipped)


def _stacked(rows: Sequence[Sequence[Codes]]) -> Codes:
    """(items, variants, *codes)"""
    longest = max(len(codes) for variants in rows for codes in variants)
    shape = (len(rows), len(rows[0]), longest, *rows[0][0].shape[1:])
    stacked = np.full(shape, -1, rows[0][0].dtype)
    for item, variants in enumerate(rows):
        for variant, codes in enumerate(variants):
            stacked[item, variant, : len(codes)] = codes
    return stacked


def _sound_shard(place: Path, number: int) -> _Shard | None:
    """The shard, if it stands and is what it was."""
    path = place / f"shard-{number:05d}.npy"
    try:
        record = json.loads(checkpoint.read_regular(path.with_suffix(".json")))
        if record["sha256"] != checkpoint.hash_file(path):
            return None
        return _Shard(path, {int(item): str(why) for item, why in record["skipped"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
