"""Video as numbers: reading a file or a clip of it, which frames make a clip, and what a file holds.

A clip is an array frames x height x width x 3, bytes. FFmpeg reads films (`video_ffmpeg.py`), Pillow the animated GIF
and WebP; a folder of numbered pictures is a film too, and a picture a film of one frame. The content decides, never the
extension. A frame is what a player shows: turned as the phone was held, as wide as its pixels say, transparency over a
colour. A file that cannot be used raises `UnreadableItem` with the reason; a file with fewer frames than asked for can
be used, and gives what it has. Importing this file imports neither torch nor a decoder of films. `video_writing.py`
writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image

from quintet.errors import UnreadableItem
from quintet.media import image as images
from quintet.media import video_header as headers
from quintet.media.files import Blob, MediaFile, MediaRef, check_file, decoding, media_ref, open_file
from quintet.media.image_decoding import pillow_silent
from quintet.media.video_ffmpeg import ffmpeg_frames, ffmpeg_header
from quintet.media.video_header import FOLDER_RATE, WHITE, Clip, Colour, Fit, Frames, VideoHeader, check_pixels, timed

if TYPE_CHECKING:
    from torch import Tensor

EXTENSIONS = frozenset({".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".gif", ".webp"})
FRAME_EXTENSIONS = images.EXTENSIONS - EXTENSIONS
"""Of the pictures in a folder that is a film. GIF and WebP are films of their own."""

_NUMBERED = re.compile(r"(.*?)(\d+)$", re.DOTALL)


def read_header(path: MediaFile) -> VideoHeader:
    """The header of a file that is whole, as far as that can be seen without decoding it."""
    place = media_ref(path)
    with decoding(_reason):
        if _is_folder(place):
            return _folder_header(place)
        check_file(place)
        with open_file(place) as stream:
            kind = headers.kind_of(stream)
            # Who calls a picture a film has been given another file than was meant.
            if place.suffix.lower() in FRAME_EXTENSIONS and headers.is_picture(stream):
                return timed([1 / FOLDER_RATE], _PICTURE)
            if kind is None:
                raise UnreadableItem("not a video: the content is of no known video format")
            headers.check_end(stream, kind)
            if kind in ("gif", "webp"):
                seconds = headers.gif_seconds(stream) if kind == "gif" else headers.webp_seconds(stream)
                return timed(seconds, kind.upper())
        return ffmpeg_header(place, kind)


def read_frames(
    path: MediaFile,
    header: VideoHeader,
    places: Sequence[int],
    fit: Fit | None = None,
    background: Colour = WHITE,
) -> Clip:
    """The frames at these places (in order; one may be asked for several times), at their own size or fitted."""
    if not len(places) or places[0] < 0 or places[-1] >= header.frames or any(np.diff(places) < 0):
        raise ValueError(f"frames {list(places)} of a file of {header.frames}")
    source = media_ref(path)
    wanted = sorted(set(places))
    with decoding(_reason):
        read = _folder_frames if _is_folder(source) else _READERS.get(header.format, ffmpeg_frames)
        found: dict[int, npt.NDArray[np.uint8]] = {}
        for place, picture in read(source, header, wanted, fit, background):
            # A file may change its size on the way; a clip has one.
            fit = fit or Fit(*picture.shape[:2])
            found[place] = picture
    missing = [place for place in wanted if place not in found]
    if missing:
        raise UnreadableItem(f"damaged: its frame at {header.times[missing[0]]:.2f} s cannot be decoded")
    return np.stack([found[place] for place in places])


# --- folders of pictures ------------------------------------------------------------------------------------------


def frame_order(names: Sequence[str]) -> list[str] | None:
    """The pictures of a folder in the order of their numbers; none if they are not numbered in one series."""
    matches = {name: _NUMBERED.match(os.path.splitext(name)[0]) for name in names}
    found = {name: (match[1], int(match[2])) for name, match in matches.items() if match}
    numbers = {number for _, number in found.values()}
    series = {prefix for prefix, _ in found.values()}
    if len(found) < len(names) or len(numbers) < len(names) or len(series) != 1:
        return None
    return sorted(names, key=lambda name: found[name][1])


def _is_folder(place: MediaRef) -> bool:
    return place.pictures is not None if isinstance(place, Blob) else place.is_dir()


def folder_pictures(place: MediaRef) -> list[str]:
    """The names of the frames of a folder, in order."""
    listed = place.pictures or () if isinstance(place, Blob) else os.listdir(place)
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
    return timed([1 / FOLDER_RATE] * len(folder_pictures(folder)), "folder of pictures")


def _folder_frames(
    folder: MediaRef, _: VideoHeader, wanted: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    names = folder_pictures(folder)
    for place in wanted:
        name = names[place] if place < len(names) else ""
        try:
            file = folder.picture(name) if isinstance(folder, Blob) else folder / name
            picture = images.read_image(file, mode="RGBA", side=max(fit.height, fit.width) if fit else None)
        except UnreadableItem as problem:
            raise UnreadableItem(f"{name}: {problem}") from problem
        fitted = _fitted_picture(picture, fit, background)
        fit = fit or Fit(*fitted.shape[:2])
        yield place, fitted


def _picture_frames(
    file: MediaRef, _: VideoHeader, places: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    picture = images.read_image(file, mode="RGBA", side=max(fit.height, fit.width) if fit else None)
    yield 0, _fitted_picture(picture, fit, background)


# --- GIF and WebP -------------------------------------------------------------------------------------------------

_PILLOW = ("GIF", "WEBP")
_PICTURE = "picture"


def _pillow_frames(
    file: MediaRef, _: VideoHeader, wanted: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    with pillow_silent, open_file(file) as stream, Image.open(stream, formats=_PILLOW) as picture:
        check_pixels(*picture.size)
        for place in wanted:
            picture.seek(place)
            fitted = _fitted_picture(picture, fit, background)
            fit = fit or Fit(*fitted.shape[:2])
            yield place, fitted


_READERS = {**dict.fromkeys(_PILLOW, _pillow_frames), _PICTURE: _picture_frames}


def _fitted_picture(picture: Image.Image, fit: Fit | None, background: Colour) -> npt.NDArray[np.uint8]:
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layer.size, (*background, 255)), layer)
    shown = picture.convert("RGB")
    if fit is None:
        return np.asarray(shown)
    return images.resize_and_crop(shown, fit.height, fit.width, x=fit.x, y=fit.y)


# --- reasons ------------------------------------------------------------------------------------------------------


def _reason(error: Exception) -> str | None:
    if isinstance(error, headers.Cut):
        return f"truncated: {error}"
    if type(error).__module__.startswith("av"):
        return "not a video, or a damaged one: no decoder takes its content"
    return "damaged: it has fewer frames than it says" if isinstance(error, EOFError) else None


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
