"""Owns a set of shards as a data set: its items in a fixed order, with captions, and their bytes on demand.

To the recipes it is a folder: each media file in a shard is an entry with the name it has there. Which items there are
is a matter of the index alone, so order, split and resumption are what they are for a folder, whatever the number of
processes and workers; a shard is opened when an item of it is read.
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
from typing import Any, overload
from weakref import finalize

import numpy as np
import numpy.typing as npt

from quintet.common.caches import default_folder, only_writer
from quintet.common.logging import say
from quintet.data.index.entry import (
    TRAIN_SPLIT,
    VALIDATION_SPLITS,
    Entry,
    Scan,
    Stamp,
    check_split,
    chosen_groups,
    group_keys,
)
from quintet.data.index.marker import read_marker
from quintet.data.index.shard_index import FILM, FORMAT, Row, ShardIndex
from quintet.data.index.shard_listing import UnpackedStore, build_index
from quintet.data.index.shard_store import PARQUET, FolderStore, RemoteStore, ShardFile, Store, is_address
from quintet.data.index.tar_members import Damaged, TarListing
from quintet.errors import RunError, UsageError
from quintet.media.files import Blob
from quintet.media.video import FRAME_EXTENSIONS

Places = npt.NDArray[np.int64]
OPEN_FILES = 128
"""Shards that one process keeps open."""


class ShardSet:
    """An index and the place of its shards, with what that place told of each: when or as what it was last written."""

    def __init__(self, index: ShardIndex, store: Store, versions: Sequence[str]) -> None:
        self.index = index
        self.store = store
        self.versions = versions
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Data workers that are not forked open files themselves."""
        return ShardSet, (self.index, self.store, self.versions)

    def entry(self, place: int) -> Entry:
        row = self.index.row(place)
        return Entry(row.name, row.text, row.split, row.extra, Stamp(row.size, 0), partial(self.blob, row))

    def blob(self, row: Row) -> Blob:
        """The bytes of an item. What is wrong with a whole shard ends the run: no item of it could be read."""
        content = self.read(row.shard, row.offset, row.size)
        if row.kind != FILM:
            return Blob(row.name, content)
        try:
            pictures = {
                member.name.rpartition(".")[0].rpartition(".")[2] + os.path.splitext(member.name)[1]: content[
                    member.offset : member.offset + member.size
                ]
                for member in TarListing(content)
                if os.path.splitext(member.name)[1].lower() in FRAME_EXTENSIONS
            }
        except Damaged as error:
            raise RunError(f"the shard {self._shown(row.shard)} is not what its index says ({error})") from None
        return Blob(row.name, pictures=pictures)

    def read(self, shard: int, offset: int, size: int) -> bytes:
        try:
            file = self._file(shard)
            content = os.pread(file.descriptor, size, offset)
            while content and len(content) < size:  # two gigabytes are the most that come at once
                more = os.pread(file.descriptor, size - len(content), offset + len(content))
                content = content + more if more else b""
        except OSError as error:
            raise RunError(f"the shard {self._shown(shard)} cannot be read: {error.strerror}") from None
        if len(content) < size:
            raise RunError(f"the shard {self._shown(shard)} is shorter than it was when the run began; put it back")
        return content

    def _file(self, shard: int) -> _OpenFile:
        file = self._open.get(shard)
        if file is None:
            # Of parquet files and of what lies elsewhere this is a copy, which may have to be made first.
            file = _OpenFile(self.store.file(self.index.shards[shard].name))
            if os.fstat(file.descriptor).st_size != self.index.shards[shard].size:
                raise RunError(f"the shard {self._shown(shard)} changed since the run began; put it back")
        with self._lock:
            self._open[shard] = file
            self._open.move_to_end(shard)
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        return file

    def _shown(self, shard: int) -> str:
        return f"{self.index.shards[shard].name} of {self.store.shown}"


