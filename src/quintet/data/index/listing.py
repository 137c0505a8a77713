"""Listing, splitting and fingerprint of the items of a data set, which is a folder of files or a set of shards."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quintet.common.outputs import is_run
from quintet.common.printable import printable
from quintet.data.index.entry import Entry, Scan, fingerprint, split_entries
from quintet.data.index.folder import Tree, scan
from quintet.data.index.shard_store import holds_shards, is_url, output_folders
from quintet.data.index.shards import ShardEntries, scan_shards
from quintet.errors import UsageError


def list_media(
    root: str | os.PathLike[str],
    extensions: frozenset[str],
    *,
    allow_empty: bool = False,
    image_sequences: bool = False,
    cache: str | None = None,
    tree: Tree | None = None,
) -> Scan:
    """The files with one of the extensions, and their captions; `cache` is the folder of indexes and copies of shards.

    A caller that lists several media of one folder passes a shared `tree`. Without `allow_empty`, raises `UsageError`
    if there is no such file, or if the metadata cannot be used.
    """
    if is_url(root):
        return scan_shards(root, extensions, allow_empty=allow_empty, image_sequences=image_sequences, cache=cache)
    folder = Path(root)
    if is_run(folder):
        raise UsageError(f"{printable(str(root))} is a run, not data; name the folder that contains your files")
    if holds_shards(folder):
        found = scan_shards(root, extensions, allow_empty=allow_empty, image_sequences=image_sequences, cache=cache)
        found.left_out = output_folders(folder)
        return found
    found = scan(root, extensions, allow_empty=allow_empty, image_sequences=image_sequences, tree=tree)
    if found.problem is not None and not allow_empty:
        raise UsageError(f"in {printable(str(root))}: {found.problem}")
    return found


def split_items(
    entries: Sequence[Entry], fraction: float, seed: int, group: str | None = None
) -> tuple[Sequence[Entry], Sequence[Entry], dict[str, Sequence[Entry]]]:
    """The training items, the validation items, and the other items by the name of their split."""
    if isinstance(entries, ShardEntries):
        train, validation = entries.split(fraction, seed, group)
        codes, names = entries.split_names()
        unused = np.ones(len(entries), bool)
        unused[train] = unused[validation] = False
        rest = np.flatnonzero(unused)
        aside = {names[code]: rest[codes[rest] == code] for code in np.unique(codes[rest])}
        others = {name: entries.select(indices) for name, indices in sorted(aside.items())}
        return entries.select(train), entries.select(validation), {**others}
    sides = split_entries(entries, fraction, seed, group)
    used = {index for side in sides for index in side}
    rest_by_split: dict[str, list[Entry]] = defaultdict(list)
    for index, entry in enumerate(entries):
        if index not in used:
            rest_by_split[str(entry.split).lower()].append(entry)
    train_entries, validation_entries = ([entries[index] for index in side] for side in sides)
    return train_entries, validation_entries, dict(sorted(rest_by_split.items()))


def joined(first: Sequence[Entry], second: Sequence[Entry]) -> Sequence[Entry]:
    """The items of two parts of one data set."""
    if isinstance(first, ShardEntries) and isinstance(second, ShardEntries):
        return ShardEntries(first.shards, np.concatenate([first.indices, second.indices]))
    return [*first, *second]


def fingerprint_of(root: str | os.PathLike[str], entries: Sequence[Entry]) -> str:
    """Hash of names, sizes, captions and splits, equal for a copy of the data; for shards also of the hashes of their
    media, if those are known."""
    return entries.identity if isinstance(entries, ShardEntries) else fingerprint(root, entries)
