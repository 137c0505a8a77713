"""Video headers: the container format, the expected end of a file, the times of its frames, and the target size.

A decoder reads a truncated file as a shorter one, or fails only at the first clip beyond its end; so ends are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from quintet.errors import UnreadableItem
from quintet.media.budget import check_memory
from quintet.media.chunks import (
    EBML,
    MOV_BOXES,
    TruncatedFile,
    check_matroska,
    check_mov,
    check_riff,
    gif_frames,
    riff_chunks,
    size_of,
)

Clip: TypeAlias = npt.NDArray[np.uint8]
"""(frames, height, width, 3) uint8."""
Colour: TypeAlias = tuple[int, int, int]
Frames: TypeAlias = Iterator[tuple[int, npt.NDArray[np.uint8]]]
"""Indices with their frames (height, width, 3)."""

FOLDER_RATE = 25
"""Frame rate of a folder of images, which has no time stamps."""
MAX_PIXELS = 2**26
"""Most pixels of one frame; a header with more is damaged or malicious."""
MAX_ANIMATION_PIXELS = 2**30
"""Most pixels of all frames of a GIF or WebP, plus some per byte: also an empty frame costs a full canvas."""
_PIXELS_PER_BYTE = 2**12
_ANIMATION_BYTES = 24
"""Memory of a pixel of a GIF or WebP: the canvases of the decoder, and copies on the way to a frame."""
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

_UNKNOWN_SIZES = (0, 0xFFFFFFFF)
_STILL_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"II*\x00", b"MM\x00*")


def kind_of(stream: IO[bytes]) -> Kind | None:
    """The container format by content, never by extension; None for an unknown one."""
    stream.seek(0)
    start = stream.read(12)
    if start[4:8] in MOV_BOXES:
        return "mov"
    if start[:4] == EBML:
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
    size = size_of(stream)
    find = {"mov": check_mov, "matroska": check_matroska, "avi": _riff_end, "webp": _riff_end}.get(kind)
    expected = find(stream) if find else 0
    if expected > size:
        raise TruncatedFile(f"{expected} bytes promised, {size} there")
    if kind == "avi":
        check_riff(stream)


def _riff_end(stream: IO[bytes]) -> int:
    stream.seek(4)
    length = int.from_bytes(stream.read(4), "little")
    return 0 if length in _UNKNOWN_SIZES else 8 + length


# --- frames of animations -----------------------------------------------------------------------------------------


def gif_seconds(stream: IO[bytes]) -> list[float]:
    """Duration of each frame in seconds; raises `TruncatedFile` if the file ends inside a frame."""
    stream.seek(6)
    width, height = (int.from_bytes(stream.read(2), "little") for _ in range(2))
    found = []
    for frame in gif_frames(stream):
        width, height = max(width, frame.right), max(height, frame.bottom)
        found.append(effective_delay(frame.delay))
    _check_animation(width, height, len(found), size_of(stream))
    return found


def webp_seconds(stream: IO[bytes]) -> list[float]:
    """Duration of each frame in seconds; a still image has one frame."""
    found = []
    width = height = 1
    for chunk in riff_chunks(stream):
        if chunk.name == b"ANMF":
            stream.seek(chunk.start + 12)
            found.append(effective_delay(int.from_bytes(stream.read(3), "little") / 1000))
        elif chunk.name == b"VP8X":
            stream.seek(chunk.start + 4)
            width, height = (1 + int.from_bytes(stream.read(3), "little") for _ in range(2))
    _check_animation(width, height, len(found), size_of(stream), held=size_of(stream))
    return found or [DEFAULT_SECONDS]


def _check_animation(width: int, height: int, frames: int, size: int, held: int = 0) -> None:
    """Refuse an animation whose canvas exceeds the memory budget, or that is a few bytes of endless large frames."""
    check_pixels(width, height)
    pixels = width * height
    check_memory(pixels * _ANIMATION_BYTES + held, f"an animation of {width}x{height} pixels")
    if frames * pixels > MAX_ANIMATION_PIXELS + size * _PIXELS_PER_BYTE:
        raise UnreadableItem(f"damaged: {frames} frames of {width}x{height} pixels in a file of {size} bytes")


def effective_delay(seconds: float) -> float:
    return seconds if seconds > SHORTEST else DEFAULT_SECONDS
