"""Owns video as numbers: which frames of a file make a clip, reading a file or a clip of it, and what a file holds.

A clip is an array frames x height x width x 3, bytes. A file that cannot be used raises `UnreadableItem` with the
reason; a file with fewer frames than asked for can be used, and gives what it has. Importing this file imports neither
torch nor a decoder of films. `video_writing.py` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from quintet.media.files import MediaFile
from quintet.media.video_formats import EXTENSIONS, FRAME_EXTENSIONS, read_frames, read_header
from quintet.media.video_header import WHITE, Clip, Colour, Fit, VideoHeader

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "EXTENSIONS",
    "FRAME_EXTENSIONS",
    "WHITE",
    "Clip",
    "Colour",
    "Fit",
    "VideoFacts",
    "VideoHeader",
    "clip_frames",
    "clip_tensor",
    "probe_video",
    "read_header",
    "read_video",
    "stride_frames",
]

_ROUNDING = 0.0015
"""Seconds by which the times of two frames, rounded to thousandths each, may be off together."""
_BLOCK = 64
"""Frames held at once by who looks at all of them."""


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """What a file holds, once all of it was decoded; the size is that of what is shown."""

    frames: int
    seconds: float
    width: int
    height: int
    format: str
    rate: float
    steady: bool


def clip_frames(
    header: VideoHeader, count: int, *, stride: int = 1, rate: float | None = None, start: float = 0.0
) -> list[int]:
    """The places of `count` frames: every `stride`-th, or with `rate` those shown so many times a second.

    `start` in [0, 1) chooses among all first frames after which so many follow. Of a file that is too short all
    there is comes, from its first frame on, and that is less than `count`.
    """
    if rate is None:
        return stride_frames(header.frames, count, stride, start)
    steps = np.arange(count) / rate
    # From one frame's own time on: then a file of just this rate gives each of its frames once.
    room = int(np.searchsorted(header.times + steps[-1] + _ROUNDING, header.seconds))
    moments = header.times[int(start * max(room, 1))] + steps + _ROUNDING
    shown = moments[(moments < header.seconds) | (steps == 0)]
    return [int(place) for place in np.searchsorted(header.times, shown, side="right") - 1]


def stride_frames(frames: int, count: int, stride: int, start: float) -> list[int]:
    """Of so many `frames` the places of every `stride`-th; the rest as `clip_frames` has it."""
    room = max(frames - (count - 1) * stride, 1)
    return list(range(int(start * room), frames, stride))[:count]


def read_video(
    path: MediaFile,
    places: Sequence[int] | None = None,
    *,
    fit: Fit | None = None,
    background: Colour = WHITE,
    header: VideoHeader | None = None,
) -> Clip:
    """A file, or its frames at these places, without decoding more than they need; transparency over a colour.

    Whoever has the header at hand may pass it, and saves reading it again.
    """
    header = header or read_header(path)
    return read_frames(path, header, range(header.frames) if places is None else places, fit, background)


def probe_video(path: MediaFile) -> VideoFacts:
    """What a file holds, after decoding all of it: what passes here can be trained on."""
    header = read_header(path)
    fit: Fit | None = None
    for start in range(0, header.frames, _BLOCK):
        block = read_frames(path, header, range(start, min(start + _BLOCK, header.frames)), fit)
        fit = fit or Fit(*block.shape[1:3])
    assert fit is not None
    return VideoFacts(header.frames, header.seconds, fit.width, fit.height, header.format, header.rate, header.steady)


def clip_tensor(clip: Clip) -> Tensor:
    """Bytes, frames x height x width x 3, as a uint8 tensor, 3 x frames x height x width."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(clip.transpose(3, 0, 1, 2)))
