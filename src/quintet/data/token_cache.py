"""Token cache on disk: a frozen tokenizer encodes media once, and training reads the codes instead of the media.
A model that returns one vector per item is cached in the same way.

A cache is a folder whose name is a hash of everything that the codes depend on: the frozen tokenizer, the names, sizes
and modification times of the files, and their preprocessing. It is written in shards, each under a temporary name and
then renamed, so an interrupted encoding continues where it stopped; a shard that fails its hash is encoded again.
Augmentations are variants: variant v of an item uses the random numbers of epoch v, and training chooses one variant
per epoch and item.

The codes of items may differ in length, their first axis. Shorter ones are padded with -1, which is not a code; the
padding is removed when an item is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quintet.common import files
from quintet.common.batch import Batch, Collate, Dataset, Item
from quintet.common.caches import part_lock, writing_cache
from quintet.common.memory import is_out_of_memory
from quintet.common.rank import RankInfo
from quintet.common.rng import ItemRNG
from quintet.common.weights import checkpoint
from quintet.data.token_reading import Group, read_groups
from quintet.errors import RunError, UnreadableItem

FORMAT = 2
SHARD = 1024
"""Items of a shard: few enough to lose little work when a run is killed, many enough to have few files."""
HELD = 256
"""Number of shards that are open from the start, and so survive the deletion of the cache; each is an open file."""
LAUNCHER_VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID"),
)
"""Variables that have the same values in all processes of one start."""

Encode = Callable[[Batch], Tensor]
Codes = npt.NDArray[Any]
"""int32 codes, or a float32 vector."""
Progress = Callable[[int, int], None]
"""Called with the number of encoded items and the total."""


@runtime_checkable
class MediaDataset(Dataset, Protocol):
    """A dataset whose `metadata` returns the fields of an item, such as its caption, without opening the media file."""

    def metadata(self, item: int) -> Item: ...


@dataclass(frozen=True)
class CacheKey:
    """Everything that the codes of a dataset depend on; built in `tokenized.py`."""

    tokenizer: str
    """`digest` of the `TokenEncoder`: a hash of everything that the codes depend on, except the media."""
    data: str
    """Hash of the names, sizes and modification times of the files, in their order."""
    transform: str
    """`preprocessing_key` of the dataset."""
    variants: int
    encoding: str = ""
    """Batch size and precision of the encoder; empty for the defaults, so that their caches keep their names."""

    @property
    def name(self) -> str:
        parts = [FORMAT, self.tokenizer, self.data, self.transform, self.variants]
        text = json.dumps([*parts, self.encoding] if self.encoding else parts)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass
class TokenCache:
    """The codes of one media dataset: encoded where they are missing, then read as memory-mapped files."""

    folder: Path
    key: CacheKey
    media: MediaDataset
    collate: Collate
    encode: Encode
    progress: Progress = dataclasses.field(default=lambda done, total: None)
    field: str = "codes"
    """Field of an item that holds the codes."""
    workers: int = 0
    """Number of processes that read items for the encoder; 0 reads them in this process."""
    batch_size: int = 32
    """Number of items that are encoded at a time. Codes may depend on it where two are equally near."""

    def open(self) -> TokenDataset:
        """The codes as a dataset. Processes that open it at the same time share the encoding, shard by shard; those of
        one launcher also share the check of the hashes."""
        with writing_cache(self.folder):
            return self._open(self.folder / f"codes-{self.key.name}")

    def _open(self, folder: Path) -> TokenDataset:
        folder.mkdir(parents=True, exist_ok=True)
        numbers = range(-(-len(self.media) // SHARD))
        shards: dict[int, _Shard] = {}
        if RankInfo.from_environment().world_size == 1 or not os.access(folder, os.W_OK):
            # Without a lock: another run may encode for hours.
            shards = {number: shard for number in numbers if (shard := _valid_shard(folder, number)) is not None}
        missing = _rank_order([number for number in numbers if number not in shards])
        if missing:
            with files.open_no_follow(folder / "lock", "ab") as lock:
                # First the shards that no other process checks or encodes, then wait for the rest.
                for wait in (False, True):
                    for number in [number for number in missing if number not in shards]:
                        with part_lock(lock, number, wait) as writes:
                            if writes:
                                shards[number] = _checked_shard(folder, number) or self._encode_shard(folder, number)
        skipped = {item: reason for number in numbers for item, reason in shards[number].skipped.items()}
        paths = [shards[number].path for number in numbers]
        tokens = TokenDataset(self.media, paths, self.key.variants, skipped, self.field)
        tokens.hold()
        return tokens

    def _encode_shard(self, folder: Path, number: int) -> _Shard:
        items = range(number * SHARD, min((number + 1) * SHARD, len(self.media)))
        if not items.start:  # later shards are announced by the end of the one before
            self.progress(0, len(self.media))
        skipped: dict[int, str] = {}
        rows: list[list[Codes]] = []
        size = self.batch_size
        groups = [range(start, min(start + size, items.stop)) for start in range(items.start, items.stop, size)]
        for group in read_groups(self.media, self.collate, self.key.variants, groups, self.workers):
            rows += self._encode_group(group)
            skipped.update(group.skipped)
        shard = _write_shard(folder, number, rows, skipped)
        _note_check(shard.path)
        done = sum(1 for _ in folder.glob("shard-*.json"))
        self.progress(min(done * SHARD, len(self.media)), len(self.media))
        return shard

    def _encoded(self, batch: Batch) -> Tensor:
        try:
            return self.encode(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise RunError(
                f"out of memory while {len(batch)} items are encoded; use a smaller data.encode_batch_size"
            ) from None

    def _encode_group(self, group: Group) -> list[list[Codes]]:
        """The variants of each readable item."""
        encoded: dict[int, list[Codes]] = {item: [] for item in group.items if item not in group.skipped}
        for items, batch in group.variants:
            codes = self._encoded(batch)
            if codes.is_floating_point():
                codes = codes.float()  # numpy has no bf16
            dtype = np.float32 if codes.is_floating_point() else np.int32
            for item, one in zip(items, codes.cpu().numpy().astype(dtype), strict=True):
                if item in encoded:
                    encoded[item].append(one)
        return list(encoded.values())


@dataclass
class TokenDataset:
    """Items of codes: the cached codes of an item and its metadata; the media files are not opened."""

    media: MediaDataset
    shards: Sequence[Path]
    variants: int
    skipped: dict[int, str]
    """Items whose media cannot be read, with the reason."""
    field: str = "codes"
    """Field of an item that holds the codes."""
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
        codes = self.codes(item)[self.variant(rng)]
        value = codes.copy() if _is_vector(codes) else codes[: length(codes)].astype(np.int64)
        return {**self.media.metadata(item), self.field: torch.from_numpy(value)}

    def variant(self, rng: ItemRNG) -> int:
        """The variant of an item that these random numbers choose."""
        return int(rng.number("variant") * self.variants)

    def lengths(self) -> list[int]:
        """The length of each item, that of its longest variant; 0 if its media cannot be read."""
        return [
            0 if item in self.skipped else max(length(codes) for codes in self.codes(item)) for item in range(len(self))
        ]

    def hold(self) -> None:
        """Open the first shards. Data workers that are forked inherit them; deleting an open file does not harm it."""
        for number in range(min(HELD, len(self.shards))):
            self._shard(number)

    def _shard(self, number: int) -> tuple[Codes, npt.NDArray[np.int64]]:
        """The codes of a shard, and the row of each of its items."""
        if number not in self._open:
            # A shard has rows for readable items only.
            first = number * SHARD
            readable = [int(first + row not in self.skipped) for row in range(min(SHARD, len(self) - first))]
            try:
                codes = np.load(self.shards[number], mmap_mode="r", allow_pickle=False)
            except OSError as error:
                raise RunError(
                    f"the token cache {self.shards[number].parent} cannot be read any more ({error.strerror}); if it "
                    "was deleted, `quintet resume` encodes the data again"
                ) from None
            self._open[number] = codes, np.cumsum(readable) - 1
        return self._open[number]

    def codes(self, item: int) -> Codes:
        """All variants of an item (variants, length, ...), padded with -1 to the longest item of the shard."""
        codes, rows = self._shard(item // SHARD)
        return np.asarray(codes[rows[item % SHARD]])

    def __getstate__(self) -> dict[str, Any]:
        """Data workers open the files themselves."""
        return {**self.__dict__, "_open": {}}


def length(codes: Codes) -> int:
    """Number of rows before the padding."""
    return int((codes >= 0).any(axis=tuple(range(1, codes.ndim))).sum())


def _rank_order(numbers: list[int]) -> list[int]:
    """The same numbers, rotated so that each rank of a launcher starts at another shard."""
    own = RankInfo.from_environment()
    start = own.rank * len(numbers) // own.world_size
    return numbers[start:] + numbers[:start]


def _is_vector(codes: Codes) -> bool:
    return bool(np.issubdtype(codes.dtype, np.floating))


# --- shards on disk -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shard:
    path: Path
    skipped: dict[int, str]


def _write_shard(folder: Path, number: int, rows: Sequence[Sequence[Codes]], skipped: dict[int, str]) -> _Shard:
    path = folder / f"shard-{number:05d}.npy"
    # The lock does not exclude other threads of this process.
    with files.atomic_write(path, concurrent=True) as temporary, temporary.open("wb") as file:
        np.save(file, _stacked(rows) if rows else np.zeros((0,), np.int32), allow_pickle=False)
    # The record comes last: a shard without one is encoded again.
    record = {"sha256": checkpoint.hash_file(path), "skipped": {str(item): why for item, why in skipped.items()}}
    files.replace_bytes(path.with_suffix(".json"), json.dumps(record).encode(), concurrent=True)
    return _Shard(path, skipped)


def _stacked(rows: Sequence[Sequence[Codes]]) -> Codes:
    """Codes of a shard (items, variants, *codes), padded with -1."""
    longest = max(len(codes) for variants in rows for codes in variants)
    shape = (len(rows), len(rows[0]), longest, *rows[0][0].shape[1:])
    stacked = np.full(shape, -1, rows[0][0].dtype)
    for item, variants in enumerate(rows):
        for variant, codes in enumerate(variants):
            stacked[item, variant, : len(codes)] = codes
    return stacked


def _valid_shard(folder: Path, number: int) -> _Shard | None:
    """The shard, if it exists and matches its hash."""
    path = folder / f"shard-{number:05d}.npy"
    try:
        shard, sha256 = _recorded_shard(path)
        return shard if sha256 == checkpoint.hash_file(path) else None
    except (OSError, *_UNREADABLE):
        return None


_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Exceptions of a record that is not what quintet writes."""


