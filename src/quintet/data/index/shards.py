"""A set of shards as a data set: its items in a fixed order, with captions, and their bytes on demand.

Recipes use it like a folder: each media file in a shard is an entry with its name in the shard. The items depend on the
index alone, so order, split and resumption equal those of a folder for any number of processes and workers. A shard is
opened when one of its items is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload
from weakref import finalize

import numpy as np
import numpy.typing as npt

from quintet.common.caches import default_folder, exclusive_lock
from quintet.common.files import open_regular
from quintet.common.logging import say
from quintet.data.index.entry import (
    TRAIN_SPLIT,
    VALIDATION_SPLITS,
    Entry,
    Scan,
    Stamp,
    check_fraction,
    chosen_groups,
    group_keys,
)
from quintet.data.index.marker import read_marker
from quintet.data.index.shard_index import FORMAT, IMAGE_SEQUENCE, Row, ShardIndex, joined_hash
from quintet.data.index.shard_listing import UnpackedStore, build_index, stored_hashes
from quintet.data.index.shard_store import PARQUET, FolderStore, RemoteStore, ShardFile, Store, is_url
from quintet.data.index.tar_members import Damaged, TarListing
from quintet.errors import RunError, UnreadableItem, UsageError
from quintet.media.budget import READ_BUDGET_BYTES
from quintet.media.files import Blob, digest_of
from quintet.media.video import FRAME_EXTENSIONS

Indices = npt.NDArray[np.int64]
OPEN_FILES = 128
"""Largest number of open shards per process."""
LARGEST_MEMBER = READ_BUDGET_BYTES // 2
"""Most bytes of an item in a shard: it is in memory while it is decoded, unlike a file of a folder."""
_BLOCK = 2**20


class _Inspection(NamedTuple):
    """What is wrong with a shard: with all of it, or with the items at some offsets."""

    problem: str | None = None
    damaged: frozenset[int] = frozenset()


_SOUND = _Inspection()
_DAMAGED = _Inspection("is damaged: its content does not match its hash")


class ShardSet:
    """An index and the store of its shards, with the version that the store reported for each shard."""

    def __init__(self, index: ShardIndex, store: Store, versions: Sequence[str]) -> None:
        self.index = index
        self.store = store
        self.versions = versions
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._sound: set[int] = set()
        """Shards whose content this process has checked."""
        self._damaged: set[tuple[int, int]] = set()
        """Shard and offset of the items that do not match their hashes."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Data workers that are not forked open the files themselves."""
        return ShardSet, (self.index, self.store, self.versions)

    def entry(self, position: int) -> Entry:
        row = self.index.row(position)
        return Entry(row.name, row.text, row.split, row.extra, Stamp(row.size, 0), partial(self.blob, row))

    def blob(self, row: Row) -> Blob:
        """The bytes of an item. A damaged item is unreadable, like a damaged file; a shard of which nothing can be
        trusted ends the run, which can be resumed once the shard is restored."""
        if row.size > LARGEST_MEMBER:
            raise UnreadableItem(
                f"{row.size / 2**20:.0f} MB, more than {LARGEST_MEMBER // 2**20} that are read from a shard; "
                "reduce it, or train on a folder"
            )
        content = self.read(row.shard, row.offset, row.size)
        if (row.shard, row.offset) in self._damaged:
            raise UnreadableItem("damaged: its content does not match its hash in the shard")
        if row.kind != IMAGE_SEQUENCE:
            return Blob(row.name, content)
        try:
            return Blob(row.name, frames=_frames(content))
        except Damaged as error:
            raise RunError(f"the shard {self._label(row.shard)} does not match its index ({error})") from None

    def read(self, shard: int, offset: int, size: int) -> bytes:
        try:
            content = self._file(shard).read(offset, size)
        except OSError as error:
            raise RunError(f"the shard {self._label(shard)} cannot be read: {error.strerror}") from None
        if len(content) < size:
            raise RunError(f"the shard {self._label(shard)} is shorter than when the run started; restore it")
        return content

    def _file(self, shard: int) -> _OpenFile:
        with self._lock:
            file = self._open.get(shard)
            if file is None:
                # Checked when this process opens it for the first time: the disk may have changed it since it was made.
                file = self._opened(shard, check=shard not in self._sound)
                self._sound.add(shard)
            self._open[shard] = file
            self._open.move_to_end(shard)
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
            return file

    def _opened(self, shard: int, *, check: bool) -> _OpenFile:
        """The shard as a file. For parquet files and remote shards this is a copy, which is made here if it is missing,
        and made again if it is damaged."""
        name = self.index.shards[shard].name
        file = _OpenFile(self.store.file(name))
        if not check:
            return file
        found = self._inspected(shard, file)
        if found != _SOUND and self.store.discard(name):
            say(f"the local copy of the shard {self._label(shard)} is damaged; it is made again", any_rank=True)
            file = _OpenFile(self.store.file(name))
            found = self._inspected(shard, file)
        if found.problem:
            raise RunError(f"the shard {self._label(shard)} {found.problem}; restore it")
        self._damaged.update((shard, offset) for offset in found.damaged)
        return file

    def _inspected(self, shard: int, file: _OpenFile) -> _Inspection:
        """Compare the content of a shard with its hash, if there is one."""
        known = self.index.shards[shard]
        if os.fstat(file.descriptor).st_size != known.size:
            return _Inspection("changed since the run started")
        if isinstance(self.store, UnpackedStore):
            return _SOUND if file.digest() == known.sha256 else _DAMAGED
        if not known.sha256:
            kept = self.store.copy_hash(known.name)
            return _SOUND if not kept or file.digest() == kept else _DAMAGED
        hashes = self._media_hashes(shard, file)
        if joined_hash([*hashes.values()]) == known.sha256:
            return _SOUND
        stored = stored_hashes(self.store.file(known.name))
        if joined_hash([stored.get(offset, "") for offset in hashes]) != known.sha256:
            return _DAMAGED
        # The items that differ from the hashes beside them are unreadable; the others of the shard are sound.
        return _Inspection(None, frozenset(offset for offset, content in hashes.items() if stored[offset] != content))

    def _media_hashes(self, shard: int, file: _OpenFile) -> dict[int, str]:
        """The hash of each item of a tar shard by its offset, as `quintet data shard` computes them."""
        columns = self.index.columns
        hashes = {}
        for position in np.flatnonzero(columns["shard"] == shard).tolist():
            offset, size = int(columns["offset"][position]), int(columns["size"][position])
            if self.index.kinds[columns["kind"][position]] != IMAGE_SEQUENCE:
                hashes[offset] = file.digest(offset, size)
                continue
            try:
                hashes[offset] = digest_of(Blob("", frames=_frames(file.read(offset, size))))
            except Damaged:
                hashes[offset] = "damaged"
        return hashes

    def _label(self, shard: int) -> str:
        return f"{self.index.shards[shard].name} of {self.store.label}"


