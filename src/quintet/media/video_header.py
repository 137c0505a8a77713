"""What is known of a video before it is decoded: what kind it is, where it should end, when its frames are shown,
and how they are to be fitted.

A decoder takes a file that was cut as a shorter one, or finds out at the first clip beyond the cut.
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
"""Frames x height x width x 3."""
Colour: TypeAlias = tuple[int, int, int]
Frames: TypeAlias = Iterator[tuple[int, npt.NDArray[np.uint8]]]
"""Places with their pictures, in order."""

FOLDER_RATE = 25
"""Frames a second of a folder of pictures, which does not tell."""
MAX_PIXELS = 2**26
"""Of one frame; a header that promises more is damaged or means harm."""
WHITE: Colour = (255, 255, 255)


@dataclass(frozen=True, slots=True, eq=False)
class VideoHeader:
    """What a file holds, as far as that can be known without decoding it."""

    times: npt.NDArray[np.float64]
    """When each frame is shown, in seconds from the first one."""
    seconds: float
    """When the last one goes."""
    format: str
    stamps: npt.NDArray[np.int64] | None = None
    """The same in the file's own unit, by which frames are found again; none where they can only be counted."""
    starts: npt.NDArray[np.int64] | None = None
    """Of each frame the place of the one from which on it can be decoded."""

    @property
    def frames(self) -> int:
        return len(self.times)

    @property
    def rate(self) -> float:
        """Frames a second, on average."""
        return self.frames / self.seconds

    @property
    def steady(self) -> bool:
        """Whether all frames are shown for the same time, but for rounding to a hundredth of a second."""
        gaps = np.diff(self.times)
        return bool(len(gaps) == 0 or gaps.max() - gaps.min() <= max(0.0101, 0.1 * float(np.median(gaps))))


@dataclass(frozen=True, slots=True)
class Fit:
    """A size, and which part of a picture of other proportions is kept: x, y in [0, 1] place it, the same for all
    frames of a clip."""

    height: int
    width: int
    x: float = 0.5
    y: float = 0.5


def timed(seconds: Sequence[float], kind: str) -> VideoHeader:
    if not seconds:
        raise UnreadableItem("holds no frame")
    times = np.concatenate([[0.0], np.cumsum(seconds)])
    return VideoHeader(times[:-1], float(times[-1]), kind)


def check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise UnreadableItem(f"frames of {width}x{height} pixels, more than {MAX_PIXELS / 1e6:.0f} million")


Kind = Literal["mov", "matroska", "avi", "gif", "webp"]

DEFAULT_SECONDS = 0.1
"""How long browsers show a frame of a GIF or WebP whose own time is too short to be meant."""
SHORTEST = 0.0105
"""Seconds; what is shorter is not meant."""

_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)
_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"II*\x00", b"MM\x00*")


class Cut(Exception):
    """The file ends before it should; the message says where."""


def kind_of(stream: IO[bytes]) -> Kind | None:
    """By content, never by extension; none for what is no video known here."""
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


def is_picture(stream: IO[bytes]) -> bool:
    """Whether this is a single picture, of a format that never moves."""
    stream.seek(0)
    start = stream.read(12)
    return start.startswith(_PICTURES) or start[4:12] == b"ftypavif"


def check_end(stream: IO[bytes], kind: Kind) -> None:
    """`Cut` if the file is shorter than it says itself; GIF does not say, `gif_seconds` finds out."""
    size = stream.seek(0, os.SEEK_END)
    find = {"mov": _mov_end, "matroska": _matroska_end, "avi": _riff_end, "webp": _riff_end}.get(kind)
    promised = find(stream, size) if find else 0
    if promised > size:
        raise Cut(f"{promised} bytes promised, {size} there")


def _mov_end(stream: IO[bytes], size: int) -> int:
    """Where the last box on the outermost level should end."""
    place = 0
    while place + 8 <= size:
        stream.seek(place)
        head = stream.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8:  # 0: up to the end, whatever that is
            return 0
        place += length
    return place


def _matroska_end(stream: IO[bytes], size: int) -> int:
    """Where the segment should end; recordings of a browser do not say."""
    length, place = _element_size(stream, len(_EBML))
    stream.seek(place + length)
    if stream.read(4) != _SEGMENT:
        return 0
    length, place = _element_size(stream, place + length + 4)
    return 0 if length < 0 else place + length


def _element_size(stream: IO[bytes], place: int) -> tuple[int, int]:
    """The size of a Matroska element, -1 for unknown, and where its content begins."""
    stream.seek(place)
    first = stream.read(1)
    if not first or not first[0]:
        return -1, place
    width = 9 - first[0].bit_length()
    value = int.from_bytes(first + stream.read(width - 1), "big") - (1 << 7 * width)
    return (-1 if value == (1 << 7 * width) - 1 else value), place + width


def _riff_end(stream: IO[bytes], size: int) -> int:
    stream.seek(4)
    length = int.from_bytes(stream.read(4), "little")
    return 0 if length in _UNKNOWN_SIZES else 8 + length


# --- frames of animations -----------------------------------------------------------------------------------------


def gif_seconds(stream: IO[bytes]) -> list[float]:
    """How long each frame is shown; `Cut` if the file ends inside of one."""
    stream.seek(0)
    head = stream.read(13)
    place = 13 + _colour_table(head[10])
    found: list[float] = []
    delay = 0.0
    while True:
        stream.seek(place)
        kind = stream.read(1)
        if kind == b"!":  # an extension; the one of graphics tells the time
            label = stream.read(1)
            content = stream.read(5)
            if label == b"\xf9" and len(content) == 5:
                delay = int.from_bytes(content[2:4], "little") / 100
            place = _after_blocks(stream, place + 2)
        elif kind == b",":
            head = stream.read(9)
            if len(head) < 9:
                raise Cut("the file ends inside of a frame")
            place = _after_blocks(stream, place + 11 + _colour_table(head[8]))
            found.append(meant(delay))
            delay = 0.0
        elif kind == b";" or (not kind and found):  # some writers leave the last byte out
            return found
        else:
            raise Cut("the file ends inside of a frame" if found else "the file ends before its first frame")


def _colour_table(flags: int) -> int:
    """Its bytes."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(stream: IO[bytes], place: int) -> int:
    """Where a series of blocks has ended, each of which begins with its length."""
    while True:
        stream.seek(place)
        length = stream.read(1)
        if not length:
            raise Cut("the file ends inside of a frame")
        place += 1 + length[0]
        if not length[0]:
            return place


def webp_seconds(stream: IO[bytes]) -> list[float]:
    """How long each frame is shown; one frame for a picture that is none of several."""
    size = stream.seek(0, os.SEEK_END)
    found: list[float] = []
    place = 12
    while place + 8 <= size:
        stream.seek(place)
        head = stream.read(8 + 15)
        if head[:4] == b"ANMF":
            found.append(meant(int.from_bytes(head[20:23], "little") / 1000))
        length = int.from_bytes(head[4:8], "little")
        place += 8 + length + length % 2
    return found or [DEFAULT_SECONDS]


def meant(seconds: float) -> float:
    return seconds if seconds > SHORTEST else DEFAULT_SECONDS
