"""Access to media files, on disk or in memory (from a shard), and names of written files.

Readers of media take a `MediaFile` and open it with these functions, so they treat both kinds in the same way.
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

from quintet.common.files import open_regular, read_regular
from quintet.errors import UnreadableItem


@dataclass(frozen=True, slots=True)
class Blob:
    """A file in memory: its name and content. A sequence of numbered images has `frames` instead."""

    name: str
    content: bytes = field(default=b"", repr=False)
    frames: Mapping[str, bytes] | None = field(default=None, repr=False)

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    def frame(self, name: str) -> Blob:
        return Blob(name, (self.frames or {}).get(name, b""))


MediaFile = str | os.PathLike[str] | Blob
"""The argument of media readers: a path, or a file in memory."""
MediaRef = Path | Blob
"""The same, with the path as a `Path`."""


def media_ref(media: MediaFile) -> MediaRef:
    return media if isinstance(media, Blob) else Path(media)


def check_file(media: MediaRef) -> int:
    """The size of a file; raises `UnreadableItem` if it is not a regular file, or empty."""
    if isinstance(media, Blob):
        size = len(media.content)
    else:
        facts = media.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise UnreadableItem("not a regular file")
        size = facts.st_size
    if not size:
        raise UnreadableItem("empty file")
    return size


def open_file(media: MediaRef) -> IO[bytes]:
    """Open a file without its name: some decoders would trust its extension rather than its content."""
    if isinstance(media, Blob):
        return io.BytesIO(media.content)
    return open_regular(media)


@contextmanager
def decoding(reason: Callable[[Exception], str | None]) -> Iterator[None]:
    """Turn every error inside into `UnreadableItem`; `reason` translates the errors of the decoder."""
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


def read_file(media: MediaRef) -> bytes:
    return media.content if isinstance(media, Blob) else read_regular(media)


def digest_of(media: MediaRef) -> str:
    """SHA-256 of the content of a file; for a sequence of images, of its frames in order, without their names."""
    if isinstance(media, Blob) and media.frames is not None:
        hashes = [hashlib.sha256(content).digest() for content in media.frames.values()]
        return hashlib.sha256(b"".join(hashes)).hexdigest()
    with open_file(media) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


_LONGEST = 80
"""Longest caption in a name, in bytes; file systems allow 255 for the full name."""


def caption_name(number: int, caption: str, extension: str) -> str:
    """A file name such as `007-a-red-circle.mp4`. The number makes it unique and prevents empty, hidden or special
    names."""
    words = "".join(letter if letter.isalnum() else " " for letter in caption).split()
    text = "-".join(words).encode("utf-8", "ignore")[:_LONGEST].decode("utf-8", "ignore").strip("-")
    return f"{number:03d}-{text}{extension}" if text else f"{number:03d}{extension}"
