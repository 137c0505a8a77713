"""What is known of a video before it is decoded: when its frames are shown, and how they are to be fitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

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