def _recorded_shard(path: Path) -> tuple[_Shard, object]:
    """A shard by its record, and the hash that its file should have."""
    record = json.loads(checkpoint.read_regular(path.with_suffix(".json")))
    return _Shard(path, {int(item): str(why) for item, why in record["skipped"].items()}), record["sha256"]


# --- one check for the processes of a launcher ---------------------------------------------------------------------

CHECKED_FOR = 600.0
"""Seconds that a check of one process counts for the others of its launcher: about as long as a start takes."""


def _checked_shard(folder: Path, number: int) -> _Shard | None:
    """As `_valid_shard`, but the file is not hashed again if a process of the same launcher just did.

    The caller holds the lock of the shard."""
    path = folder / f"shard-{number:05d}.npy"
    try:
        mark = _mark_of(path)
        if time.time() - mark.stat().st_mtime < CHECKED_FOR and mark.read_text() == _state_of(path):
            return _recorded_shard(path)[0]
    except (OSError, *_UNREADABLE):
        pass
    shard = _valid_shard(folder, number)
    if shard is not None:
        _note_check(path)
    return shard


def _note_check(path: Path) -> None:
    """Note for the other processes of the launcher that a shard is as its hash says."""
    if RankInfo.from_environment().world_size > 1:
        with suppress(OSError):  # they check it themselves
            files.replace_bytes(_mark_of(path), _state_of(path).encode(), durable=False, concurrent=True)


def _mark_of(path: Path) -> Path:
    return path.with_name(f".checked-{path.stem}")


def _state_of(path: Path) -> str:
    """The launcher of this process, and what changes when the file is written again."""
    state = path.stat()
    launcher = [os.environ.get(name, "") for name in LAUNCHER_VARIABLES]
    return json.dumps([*launcher, state.st_size, state.st_mtime_ns, state.st_ino])
