"""How a media file is got at, on the disk under its path or in memory out of an archive, and how one is named.

Readers of media take a `MediaFile` and open it here, so that what they do with its bytes is the same for both.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from quintet.errors import UnreadableItem


@dataclass(frozen=True, slots=True)
class Blob:
    """A file in memory: its name, and what is in it. A film of numbered pictures has those instead."""

    name: str
    content: bytes = field(default=b"", repr=False)
    pictures: Mapping[str, bytes] | None = field(default=None, repr=False)

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    def picture(self, name: str) -> Blob:
        return Blob(name, (self.pictures or {}).get(name, b""))


MediaFile = str | os.PathLike[str] | Blob
"""What readers of media take."""
MediaRef = Path | Blob
"""The same, once it is looked at."""


def media_ref(media: MediaFile) -> MediaRef:
    return media if isinstance(media, Blob) else Path(media)


def check_file(place: MediaRef) -> int:
    """The size of a file; `UnreadableItem` if it is none, or empty."""
    if isinstance(place, Blob):
        size = len(place.content)
    else:
        facts = place.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise UnreadableItem("not a regular file")
        size = facts.st_size
    if not size:
        raise UnreadableItem("empty file")
    return size


def open_file(place: MediaRef) -> IO[bytes]:
    """Opened without a name: some decoders would believe its extension rather than its content."""
    if isinstance(place, Blob):
        return io.BytesIO(place.content)
    return open(os.open(place, os.O_RDONLY), "rb")


@contextmanager
def decoding(reason: Callable[[Exception], str | None]) -> Iterator[None]:
    """Whatever goes wrong in here ends as `UnreadableItem`; `reason` says what errors of the decoder mean."""
    try:
        yield
    except UnreadableItem:
        raise
    except Exception as error:  # Damaged files make decoders raise nearly anything; none of it may end a run.
        raise UnreadableItem(reason(error) or _common_reason(error)) from error


def _common_reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be opened: {error.strerror}"
    return f"damaged: {error or type(error).__name__}"


def read_file(place: MediaRef) -> bytes:
    return place.content if isinstance(place, Blob) else place.read_bytes()


def digest_of(place: MediaRef) -> str:
    """A hash of what is in a file; of a film, of its pictures one after another, whatever they are called."""
    if isinstance(place, Blob) and place.pictures is not None:
        hashes = [hashlib.sha256(content).digest() for content in place.pictures.values()]
        return hashlib.sha256(b"".join(hashes)).hexdigest()
    with open_file(place) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


_LONGEST = 80
"""Bytes of the words: with a number and an extension well below what any file system takes."""


def caption_name(number: int, caption: str, extension: str) -> str:
    """`007-a-red-circle.mp4`. The number keeps equal captions apart, and a name from being one that means something:
    empty, hidden, a path, or a device."""
    words = "".join(letter if letter.isalnum() else " " for letter in caption).split()
    text = "-".join(words).encode("utf-8", "ignore")[:_LONGEST].decode("utf-8", "ignore").strip("-")
    return f"{number:03d}-{text}{extension}" if text else f"{number:03d}{extension}"
