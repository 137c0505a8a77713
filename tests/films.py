"""Real video files for tests, in which every frame tells which one it is."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

Clip = npt.NDArray[np.uint8]

STEP = 6
"""From one frame to the next, of 255."""
CODECS = {".mp4": "libx264", ".mov": "libx264", ".mkv": "libx264", ".webm": "libvpx-vp9", ".avi": "mpeg4"}
UNHURRIED = {"libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"}, "libvpx": {"deadline": "realtime"}}


def counted(frames: int, height: int = 48, width: int = 64) -> Clip:
    """Grey frames, each lighter than the one before; the upper left corner is red."""
    greys = 20 + STEP * (np.arange(frames) % 36)
    clip = np.repeat(greys[:, None, None, None], 3, axis=3) * np.ones((1, height, width, 1))
    clip[:, : height // 3, : width // 3] = (200, 20, 20)
    return clip.astype(np.uint8)


def places_of(clip: Clip) -> list[int]:
    """Which frames these are, by the grey of their middle."""
    rows, columns = (slice(2 * side // 5, 3 * side // 5) for side in clip.shape[1:3])
    return [round((grey - 20) / STEP) for grey in clip[:, rows, columns].mean(axis=(1, 2, 3))]


def red_corner(picture: Clip) -> str:
    """Where the red corner of a frame is."""
    redness = picture[..., 0].astype(int) - picture[..., 1]
    rows, columns = np.nonzero(redness > 90)
    side = ("left", "right")[int(columns.mean() > picture.shape[1] / 2)]
    return f"{('top', 'bottom')[int(rows.mean() > picture.shape[0] / 2)]} {side}"


def write_film(
    path: Path,
    clip: Clip,
    *,
    codec: str | None = None,
    times: Sequence[int] | None = None,
    turn: int = 0,
    mirror: bool = False,
    aspect: Fraction | None = None,
    pixels: str | None = None,
    file_format: str | None = None,
    container_options: dict[str, str] | None = None,
    **options: Any,
) -> Path:
    """`times` are in hundredths of a second; without them there are ten frames a second."""
    codec = codec or CODECS[path.suffix]
    with av.open(str(path), "w", format=file_format, options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=10)
        stream.height, stream.width = clip.shape[1:3]
        stream.pix_fmt = pixels or "yuv420p"
        stream.options = {"threads": "1", **UNHURRIED.get(codec, {}), **options}
        stream.codec_context.time_base = Fraction(1, 10 if path.suffix == ".avi" else 100)
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if turn or mirror:
            stream.set_display_rotation(turn, hflip=mirror)
        container.start_encoding()
        for place, picture in enumerate(clip):
            frame = av.VideoFrame.from_ndarray(picture, "rgba" if picture.shape[-1] == 4 else "rgb24")
            frame = frame.reformat(format=stream.pix_fmt)
            frame.pts = 10 * place if times is None else times[place]
            frame.time_base = Fraction(1, 100)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path
