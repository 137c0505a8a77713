"""Video writing: H.264 in MP4 for browsers, animated GIF and WebP, and a clip as a strip of its frames.

A clip is a tensor (3, frames, height, width), uint8 or float in [0, 1], or a uint8 array (frames, height, width, 3).
Files are written atomically.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from PIL import Image

from quintet.common.files import atomic_write
from quintet.errors import UsageError
from quintet.media.image import to_uint8
from quintet.media.video_header import Clip

if TYPE_CHECKING:
    from torch import Tensor

Video: TypeAlias = "Tensor | Clip"

QUALITY = 18
"""CRF of H.264, from 0 (lossless) to 51; at 18 the loss is barely visible."""
_BT709 = 1
_LIMITED_RANGE = 1


def write_video(video: Video, path: str | os.PathLike[str], rate: float = 8.0) -> Path:
    """Write a clip as MP4, GIF or lossless WebP, depending on the extension, at `rate` frames per second."""
    path = Path(path)
    write = _WRITERS.get(path.suffix.lower())
    if write is None:
        raise UsageError(f"cannot write {path}: '{path.suffix}' is not among {', '.join(_WRITERS)}")
    clip = as_clip(video)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, durable=False) as temporary:
        write(clip, temporary, rate)
    return path


def filmstrip(video: Video, max_frames: int = 17, padding: int = 1) -> Clip:
    """The frames of a clip side by side on white, as one image; at most `max_frames`, evenly spaced."""
    clip = as_clip(video)
    shown = clip[np.linspace(0, len(clip) - 1, min(max_frames, len(clip))).round().astype(int)]
    padded = np.pad(shown, ((0, 0), (padding, padding), (padding, padding), (0, 0)), constant_values=255)
    return np.concatenate(list(padded), axis=1)


def as_clip(video: Video) -> Clip:
    """A clip as a uint8 array (frames, height, width, 3); floats are clamped to [0, 1], NaN is black."""
    clip = video if isinstance(video, np.ndarray) else to_uint8(video.movedim(0, 1))
    if clip.ndim != 4 or clip.shape[-1] != 3 or clip.dtype != np.uint8 or not clip.size:
        raise ValueError(
            "a clip is a tensor 3 x frames x height x width or an array of bytes frames x height x width x 3, "
            f"not {tuple(video.shape)}"
        )
    return clip


def _write_mp4(clip: Clip, path: Path, rate: float) -> None:
    import av

    # Chroma is subsampled by two, so sides must be even.
    even = np.pad(clip, ((0, 0), (0, clip.shape[1] % 2), (0, clip.shape[2] % 2), (0, 0)), mode="edge")
    with av.open(str(path.absolute()), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(rate).limit_denominator(1000))
        stream.height, stream.width = even.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": str(QUALITY)}
        context = stream.codec_context
        context.thread_count = 1
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        context.color_range = _LIMITED_RANGE
        for image in even:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), "rgb24")
            converted = frame.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG", threads=1)
            container.mux(stream.encode(converted))
        container.mux(stream.encode())


def _write_gif(clip: Clip, path: Path, rate: float) -> None:
    _save(clip, path, "GIF", round(100 / rate) * 10)


def _write_webp(clip: Clip, path: Path, rate: float) -> None:
    _save(clip, path, "WEBP", round(1000 / rate), lossless=True, method=0, quality=0)


def _save(clip: Clip, path: Path, file_format: str, milliseconds: int, **options: object) -> None:
    first, *rest = (Image.fromarray(frame) for frame in clip)
    with path.open("wb") as stream:
        first.save(
            stream, file_format, save_all=True, append_images=rest, duration=max(milliseconds, 20), loop=0, **options
        )


_WRITERS: dict[str, Callable[[Clip, Path, float], None]] = {
    ".mp4": _write_mp4,
    ".gif": _write_gif,
    ".webp": _write_webp,
}
