"""Video headers: the container format, the expected end of a file, the times of its frames, and the target size.

A decoder reads a truncated file as a shorter one, or fails only at the first clip beyond its end; so ends are checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from quintet.errors import UnreadableItem

Clip: TypeAlias = npt.NDArray[np.uint8]
"""(frames, height, width, 3) uint8."""
Colour: TypeAlias = tuple[int, int, int]
Frames: TypeAlias = Iterator[tuple[int, npt.NDArray[np.uint8]]]
"""Indices with their frames (height, width, 3)."""

FOLDER_RATE = 25
"""Frame rate of a folder of images, which has no time stamps."""
MAX_PIXELS = 2**26
"""Most pixels of one frame; a header with more is damaged or malicious."""
WHITE: Colour = (255, 255, 255)


@dataclass(frozen=True, slots=True, eq=False)
class VideoHeader:
    """Properties of a file that are known without decoding it."""

    times: npt.NDArray[np.float64]
    """Time of each frame in seconds from the first one, (frames,)."""
    seconds: float
    """End of the last frame, in seconds."""
    format: str
    stamps: npt.NDArray[np.int64] | None = None
    """Time stamps in the unit of the file, for seeking; None if frames can only be counted."""
    starts: npt.NDArray[np.int64] | None = None
    """Index of the keyframe from which each frame can be decoded."""

    @property
    def frames(self) -> int:
        return len(self.times)

    @property
    def rate(self) -> float:
        """Mean frame rate."""
        return self.frames / self.seconds

    @property
    def steady(self) -> bool:
        """Whether all frames have the same duration, up to rounding to a hundredth of a second."""
        gaps = np.diff(self.times)
        return bool(len(gaps) == 0 or gaps.max() - gaps.min() <= max(0.0101, 0.1 * float(np.median(gaps))))


@dataclass(frozen=True, slots=True)
class Fit:
    """A target size, and the position x, y in [0, 1] of the crop, the same for all frames of a clip."""

    height: int
    width: int
    x: float = 0.5
    y: float = 0.5


def header_from_durations(seconds: Sequence[float], kind: str) -> VideoHeader:
    if not seconds:
        raise UnreadableItem("holds no frame")
    times = np.concatenate([[0.0], np.cumsum(seconds)])
    return VideoHeader(times[:-1], float(times[-1]), kind)


def check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise UnreadableItem(f"frames of {width}x{height} pixels, more than {MAX_PIXELS / 1e6:.0f} million")


Kind = Literal["mov", "matroska", "avi", "gif", "webp"]

DEFAULT_SECONDS = 0.1
"""Duration that browsers use for a GIF or WebP frame whose own duration is too short."""
SHORTEST = 0.0105
"""Shorter durations, in seconds, are replaced by the default."""

_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)
_STILL_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"II*\x00", b"MM\x00*")


class TruncatedFile(Exception):
    """The file ends before it should; the message says where."""


def kind_of(stream: IO[bytes]) -> Kind | None:
    """The container format by content, never by extension; None for an unknown one."""
    stream.seek(0)
    start = stream.read(12)
    if start[4:8] in _BOXES:
        return "mov"
    if start[:4] == _EBML:
        return "matroska"
    if start[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if start[:4] == b"RIFF" and start[8:12] == b"AVI ":
        return "avi"
    return "webp" if start[:4] == b"RIFF" and start[8:12] == b"WEBP" else None


def is_still_image(stream: IO[bytes]) -> bool:
    """Whether this is an image of a format without animation."""
    stream.seek(0)
    start = stream.read(12)
    return start.startswith(_STILL_IMAGES) or start[4:12] == b"ftypavif"


def check_end(stream: IO[bytes], kind: Kind) -> None:
    """Raise `TruncatedFile` if the file is shorter than its header says; `gif_seconds` does this for GIF."""
    size = stream.seek(0, os.SEEK_END)
    find = {"mov": _mov_end, "matroska": _matroska_end, "avi": _riff_end, "webp": _riff_end}.get(kind)
    expected = find(stream, size) if find else 0
    if expected > size:
        raise TruncatedFile(f"{expected} bytes promised, {size} there")


def _mov_end(stream: IO[bytes], size: int) -> int:
    """Expected end of the last top-level box; 0 if unknown."""
    position = 0
    while position + 8 <= size:
        stream.seek(position)
        head = stream.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8:  # 0 means up to the end of the file
            return 0
        position += length
    return position


def _matroska_end(stream: IO[bytes], size: int) -> int:
    """Expected end of the segment; 0 if unknown, as in recordings of a browser."""
    length, position = _element_size(stream, len(_EBML))
    stream.seek(position + length)
    if stream.read(4) != _SEGMENT:
        return 0
    length, position = _element_size(stream, position + length + 4)
    return 0 if length < 0 else position + length


def _element_size(stream: IO[bytes], position: int) -> tuple[int, int]:
    """The size of a Matroska element, -1 if unknown, and the start of its content."""
    stream.seek(position)
    first = stream.read(1)
    if not first or not first[0]:
        return -1, position
    width = 9 - first[0].bit_length()
    value = int.from_bytes(first + stream.read(width - 1), "big") - (1 << 7 * width)
    return (-1 if value == (1 << 7 * width) - 1 else value), position + width


def _riff_end(stream: IO[bytes], size: int) -> int:
    stream.seek(4)
    length = int.from_bytes(stream.read(4), "little")
    return 0 if length in _UNKNOWN_SIZES else 8 + length


# --- frames of animations -----------------------------------------------------------------------------------------


def gif_seconds(stream: IO[bytes]) -> list[float]:
    """Duration of each frame in seconds; raises `TruncatedFile` if the file ends inside a frame."""
    stream.seek(0)
    head = stream.read(13)
    position = 13 + _colour_table(head[10])
    found: list[float] = []
    delay = 0.0
    while True:
        stream.seek(position)
        kind = stream.read(1)
        if kind == b"!":  # an extension; the graphics control extension has the duration
            label = stream.read(1)
            content = stream.read(5)
            if label == b"\xf9" and len(content) == 5:
                delay = int.from_bytes(content[2:4], "little") / 100
            position = _after_blocks(stream, position + 2)
        elif kind == b",":
            head = stream.read(9)
            if len(head) < 9:
                raise TruncatedFile("the file ends inside of a frame")
            position = _after_blocks(stream, position + 11 + _colour_table(head[8]))
            found.append(effective_delay(delay))
            delay = 0.0
        elif kind == b";" or (not kind and found):  # some writers omit the last byte
            return found
        else:
            raise TruncatedFile("the file ends inside of a frame" if found else "the file ends before its first frame")


def _colour_table(flags: int) -> int:
    """Size of a colour table in bytes, from its flags."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(stream: IO[bytes], position: int) -> int:
    """The end of a series of blocks, each of which starts with its length."""
    while True:
        stream.seek(position)
        length = stream.read(1)
        if not length:
            raise TruncatedFile("the file ends inside of a frame")
        position += 1 + length[0]
        if not length[0]:
            return position


def webp_seconds(stream: IO[bytes]) -> list[float]:
    """Duration of each frame in seconds; a still image has one frame."""
    size = stream.seek(0, os.SEEK_END)
    found: list[float] = []
    position = 12
    while position + 8 <= size:
        stream.seek(position)
        head = stream.read(8 + 15)
        if head[:4] == b"ANMF":
            found.append(effective_delay(int.from_bytes(head[20:23], "little") / 1000))
        length = int.from_bytes(head[4:8], "little")
        position += 8 + length + length % 2
    return found or [DEFAULT_SECONDS]


def effective_delay(seconds: float) -> float:
    return seconds if seconds > SHORTEST else DEFAULT_SECONDS
