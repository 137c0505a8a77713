"""The validation split: by the `split` column where there is one, else by a hash of each file's name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

from quintet.data.index.entry import Entry
from quintet.errors import UsageError

TRAIN_SPLIT = "train"
VALIDATION_SPLITS = frozenset({"validation", "valid", "val"})


def split_entries(
    entries: Sequence[Entry], fraction: float, seed: int, group: str | None = None
) -> tuple[list[int], list[int]]:
    """The places in `entries` of the training items and of the validation items.

    Where a `split` value is given it decides: "train" (or none), "validation"; any other name is in neither. Without
    validation items, each file's name is hashed with the seed, so adding files never moves the others. `group`
    is a regular expression searched in the file's path; files with the same first group (or match) stay together.
    """
    names = [(entry.split or TRAIN_SPLIT).lower() for entry in entries]
    train = [index for index, name in enumerate(names) if name == TRAIN_SPLIT]
    validation = [index for index, name in enumerate(names) if name in VALIDATION_SPLITS]
    check_split(fraction, len(entries), len(train), names)
    if validation or not fraction:
        return train, validation
    keys = group_keys([entries[index].file for index in train], group)
    chosen = chosen_groups(set(keys), fraction, seed)
    sides: tuple[list[int], list[int]] = ([], [])
    for index, key in zip(train, keys, strict=True):
        sides[key in chosen].append(index)
    return sides


def check_split(fraction: float, items: int, train: int, names: Iterable[str]) -> None:
    """Refuse a split that leaves nothing to train on; `names` are those of the splits."""
    if not 0 <= fraction < 1:
        raise UsageError(f"the validation fraction must be at least 0 and less than 1, not {fraction:g}")
    if items and not train:
        seen = ", ".join(sorted(set(names)))
        raise UsageError(
            f"no item is left to train on: the `split` column, or the names of the parquet files, say {seen}, and "
            f"never '{TRAIN_SPLIT}'"
        )


def group_keys(files: Sequence[str], group: str | None) -> list[str]:
    if group is None:
        return list(files)
    try:
        pattern = re.compile(group)
    except re.error as error:
        raise UsageError(f"data.validation_group is not a regular expression: {group!r} ({error})") from error
    return [_group_key(pattern.search(file), file) for file in files]


def _group_key(match: re.Match[str] | None, file: str) -> str:
    if match is None:
        return file
    return (match[1] if match.re.groups else None) or match[0]


def chosen_groups(keys: set[str], fraction: float, seed: int) -> set[str]:
    """The groups of the validation side: by hash, but neither side empty where two groups can be had."""
    ranks = {key: _hash(seed, key) for key in keys}
    ordered = sorted(ranks, key=lambda key: (ranks[key], key))
    if len(ordered) < 2:
        return set()
    count = sum(rank < fraction for rank in ranks.values())
    return set(ordered[: min(max(count, 1), len(ordered) - 1)])


def _hash(seed: int, key: str) -> float:
    """A number in [0, 1) that stays what it is for ever: runs are compared over years."""
    digest = hashlib.sha256(f"{seed}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
