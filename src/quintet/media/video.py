"""Video files: reading a file or a clip of it, the frame indices of a clip, and the properties of a file.

A clip is a uint8 array (frames, height, width, 3). FFmpeg reads video files (`video_ffmpeg.py`), Pillow animated GIF
and WebP; a folder of numbered images is a video too, and an image is a video of one frame. The content decides, never
the extension. Frames are as a player displays them: rotated upright, with square pixels, transparency blended with a
colour. A file that cannot be used raises `UnreadableItem` with the reason; a file with fewer frames than requested
yields a shorter clip. Importing this module imports neither torch nor FFmpeg. `video_writing.py` writes videos.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image

from quintet.errors import UnreadableItem
from quintet.media import image as images
from quintet.media import video_header as headers
from quintet.media.budget import check_memory
from quintet.media.chunks import TruncatedFile
from quintet.media.files import Blob, MediaFile, MediaRef, check_file, decoding, media_ref, open_file
from quintet.media.image_decoding import convert, pillow_silent
from quintet.media.video_ffmpeg import ffmpeg_frames, ffmpeg_header, ffmpeg_size
from quintet.media.video_header import (
    FOLDER_RATE,
    WHITE,
    Clip,
    Colour,
    Fit,
    Frames,
    VideoHeader,
    check_pixels,
    header_from_durations,
)

if TYPE_CHECKING:
    from torch import Tensor

EXTENSIONS = frozenset({".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".gif", ".webp"})
FRAME_EXTENSIONS = images.EXTENSIONS - EXTENSIONS
"""Extensions of the images in a folder that is a video. GIF and WebP files are videos themselves."""

_NUMBERED = re.compile(r"(.*?)(\d+)$", re.DOTALL)


def read_header(path: MediaFile) -> VideoHeader:
    """The header of a file; raises `UnreadableItem` if the file is visibly truncated."""
    media = media_ref(path)
    with decoding(_reason):
        if _is_folder(media):
            return _folder_header(media)
        check_file(media)
        with open_file(media) as stream:
            kind = headers.kind_of(stream)
            # A still image is a video only if its extension says so; otherwise it is the wrong file.
            if media.suffix.lower() in FRAME_EXTENSIONS and headers.is_still_image(stream):
                return header_from_durations([1 / FOLDER_RATE], _IMAGE)
            if kind is None:
                raise UnreadableItem("not a video: the content is of no known video format")
            headers.check_end(stream, kind)
            if kind in ("gif", "webp"):
                seconds = headers.gif_seconds(stream) if kind == "gif" else headers.webp_seconds(stream)
                return header_from_durations(seconds, kind.upper())
        return ffmpeg_header(media, kind)


def read_frames(
    path: MediaFile,
    header: VideoHeader,
    indices: Sequence[int],
    fit: Fit | None = None,
    background: Colour = WHITE,
) -> Clip:
    """The frames at these indices (sorted, may repeat), at their own size or fitted: (frames, height, width, 3)."""
    if not len(indices) or indices[0] < 0 or indices[-1] >= header.frames or any(np.diff(indices) < 0):
        raise ValueError(f"frames {list(indices)} of a file of {header.frames}")
    clip: Clip | None = None
    for index, image in _each_frame(media_ref(path), header, sorted(set(indices)), fit, background):
        if clip is None:
            size = len(indices) * image.size
            check_memory(size, f"a clip of {len(indices)} frames of {image.shape[1]}x{image.shape[0]} pixels")
            clip = np.empty((len(indices), *image.shape), np.uint8)
        clip[bisect_left(indices, index) : bisect_right(indices, index)] = image
    assert clip is not None
    return clip


def _each_frame(
    media: MediaRef, header: VideoHeader, indices: Sequence[int], fit: Fit | None, background: Colour = WHITE
) -> Frames:
    """The frames at these distinct indices, in any order, one at a time; raises `UnreadableItem` if one is missing."""
    found: set[int] = set()
    with decoding(_reason):
        read = _folder_frames if _is_folder(media) else _READERS.get(header.format, ffmpeg_frames)
        for index, image in read(media, header, indices, fit, background):
            # The frame size of a file may change; a clip has one size.
            fit = fit or Fit(*image.shape[:2])
            found.add(index)
            yield index, image
    missing = next((index for index in indices if index not in found), None)
    if missing is not None:
        raise UnreadableItem(f"damaged: its frame at {header.times[missing]:.2f} s cannot be decoded")


# --- folders of images --------------------------------------------------------------------------------------------


def frame_order(names: Sequence[str]) -> list[str] | None:
    """The images of a folder in the order of their numbers; None if they are not numbered in one series."""
    matches = {name: _NUMBERED.match(os.path.splitext(name)[0]) for name in names}
    found = {name: (match[1], int(match[2])) for name, match in matches.items() if match}
    numbers = {number for _, number in found.values()}
    series = {prefix for prefix, _ in found.values()}
    if len(found) < len(names) or len(numbers) < len(names) or len(series) != 1:
        return None
    return sorted(names, key=lambda name: found[name][1])


def _is_folder(media: MediaRef) -> bool:
    return media.frames is not None if isinstance(media, Blob) else media.is_dir()


def sequence_names(media: MediaRef) -> list[str]:
    """The names of the images of a folder, in order of their numbers."""
    listed = media.frames or () if isinstance(media, Blob) else os.listdir(media)
    names = [
        name for name in listed if not name.startswith(".") and os.path.splitext(name)[1].lower() in FRAME_EXTENSIONS
    ]
    if not names:
        raise UnreadableItem("a folder without pictures")
    ordered = frame_order(names)
    if ordered is None:
        raise UnreadableItem("a folder of pictures that are not numbered in one series (frame-001.png, …)")
    return ordered


def _folder_header(folder: MediaRef) -> VideoHeader:
    return header_from_durations([1 / FOLDER_RATE] * len(sequence_names(folder)), "folder of images")


def _folder_frames(
    folder: MediaRef, _: VideoHeader, indices: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    names = sequence_names(folder)
    for index in indices:
        name = names[index] if index < len(names) else ""
        try:
            file = folder.frame(name) if isinstance(folder, Blob) else folder / name
            image = images.read_image(file, mode="RGBA", side=max(fit.height, fit.width) if fit else None)
        except UnreadableItem as problem:
            raise UnreadableItem(f"{name}: {problem}") from problem
        fitted = _fitted_image(image, fit, background)
        fit = fit or Fit(*fitted.shape[:2])
        yield index, fitted


def _image_frames(
    file: MediaRef, _: VideoHeader, indices: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    image = images.read_image(file, mode="RGBA", side=max(fit.height, fit.width) if fit else None)
    yield 0, _fitted_image(image, fit, background)


# --- GIF and WebP -------------------------------------------------------------------------------------------------

_PILLOW = ("GIF", "WEBP")
_IMAGE = "image"


def _pillow_frames(
    file: MediaRef, _: VideoHeader, indices: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    with pillow_silent, open_file(file) as stream, Image.open(stream, formats=_PILLOW) as image:
        check_pixels(*image.size)
        for index in indices:
            image.seek(index)
            fitted = _fitted_image(image, fit, background)
            fit = fit or Fit(*fitted.shape[:2])
            yield index, fitted


_READERS = {**dict.fromkeys(_PILLOW, _pillow_frames), _IMAGE: _image_frames}


def _fitted_image(image: Image.Image, fit: Fit | None, background: Colour) -> npt.NDArray[np.uint8]:
    shown = convert(image, "RGB", background)
    if fit is None:
        return np.asarray(shown)
    return images.resize_and_crop(shown, fit.height, fit.width, x=fit.x, y=fit.y)


# --- reasons ------------------------------------------------------------------------------------------------------


def _reason(error: Exception) -> str | None:
    if isinstance(error, TruncatedFile):
        return f"truncated: {error}"
    if type(error).__module__.startswith("av"):
        return "not a video, or a damaged one: no decoder takes its content"
    return "damaged: it has fewer frames than it says" if isinstance(error, EOFError) else None


_ROUNDING = 0.0015
"""Largest error in seconds of the difference of two times that are rounded to milliseconds."""
_PROBED_SIDE = 128
"""Longer side in pixels at which `probe_video` reads frames."""


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """Properties of a file, after decoding all of it; the size is that of displayed frames."""

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
    """The indices of `count` frames: every `stride`-th, or with `rate` that many per second.

    `start` in [0, 1) chooses among all first frames that are followed by enough others. A file that is too short yields
    fewer than `count` indices, from its first frame on.
    """
    if rate is None:
        return stride_frames(header.frames, count, stride, start)
    steps = np.arange(count) / rate
    # Start at the time of a frame: a file of exactly this rate then yields each of its frames once.
    room = int(np.searchsorted(header.times + steps[-1] + _ROUNDING, header.seconds))
    times = header.times[int(start * max(room, 1))] + steps + _ROUNDING
    sampled = times[(times < header.seconds) | (steps == 0)]
    return [int(index) for index in np.searchsorted(header.times, sampled, side="right") - 1]


def stride_frames(frames: int, count: int, stride: int, start: float) -> list[int]:
    """The indices of every `stride`-th of `frames` frames; `count` and `start` as in `clip_frames`."""
    room = max(frames - (count - 1) * stride, 1)
    return list(range(int(start * room), frames, stride))[:count]


def read_video(
    path: MediaFile,
    indices: Sequence[int] | None = None,
    *,
    fit: Fit | None = None,
    background: Colour = WHITE,
    header: VideoHeader | None = None,
) -> Clip:
    """A file, or its frames at these indices, without decoding more than needed: (frames, height, width, 3).

    Transparency is blended with `background`. A known `header` is not read again.
    """
    header = header or read_header(path)
    return read_frames(path, header, range(header.frames) if indices is None else indices, fit, background)


def probe_video(path: MediaFile) -> VideoFacts:
    """Properties of a file, after decoding all of it, one frame at a time."""
    media, header = media_ref(path), read_header(path)
    with decoding(_reason):
        width, height = _frame_size(media, header)
    scale = min(1.0, _PROBED_SIDE / max(width, height))
    fit = Fit(max(1, round(height * scale)), max(1, round(width * scale)))
    for _ in _each_frame(media, header, range(header.frames), fit):
        pass
    return VideoFacts(header.frames, header.seconds, width, height, header.format, header.rate, header.steady)


def _frame_size(media: MediaRef, header: VideoHeader) -> tuple[int, int]:
    """Width and height of the first frame, as displayed."""
    if header.format == _IMAGE or _is_folder(media):
        for _, pixels in _each_frame(media, header, [0], None):
            return pixels.shape[1], pixels.shape[0]
    if header.format in _PILLOW:
        with pillow_silent, open_file(media) as stream, Image.open(stream, formats=_PILLOW) as image:
            return image.size
    return ffmpeg_size(media, header)


def clip_tensor(clip: Clip) -> Tensor:
    """uint8 array (frames, height, width, 3) to a uint8 tensor (3, frames, height, width)."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(clip.transpose(3, 0, 1, 2)))
