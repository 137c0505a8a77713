"""Entries of a data set: one file each, with its caption and split, and the fingerprint of all of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from quintet.errors import UnreadableItem
from quintet.media.files import Blob, MediaFile, read_file
from quintet.media.video_formats import FRAME_EXTENSIONS, folder_pictures

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Stamp(NamedTuple):
    """Size in bytes and time of the last change: enough to see that a file is not what it was a moment ago."""

    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a data set; `file` is its path below the root, with forward slashes."""

    file: str
    text: str | None = None
    split: str | None = None
    extra: dict[str, Any] = field(default_factory=dict, hash=False)
    stamp: Stamp | None = field(default=None, compare=False)
    """The file as the scan found it."""
    stored: Callable[[], Blob] | None = field(default=None, compare=False, repr=False)
    """How to get at it where it is no file of its own."""

    def media(self, root: str | os.PathLike[str]) -> MediaFile:
        """What to read; `UnreadableItem` if it is not the file any more that the scan found."""
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
    """What a folder holds. `found` counts the media files seen, `skipped` names files and metadata lines left out."""

    entries: Sequence[Entry]
    skipped: list[tuple[str, str]]
    captions_from: str
    columns: list[str]
    found: int
    notes: list[str]
    marker: dict[str, Any] | None = None
    """That of a synthetic data set."""


def fingerprint(root: str | os.PathLike[str], entries: Iterable[Entry]) -> str:
    """A hash of names, byte sizes, captions and splits: cheap, and the same for a copy of the folder elsewhere."""
    digest = hashlib.sha256()
    for entry in entries:
        size = entry.stamp.size if entry.stamp else byte_size(os.path.join(root, entry.file))
        row = [entry.file, size, entry.text, entry.split]
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def printable(text: str) -> str:
    """What others wrote, fit for a terminal and a line of a log: half characters and control characters escaped."""
    whole = text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), whole)


def stamp_of(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            return _film_stamp(path)
    except OSError:
        return None
    return Stamp(found.st_size, found.st_mtime_ns)


def _film_stamp(folder: str) -> Stamp:
    """Of a folder that is a film: of all its pictures."""
    with os.scandir(folder) as listing:
        pictures = [
            entry.stat()
            for entry in listing
            if not entry.name.startswith(".") and os.path.splitext(entry.name)[1].lower() in FRAME_EXTENSIONS
        ]
    return joined_stamp([Stamp(found.st_size, found.st_mtime_ns) for found in pictures])


def film_in(folder: Path) -> Blob:
    """A folder of numbered pictures, in memory."""
    return Blob(folder.name, pictures={name: read_file(folder / name) for name in folder_pictures(folder)})


def joined_stamp(stamps: Sequence[Stamp]) -> Stamp:
    return Stamp(sum(each.size for each in stamps), max((each.modified for each in stamps), default=0))


def byte_size(path: str) -> int:
    """The size of a file, -1 where there is none."""
    stamp = stamp_of(path)
    return stamp.size if stamp else -1
