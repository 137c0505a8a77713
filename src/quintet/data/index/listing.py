"""Owns what a place of data holds, whatever it is: a folder of files, or shards. Who lists, splits or identifies the
items of a data set does it here."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quintet.data.index.entry import Entry, Scan, fingerprint, split_entries
from quintet.data.index.folder import Tree, scan
from quintet.data.index.shard_store import holds_shards, is_address
from quintet.data.index.shards import ShardEntries, scan_shards


def list_media(
    root: str | os.PathLike[str],
    extensions: frozenset[str],
    *,
    allow_empty: bool = False,
    films: bool = False,
    cache: str | None = None,
    tree: Tree | None = None,
) -> Scan:
    """The files with one of the extensions, and their captions; `cache` is where indexes and copies are kept.

    Who lists several media of one folder hands over its shared `tree`.
    """
    if is_address(root) or holds_shards(Path(root)):
        return scan_shards(root, extensions, allow_empty=allow_empty, films=films, cache=cache)
    return scan(root, extensions, allow_empty=allow_empty, films=films, tree=tree)


def split_items(
    entries: Sequence[Entry], fraction: float, seed: int, group: str | None = None
) -> tuple[Sequence[Entry], Sequence[Entry], dict[str, Sequence[Entry]]]:
    """The items to train on, those to validate with, and by the name of their split those that are neither."""
    if isinstance(entries, ShardEntries):
        train, validation = entries.split(fraction, seed, group)
        codes, names = entries.split_names()
        unused = np.ones(len(entries), bool)
        unused[train] = unused[validation] = False
        rest = np.flatnonzero(unused)
        aside = {names[code]: rest[codes[rest] == code] for code in np.unique(codes[rest])}
        others = {name: entries.taken(places) for name, places in sorted(aside.items())}
        return entries.taken(train), entries.taken(validation), {**others}
    places = split_entries(entries, fraction, seed, group)
    used = {place for side in places for place in side}
    left: dict[str, list[Entry]] = defaultdict(list)
    for place, entry in enumerate(entries):
        if place not in used:
            left[str(entry.split).lower()].append(entry)
    train_entries, validation_entries = ([entries[place] for place in side] for side in places)
    return train_entries, validation_entries, dict(sorted(left.items()))


def joined(first: Sequence[Entry], second: Sequence[Entry]) -> Sequence[Entry]:
    """All items of two parts of one data set."""
    if isinstance(first, ShardEntries) and isinstance(second, ShardEntries):
        return ShardEntries(first.shards, np.concatenate([first.places, second.places]))
    return [*first, *second]


def fingerprint_of(root: str | os.PathLike[str], entries: Sequence[Entry]) -> str:
    """A hash that changes with names, sizes, captions and splits, and is the same for a copy elsewhere; of shards that
    tell a hash of their media, with those too."""
    return entries.identity if isinstance(entries, ShardEntries) else fingerprint(root, entries)
