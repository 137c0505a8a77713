"""Video files of every format: the header of one that is whole, and single frames out of it, as they are to be seen.

FFmpeg reads films (`video_ffmpeg.py`), Pillow the animated GIF and WebP. A folder of numbered pictures is a film too,
and a picture a film of one frame.
The content decides, never the extension. A frame is what a player shows: turned as the phone was held, as wide as its
pixels say, transparency over a colour. A file that cannot be used raises `UnreadableItem` with the reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from PIL import Image

from quintet.errors import UnreadableItem
from quintet.media import image as images
from quintet.media import video_structure as structure
from quintet.media.files import Blob, MediaFile, Place, check_file, open_file, place_of
from quintet.media.image_decoding import pillow_silent
from quintet.media.video_ffmpeg import ffmpeg_frames, ffmpeg_header
from quintet.media.video_header import FOLDER_RATE, WHITE, Clip, Colour, Fit, Frames, VideoHeader, check_pixels, timed

EXTENSIONS = frozenset({".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".gif", ".webp"})
FRAME_EXTENSIONS = images.EXTENSIONS - EXTENSIONS
"""Of the pictures in a folder that is a film. GIF and WebP are films of their own."""

_NUMBERED = re.compile(r"(.*?)(\d+)$", re.DOTALL)


def read_header(path: MediaFile) -> VideoHeader:
    """The header of a file that is whole, as far as that can be seen without decoding it."""
    place = place_of(path)
    with _reasons():
        if _is_folder(place):
            return _folder_header(place)
        check_file(place)
        with open_file(place) as stream:
            kind = structure.kind_of(stream)
            # Who calls a picture a film has been given another file than was meant.
            if place.suffix.lower() in FRAME_EXTENSIONS and structure.is_picture(stream):
                return timed([1 / FOLDER_RATE], _PICTURE)
            if kind is None:
                raise UnreadableItem("not a video: the content is of no known video format")
            structure.check_end(stream, kind)
            if kind in ("gif", "webp"):
                seconds = structure.gif_seconds(stream) if kind == "gif" else structure.webp_seconds(stream)
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
    source = place_of(path)
    wanted = sorted(set(places))
    with _reasons():
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


def _is_folder(place: Place) -> bool:
    return place.pictures is not None if isinstance(place, Blob) else place.is_dir()


def folder_pictures(place: Place) -> list[str]:
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


def _folder_header(folder: Place) -> VideoHeader:
    return timed([1 / FOLDER_RATE] * len(folder_pictures(folder)), "folder of pictures")


def _folder_frames(
    folder: Place, header: VideoHeader, wanted: Sequence[int], fit: Fit | None, background: Colour
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
    file: Place, header: VideoHeader, wanted: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    picture = images.read_image(file, mode="RGBA", side=max(fit.height, fit.width) if fit else None)
    yield 0, _fitted_picture(picture, fit, background)


# --- GIF and WebP -------------------------------------------------------------------------------------------------

_PILLOW = ("GIF", "WEBP")
_PICTURE = "picture"


def _pillow_frames(
    file: Place, header: VideoHeader, wanted: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    with pillow_silent(), open_file(file) as stream, Image.open(stream, formats=_PILLOW) as picture:
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


@contextmanager
def _reasons() -> Iterator[None]:
    try:
        yield
    except UnreadableItem:
        raise
    except Exception as error:  # Damaged files make decoders raise nearly anything; none of it may end a run.
        raise UnreadableItem(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, structure.Cut):
        return f"truncated: {error}"
    if type(error).__module__.startswith("av"):
        return "not a video, or a damaged one: no decoder takes its content"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    if isinstance(error, EOFError):
        return "damaged: it has fewer frames than it says"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be opened: {error.strerror}"
    return f"damaged: {error or type(error).__name__}"