def _frames(content: bytes) -> dict[str, bytes]:
    """The numbered images of an item, by the number and extension of their names."""
    return {
        member.name.rpartition(".")[0].rpartition(".")[2] + os.path.splitext(member.name)[1]: content[
            member.offset : member.offset + member.size
        ]
        for member in TarListing(content)
        if os.path.splitext(member.name)[1].lower() in FRAME_EXTENSIONS
    }


class _OpenFile:
    """A file that is closed with its last reference: another thread may still read a file that left the cache."""

    def __init__(self, path: Path) -> None:
        with open_regular(path) as stream:
            self.descriptor = os.dup(stream.fileno())
        finalize(self, os.close, self.descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes of a range, fewer at the end of the file."""
        content = os.pread(self.descriptor, size, offset)
        while content and len(content) < size:  # one call reads at most 2 GiB
            more = os.pread(self.descriptor, size - len(content), offset + len(content))
            if not more:
                break
            content += more
        return content

    def digest(self, offset: int = 0, size: int | None = None) -> str:
        """SHA-256 of a range, by default of the whole file."""
        content = hashlib.sha256()
        end = os.fstat(self.descriptor).st_size if size is None else offset + size
        while offset < end and (block := os.pread(self.descriptor, min(_BLOCK, end - offset), offset)):
            content.update(block)
            offset += len(block)
        return content.hexdigest()


class ShardEntries(Sequence[Entry]):
    """Items of a set, at these positions of its index; entries are created on access."""

    def __init__(self, shards: ShardSet, indices: Indices) -> None:
        self.shards = shards
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> ShardEntries: ...
    def __getitem__(self, item: int | slice) -> Entry | ShardEntries:
        if isinstance(item, slice):
            return ShardEntries(self.shards, self.indices[item])
        return self.shards.entry(int(self.indices[item]))

    def __iter__(self) -> Iterator[Entry]:
        return (self.shards.entry(position) for position in self.indices.tolist())

    def select(self, items: npt.NDArray[np.int64] | Sequence[int]) -> ShardEntries:
        return ShardEntries(self.shards, self.indices[np.asarray(items, np.int64)])

    @property
    def shard_numbers(self) -> npt.NDArray[np.int64]:
        """The number of the shard of each item."""
        return self.shards.index.columns["shard"][self.indices].astype(np.int64)

    @property
    def identity(self) -> str:
        """Hash of the items and their order."""
        order = hashlib.sha256(np.ascontiguousarray(self.indices, np.int64).tobytes())
        return f"{self.shards.index.digest} {order.hexdigest()}"

    @property
    def version(self) -> str:
        """The identity and the versions of the shards: a cache of these items is valid as long as it is the same.

        The identity is not enough. It stays the same for other media of equal sizes in shards without a hash, and for a
        shard that was modified in place.
        """
        written = hashlib.sha256(json.dumps([*self.shards.versions]).encode())
        return f"{self.identity} {written.hexdigest()}"

    def split_names(self) -> tuple[npt.NDArray[np.uint8], list[str]]:
        """The number of the split of each item, and the names of the splits."""
        names = [(name or TRAIN_SPLIT).lower() for name in self.shards.index.splits]
        return self.shards.index.columns["split"][self.indices], names

    def split(self, fraction: float, seed: int, group: str | None) -> tuple[Indices, Indices]:
        """The same split as `split_entries` for a folder of the same names, without a Python step per item."""
        codes, names = self.split_names()
        train = np.flatnonzero(np.isin(codes, [code for code, name in enumerate(names) if name == TRAIN_SPLIT]))
        validation = np.flatnonzero(
            np.isin(codes, [code for code, name in enumerate(names) if name in VALIDATION_SPLITS])
        )
        check_fraction(fraction)
        if len(validation) or not fraction:
            return train, validation
        if group is not None:
            files = [name.decode("utf-8", "replace") for name in self.shards.index.names(self.indices[train])]
            keys = group_keys(files, group)
            chosen_keys = chosen_groups(set(keys), fraction, seed)
            chosen = np.fromiter((key in chosen_keys for key in keys), bool, len(keys))
        else:
            chosen = _chosen(self.shards.index.hashes(self.indices[train], seed), fraction)
        return train[~chosen], train[chosen]


def _chosen(hashes: npt.NDArray[np.float64], fraction: float) -> npt.NDArray[np.bool_]:
    """Mask of the validation items: hash below the fraction; neither side is empty if there are two items."""
    if len(hashes) < 2:
        return np.zeros(len(hashes), bool)
    count = min(max(int((hashes < fraction).sum()), 1), len(hashes) - 1)
    return np.asarray(hashes <= np.partition(hashes, count - 1)[count - 1])


# --- opening ------------------------------------------------------------------------------------------------------


def open_store(root: str | os.PathLike[str], cache: Path) -> Store:
    path = Path(root)
    store: Store = FolderStore(path) if path.is_dir() else FolderStore(path.parent, path.name)
    return RemoteStore(str(root), cache) if is_url(root) else store


def open_set(root: str | os.PathLike[str], cache: str | None = None) -> ShardSet:
    """The shards of a folder or a URL. Shards without an index are listed once, and the cache stores the index."""
    folder = Path(cache or default_folder())
    store = open_store(root, folder)
    found = store.list_shards()
    if found and found[0].name.lower().endswith(PARQUET):
        store = UnpackedStore(store, folder)
    beside = store.index()
    if beside is not None:
        index = ShardIndex.open(beside)
        _check_fit(index, found, store.label)
    else:
        if not found:
            raise UsageError(f"no shard in {store.label}: expected .tar or .parquet files")
        index = _cached_index(store, found, folder / "indexes")
    return ShardSet(index, store, [each.version for each in found])


def _check_fit(index: ShardIndex, found: Sequence[ShardFile], label: str) -> None:
    """Check that an index lists exactly the shards beside it."""
    sizes = {each.name: each.size for each in found}
    again = f"delete {index.path.name} to build a new index, or run `quintet data shard` again"
    for shard in index.shards:
        if shard.name not in sizes:
            raise UsageError(
                f"the shard {shard.name}, which the index names, is missing in {label}; restore it, or {again}"
            )
        if sizes[shard.name] != shard.size:
            raise UsageError(
                f"the index of {label} does not match its shards: {shard.name} has {sizes[shard.name]} bytes instead "
                f"of {shard.size}; restore it, or {again}"
            )
    if more := sorted(sizes.keys() - {shard.name for shard in index.shards}):
        raise UsageError(
            f"the index of {label} does not match its shards: it does not name the shard {more[0]}; {again}"
        )


def _cached_index(store: Store, found: Sequence[ShardFile], folder: Path) -> ShardIndex:
    key = hashlib.sha256(json.dumps([FORMAT, store.label, *found]).encode()).hexdigest()[:32]
    path = folder / f"{key}.safetensors"
    with exclusive_lock(folder / f"{key}.lock"):
        if not path.exists():
            say(f"{store.label} has no index: listing its {len(found)} shards, once", any_rank=True)
            build_index(store, found).write(path)
    return ShardIndex.open(path)


def scan_shards(
    root: str | os.PathLike[str],
    extensions: frozenset[str],
    *,
    allow_empty: bool = False,
    image_sequences: bool = False,
    cache: str | None = None,
) -> Scan:
    """The files with one of the extensions in the shards, like `scan` for a folder."""
    shards = open_set(root, cache)
    index = shards.index
    kinds = [
        code
        for code, kind in enumerate(index.kinds)
        if kind in extensions or (image_sequences and kind == IMAGE_SEQUENCE)
    ]
    indices = np.flatnonzero(np.isin(index.columns["kind"], kinds))
    if not len(indices) and not allow_empty:
        raise UsageError(_nothing_usable(shards, extensions))
    lengths = np.diff(index.columns["texts_end"], prepend=0)[indices]
    missing = int((lengths == 0).sum())
    notes = [*index.notes]
    uncaptioned = None
    if 0 < missing < len(indices):
        uncaptioned = f"{missing} of {len(indices)} files have no caption in the shards"
        notes.append(uncaptioned)
    if IMAGE_SEQUENCE in index.kinds and not image_sequences:
        count = int((index.columns["kind"] == index.kinds.index(IMAGE_SEQUENCE)).sum())
        notes.append(f"films of numbered pictures (key.001.png, …), which only recipes of video use: {count}")
    captions_from = "shards" if missing < len(indices) else "none"
    marker = read_marker(shards.store.marker())
    entries = ShardEntries(shards, indices)
    return Scan(entries, [*index.skipped], captions_from, [], len(indices), notes, marker, uncaptioned=uncaptioned)


def _nothing_usable(shards: ShardSet, extensions: frozenset[str]) -> str:
    index = shards.index
    counts = np.bincount(index.columns["kind"], minlength=len(index.kinds))
    seen = ", ".join(f"{count} {kind}" for kind, count in zip(index.kinds, counts, strict=True) if count)
    return (
        f"no usable file in the {len(index.shards)} shards of {shards.store.label}: expected "
        f"{', '.join(sorted(extensions))}, found {seen or 'no media'}"
    )
