"""Entries of a data set: one media file each, with its caption and split; their fingerprint and their split.

The `split` column decides which entries validate; without one, a hash of each file's name does.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from quintet.errors import UnreadableItem, UsageError
from quintet.media.files import Blob, MediaFile, read_file
from quintet.media.video import FRAME_EXTENSIONS, sequence_names


class Stamp(NamedTuple):
    """Size in bytes and modification time in nanoseconds, by which a changed file is recognised."""

    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One media file of a data set; `file` is its path relative to the root, with forward slashes."""

    file: str
    text: str | None = None
    split: str | None = None
    extra: dict[str, Any] = field(default_factory=dict, hash=False)
    stamp: Stamp | None = field(default=None, compare=False)
    """Size and time of the file when it was scanned."""
    stored: Callable[[], Blob] | None = field(default=None, compare=False, repr=False)
    """Reads the file from a shard; None for a file in a folder."""

    def media(self, root: str | os.PathLike[str]) -> MediaFile:
        """The file to read; raises `UnreadableItem` if it changed since the scan."""
        if self.stored is not None:
            return self.stored()
        path = os.path.join(root, self.file)
        now = stamp_of(path)
        if self.stamp is not None and now is not None and now != self.stamp:
            raise UnreadableItem(
                f"changed since the run began ({self.stamp.size} bytes then, {now.size} now, or written anew)"
            )
        return path


@dataclass(slots=True)
class Scan:
    """The entries of a folder. `found` counts media files; `skipped` lists files and metadata lines with the reason."""

    entries: Sequence[Entry]
    skipped: list[tuple[str, str]]
    captions_from: str
    columns: list[str]
    found: int
    notes: list[str]
    marker: dict[str, Any] | None = None
    """Content of `dataset.json`, the marker of a synthetic data set."""
    problem: str | None = None
    """Why the metadata cannot be used: a training would learn wrong captions and splits, and is refused."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Subfolders that quintet wrote, such as runs, and what they are; nothing in them is data."""
    uncaptioned: str | None = None
    """The one of the notes that says how many files have no caption; None if it does not apply."""


def fingerprint(root: str | os.PathLike[str], entries: Iterable[Entry]) -> str:
    """Hash of names, sizes, captions and splits; fast to compute, and equal for a copy of the folder."""
    digest = hashlib.sha256()
    for entry in entries:
        size = entry.stamp.size if entry.stamp else byte_size(os.path.join(root, entry.file))
        row = [entry.file, size, entry.text, entry.split]
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def stamp_of(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            return _sequence_stamp(path)
    except OSError:
        return None
    return Stamp(found.st_size, found.st_mtime_ns)


def _sequence_stamp(folder: str) -> Stamp:
    """The stamp of a folder of numbered images: that of all its images."""
    with os.scandir(folder) as listing:
        stats = [
            entry.stat()
            for entry in listing
            if not entry.name.startswith(".") and os.path.splitext(entry.name)[1].lower() in FRAME_EXTENSIONS
        ]
    return joined_stamp([Stamp(found.st_size, found.st_mtime_ns) for found in stats])


def read_sequence(folder: Path) -> Blob:
    """A folder of numbered images, in memory."""
    return Blob(folder.name, frames={name: read_file(folder / name) for name in sequence_names(folder)})


def joined_stamp(stamps: Sequence[Stamp]) -> Stamp:
    return Stamp(sum(each.size for each in stamps), max((each.modified for each in stamps), default=0))


def byte_size(path: str) -> int:
    """The size of a file, -1 if it does not exist."""
    stamp = stamp_of(path)
    return stamp.size if stamp else -1


TRAIN_SPLIT = "train"
VALIDATION_SPLITS = frozenset({"validation", "valid", "val"})
_EXTRA_SPLITS = frozenset(
    {"test", "testing", "withheld", "holdout", "hold-out", "hold_out", "heldout", "held-out", "held_out", "dev", "eval"}
)
"""Names that data sets give to items that are meant to be in neither training nor validation."""
_NAMED_SPLITS = 3


def split_entries(
    entries: Sequence[Entry], fraction: float, seed: int, group: str | None = None
) -> tuple[list[int], list[int]]:
    """The indices in `entries` of the training items and of the validation items.

    A `split` value decides: "train" (or no value) or "validation"; items with any other value are in neither. If no
    item has "validation", the name of each file is hashed with the seed, so adding files never moves the others.
    `group` is a regular expression that is searched in the path; files with the same first group (or match) stay in
    one split.
    """
    names = [(entry.split or TRAIN_SPLIT).lower() for entry in entries]
    train = [index for index, name in enumerate(names) if name == TRAIN_SPLIT]
    validation = [index for index, name in enumerate(names) if name in VALIDATION_SPLITS]
    check_fraction(fraction)
    if validation or not fraction:
        return train, validation
    keys = group_keys([entries[index].file for index in train], group)
    chosen = chosen_groups(set(keys), fraction, seed)
    sides: tuple[list[int], list[int]] = ([], [])
    for index, key in zip(train, keys, strict=True):
        sides[key in chosen].append(index)
    return sides


def unused_split_notes(others: Mapping[str, Sequence[Entry]]) -> list[str]:
    """Notes on the items of neither training nor validation, by the name of their split, unless it is a usual name: a
    misspelt split, or a text with an unquoted comma before it, would leave them out in silence."""
    unusual = {split: entries for split, entries in others.items() if split not in _EXTRA_SPLITS}
    notes = []
    for split, entries in list(unusual.items())[:_NAMED_SPLITS]:
        items = "1 item is" if len(entries) == 1 else f"{len(entries)} items are"
        more = ", …" if len(entries) > 1 else ""
        notes.append(f"{items} in the split '{split}', which is not used for training: {entries[0].file}{more}")
    if len(unusual) > _NAMED_SPLITS:
        notes.append(f"{len(unusual) - _NAMED_SPLITS} more splits are not used for training")
    return notes


def check_fraction(fraction: float) -> None:
    if not 0 <= fraction < 1:
        raise UsageError(f"the validation fraction must be at least 0 and less than 1, not {fraction:g}")


def no_training_items(splits: Iterable[str]) -> UsageError:
    """The error of a training on data that has items of these splits only."""
    seen = ", ".join(sorted(set(splits)))
    return UsageError(
        f"no training item is left: the `split` column, or the names of the parquet files, name {seen}, but "
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
    """The groups that validate, chosen by hash; neither side is empty if there are two groups."""
    ranks = {key: _hash(seed, key) for key in keys}
    ordered = sorted(ranks, key=lambda key: (ranks[key], key))
    if len(ordered) < 2:
        return set()
    count = sum(rank < fraction for rank in ranks.values())
    return set(ordered[: min(max(count, 1), len(ordered) - 1)])


def _hash(seed: int, key: str) -> float:
    """A number in [0, 1) that never changes between versions, so old runs stay comparable."""
    digest = hashlib.sha256(f"{seed}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