class _OpenFile:
    """A file that is closed once nobody holds it any more: another thread may read what has just been put away."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        finalize(self, os.close, self.descriptor)


class ShardEntries(Sequence[Entry]):
    """Items of a set, at the places of its index; made when they are asked for."""

    def __init__(self, shards: ShardSet, places: Places) -> None:
        self.shards = shards
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> ShardEntries: ...
    def __getitem__(self, item: int | slice) -> Entry | ShardEntries:
        if isinstance(item, slice):
            return ShardEntries(self.shards, self.places[item])
        return self.shards.entry(int(self.places[item]))

    def __iter__(self) -> Iterator[Entry]:
        return (self.shards.entry(place) for place in self.places.tolist())

    def taken(self, items: npt.NDArray[np.int64] | Sequence[int]) -> ShardEntries:
        return ShardEntries(self.shards, self.places[np.asarray(items, np.int64)])

    @property
    def shard_numbers(self) -> npt.NDArray[np.int64]:
        """Of each item the number of its shard."""
        return self.shards.index.columns["shard"][self.places].astype(np.int64)

    @property
    def identity(self) -> str:
        """What the items are, and at which place each stands."""
        places = hashlib.sha256(np.ascontiguousarray(self.places, np.int64).tobytes())
        return f"{self.shards.index.digest} {places.hexdigest()}"

    @property
    def version(self) -> str:
        """The identity, and how the shards lie there: what was made of the items may be used as long as it stands.

        The identity alone would not do. It is the same for sounds of one length in shards without a hash, and for a
        shard that was changed in its place.
        """
        written = hashlib.sha256(json.dumps([*self.shards.versions]).encode())
        return f"{self.identity} {written.hexdigest()}"

    def split_names(self) -> tuple[npt.NDArray[np.uint8], list[str]]:
        """Of each item the number of its split, and the splits."""
        names = [(name or TRAIN_SPLIT).lower() for name in self.shards.index.splits]
        return self.shards.index.columns["split"][self.places], names

    def split(self, fraction: float, seed: int, group: str | None) -> tuple[Places, Places]:
        """As `split_entries` splits a folder of the same names, without a step for each item."""
        codes, names = self.split_names()
        train = np.flatnonzero(np.isin(codes, [code for code, name in enumerate(names) if name == TRAIN_SPLIT]))
        validation = np.flatnonzero(
            np.isin(codes, [code for code, name in enumerate(names) if name in VALIDATION_SPLITS])
        )
        check_split(fraction, len(self), len(train), [names[code] for code in np.unique(codes)])
        if len(validation) or not fraction:
            return train, validation
        if group is not None:
            files = [name.decode("utf-8", "replace") for name in self.shards.index.names(self.places[train])]
            keys = group_keys(files, group)
            chosen_keys = chosen_groups(set(keys), fraction, seed)
            chosen = np.fromiter((key in chosen_keys for key in keys), bool, len(keys))
        else:
            chosen = _chosen(self.shards.index.hashes(self.places[train], seed), fraction)
        return train[~chosen], train[chosen]


def _chosen(hashes: npt.NDArray[np.float64], fraction: float) -> npt.NDArray[np.bool_]:
    """Those of the validation side: below the fraction, but neither side empty where there are two."""
    if len(hashes) < 2:
        return np.zeros(len(hashes), bool)
    count = min(max(int((hashes < fraction).sum()), 1), len(hashes) - 1)
    return np.asarray(hashes <= np.partition(hashes, count - 1)[count - 1])


# --- opening ------------------------------------------------------------------------------------------------------


def open_store(root: str | os.PathLike[str], cache: Path) -> Store:
    path = Path(root)
    store: Store = FolderStore(path.parent, path.name) if path.is_file() else FolderStore(path)
    return RemoteStore(str(root), cache) if is_address(root) else store


def open_set(root: str | os.PathLike[str], cache: str | None = None) -> ShardSet:
    """The shards of a folder or an address; those without an index are listed, once: the cache keeps what was found."""
    folder = Path(cache or default_folder())
    store = open_store(root, folder)
    found = store.found()
    if found and found[0].name.lower().endswith(PARQUET):
        store = UnpackedStore(store, folder)
    beside = store.index()
    if beside is not None:
        index = ShardIndex.open(beside)
        _check_fit(index, found, store.shown)
    else:
        if not found:
            raise UsageError(f"no shard in {store.shown}: looked for .tar and .parquet files")
        index = _kept_index(store, found, folder / "indexes")
    return ShardSet(index, store, [each.version for each in found])


def _check_fit(index: ShardIndex, found: Sequence[ShardFile], shown: str) -> None:
    """An index beside its shards tells of just these."""
    sizes = {each.name: each.size for each in found}
    again = f"make the index again by deleting {index.path.name}, or the shards by `quintet data shard`"
    for shard in index.shards:
        if shard.name not in sizes:
            raise UsageError(
                f"the shard {shard.name} is missing in {shown}, which the index names; put it back, or {again}"
            )
        if sizes[shard.name] != shard.size:
            raise UsageError(
                f"the index of {shown} no longer fits: {shard.name} had {shard.size} bytes and has "
                f"{sizes[shard.name]}; put it back, or {again}"
            )
    if more := sorted(sizes.keys() - {shard.name for shard in index.shards}):
        raise UsageError(f"the index of {shown} no longer fits: it does not name the shard {more[0]}; {again}")


def _kept_index(store: Store, found: Sequence[ShardFile], folder: Path) -> ShardIndex:
    key = hashlib.sha256(json.dumps([FORMAT, store.shown, *found]).encode()).hexdigest()[:32]
    path = folder / f"{key}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder / f"{key}.lock"):
        if not path.exists():
            say(f"{store.shown} has no index: its {len(found)} shards are listed, once", any_rank=True)
            build_index(store, found).write(path)
    return ShardIndex.open(path)


def scan_shards(
    root: str | os.PathLike[str],
    extensions: frozenset[str],
    *,
    allow_empty: bool = False,
    films: bool = False,
    cache: str | None = None,
) -> Scan:
    """What `scan` of a folder finds, in shards."""
    shards = open_set(root, cache)
    index = shards.index
    wanted = [code for code, kind in enumerate(index.kinds) if kind in extensions or (films and kind == FILM)]
    places = np.flatnonzero(np.isin(index.columns["kind"], wanted))
    if not len(places) and not allow_empty:
        raise UsageError(_nothing_usable(shards, extensions))
    lengths = np.diff(index.columns["texts_end"], prepend=0)[places]
    missing = int((lengths == 0).sum())
    notes = [*index.notes]
    if 0 < missing < len(places):
        notes.append(f"{missing} of {len(places)} files have no caption in the shards")
    if FILM in index.kinds and not films:
        count = int((index.columns["kind"] == index.kinds.index(FILM)).sum())
        notes.append(f"films of numbered pictures (key.001.png, …), which only recipes of video use: {count}")
    told = "shards" if missing < len(places) else "none"
    marker = read_marker(shards.store.marker())
    return Scan(ShardEntries(shards, places), [*index.skipped], told, [], len(places), notes, marker)


def _nothing_usable(shards: ShardSet, extensions: frozenset[str]) -> str:
    index = shards.index
    counts = np.bincount(index.columns["kind"], minlength=len(index.kinds))
    seen = ", ".join(f"{count} {kind}" for kind, count in zip(index.kinds, counts, strict=True) if count)
    return (
        f"no usable file in the {len(index.shards)} shards of {shards.store.shown}: looked for "
        f"{', '.join(sorted(extensions))}, found {seen or 'no media at all'}"
    )
