"""Image decoding with Pillow: formats, size limits, orientation, transparency, and damaged files.

A file that cannot be used raises `UnreadableItem` with the reason; Pillow's errors and warnings stay in this module.
"""

from __future__ import annotations

import io
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, JpegImagePlugin, TiffImagePlugin, UnidentifiedImageError, features

from quintet.errors import UnreadableItem
from quintet.media.budget import check_memory
from quintet.media.chunks import TruncatedFile, gif_frames, png_chunks, size_of
from quintet.media.files import MediaRef, check_file, decoding, open_file

Mode: TypeAlias = Literal["L", "RGB", "RGBA"]
Truncated: TypeAlias = Literal["skip", "use"]
Pixels: TypeAlias = npt.NDArray[np.uint8]

CHANNELS: dict[Mode, int] = {"L": 1, "RGB": 3, "RGBA": 4}
MAX_PIXELS = 100_000_000
"""Largest number of decoded pixels: about 400 MB of memory and a second or two of one core. Where a decoder or a
conversion needs more memory than the budget, fewer are allowed."""
MAX_JPEG_PIXELS = 2**29
"""Largest number of pixels of a JPEG that is decoded at an eighth of its size; limits time, not memory."""
MIN_SIDE = 4
MAX_JPEG_SCANS = 100
"""Largest number of scans of a progressive JPEG. Ten are usual, and ten bytes can add one that costs a full decode."""

# Only these are tried, whatever the extension: some other readers of Pillow start programs (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF") + (("AVIF",) if features.check("avif") else ())
_ANIMATED = ("GIF", "PNG", "WEBP", "AVIF")  # several images in a TIFF or a JPEG (MPO) are not an animation
_PNG_START = b"\x89PNG\r\n\x1a\n"
_MAX_EXTRA = 2**26  # bytes of one chunk beside the pixels, which Pillow holds twice
_DECODER_BYTES = {"WEBP": 12, "AVIF": 12}
"""Memory of a decoder per pixel, beside the image itself and the file: canvases and copies of them."""
_TIFF_PIXEL_BYTES = 8
_STRIP_PIXELS = 2**23
"""A larger image is converted in strips."""
_JPEG_START, _JPEG_SCAN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"
WHITE = (255, 255, 255)
TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)
# Pillow also raises an error for damaged files that it logs; without a handler Python would print the log.
logging.getLogger("PIL").addHandler(logging.NullHandler())

# Decoding at twice the final size loses nothing in the antialiased resize.
GAP = 2


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Properties of a file: its size after rotation, its format by content, and its mode in Pillow."""

    width: int
    height: int
    format: str
    mode: str
    animated: bool


@dataclass(frozen=True, slots=True)
class Request:
    mode: Mode
    truncated: Truncated
    side: int | None
    max_pixels: int
    min_side: int


def read(media: MediaRef, request: Request) -> tuple[Image.Image, ImageFacts]:
    with decoding(_reason):
        size = check_file(media)
        with pillow_silent, open_file(media) as stream:
            try:
                return _decode(stream, request)
            except (OSError, SyntaxError):
                if request.truncated == "skip" or not _is_jpeg(stream):
                    raise
                # With an end marker, libjpeg decodes what the file holds, also of a progressive one.
                check_memory(2 * size, "a truncated JPEG of this size")
                return _decode(io.BytesIO(_content(stream) + _JPEG_END), request)


def _decode(stream: IO[bytes], request: Request) -> tuple[Image.Image, ImageFacts]:
    check_structure(stream)
    image = _open(stream)
    full, mode = image.size, image.mode
    if min(full) < request.min_side:
        raise UnreadableItem(f"{full[0]}x{full[1]} pixels, smaller than {request.min_side} on a side")
    _reduce(image, request)
    reduced = image.size != full
    if image.width * image.height > request.max_pixels:
        limit = f"{request.max_pixels / 1e6:g} million"
        raise UnreadableItem(f"{full[0]}x{full[1]} pixels, more than {limit}; make the picture smaller")
    _check_decoder(image, stream)
    if _is_progressive(image) and _jpeg_scans(stream) > MAX_JPEG_SCANS:
        raise UnreadableItem(f"a progressive JPEG of more than {MAX_JPEG_SCANS} scans; save it anew")
    animated = _is_animated(image)
    _load(image, request.truncated)
    orientation = orientation_of(image)
    file_format = image.format or ""
    turned = full[::-1] if orientation in _SIDEWAYS else full
    if orientation in TRANSPOSE:
        _check_copies(image, 2)
        image = image.transpose(TRANSPOSE[orientation])
    shown = turned if reduced else image.size  # a TIFF is turned by its own reader
    return convert(image, request.mode), ImageFacts(*shown, file_format, mode, animated)


def check_structure(stream: IO[bytes]) -> None:
    """Refuse a PNG or GIF of far too many or far too large parts, on which Pillow would spend minutes or gigabytes."""
    stream.seek(0)
    start = stream.read(8)
    if start == _PNG_START:
        for chunk in png_chunks(stream):
            if chunk.name != b"IDAT" and chunk.length > _MAX_EXTRA and chunk.end <= size_of(stream):
                raise UnreadableItem(f"damaged: a part of {chunk.length / 1e6:.0f} MB beside its pixels")
    elif start[:3] == b"GIF":
        with suppress(TruncatedFile):  # Pillow decides which part of it can be used
            next(islice(gif_frames(stream), 1, None), None)
    stream.seek(0)


def _check_decoder(image: Image.Image, stream: IO[bytes]) -> None:
    """Refuse an image whose decoder needs more memory than the budget."""
    pixels, size = image.width * image.height, size_of(stream)
    needed = pixels * _pixel_bytes(image)
    if image.format in _DECODER_BYTES:
        needed += pixels * _DECODER_BYTES[image.format] + size
    elif _is_progressive(image):
        needed += pixels * 2 * len(image.getbands())  # all coefficients
    elif isinstance(image, TiffImagePlugin.TiffImageFile) and image.tile and image.tile[0][0] == "libtiff":
        fraction = min(1.0, _strip_pixels(image) / pixels)
        needed += int(fraction * (pixels * _TIFF_PIXEL_BYTES + size))
    check_memory(needed, f"a picture of {image.width}x{image.height} pixels in format {image.format}")


def _strip_pixels(image: TiffImagePlugin.TiffImageFile) -> int:
    """Pixels of the largest strip or tile, which is decoded in one piece."""
    tags = image.tag_v2
    try:
        if TiffImagePlugin.TILEWIDTH in tags:
            return int(tags[TiffImagePlugin.TILEWIDTH]) * int(tags[TiffImagePlugin.TILELENGTH])
        return int(tags[TiffImagePlugin.ROWSPERSTRIP]) * image.width
    except (KeyError, TypeError, ValueError):  # a file without this tag is one strip
        return image.width * image.height


def _check_copies(image: Image.Image, copies: int) -> None:
    what = f"a picture of {image.width}x{image.height} pixels"
    check_memory(image.width * image.height * _pixel_bytes(image) * copies, what)


def _pixel_bytes(image: Image.Image) -> int:
    """Memory of a pixel in Pillow; three channels take as much as four."""
    return 1 if image.mode in ("1", "L", "P") else 2 if image.mode.startswith("I;16") else 4


def _open(stream: IO[bytes]) -> Image.Image:
    try:
        return Image.open(stream, formats=_FORMATS)
    except Image.DecompressionBombError:
        if not _is_jpeg(stream):
            raise
    # Image.open rejects by size alone, but a JPEG can be decoded at a fraction of its size.
    stream.seek(0)
    return JpegImagePlugin.JpegImageFile(stream)


def _reduce(image: Image.Image, request: Request) -> None:
    """Decode a large JPEG at a fraction of its size. A progressive one is always decoded in full."""
    if not isinstance(image, JpegImagePlugin.JpegImageFile) or _is_progressive(image):
        return
    pixels = image.width * image.height
    if pixels > MAX_JPEG_PIXELS:
        return
    needed = min(image.size) if request.side is None else request.side * GAP
    fraction = next((part for part in (8, 4, 2) if min(image.size) >= needed * part), 1)
    while fraction < 8 and pixels > request.max_pixels * fraction**2:
        fraction *= 2
    if fraction > 1:
        image.draft(None, (image.width // fraction, image.height // fraction))


def _is_progressive(image: Image.Image) -> bool:
    return isinstance(image, JpegImagePlugin.JpegImageFile) and "progressive" in image.info


def _is_animated(image: Image.Image) -> bool:
    """Whether there is more than one frame; checked before decoding, as it moves some readers to the second frame."""
    if image.format not in _ANIMATED:
        return False
    animated = False
    with suppress(Exception):  # damage in a later frame does not matter
        animated = bool(getattr(image, "is_animated", False))
    image.seek(0)
    return animated


def _load(image: Image.Image, truncated: Truncated) -> None:
    try:
        image.load()
    except (OSError, SyntaxError):
        undecoded = getattr(image, "_im", None) is None
        if truncated == "skip" or undecoded or isinstance(image, JpegImagePlugin.JpegImageFile):
            raise
        _keep_decoded(image)


def _keep_decoded(image: Any) -> None:
    """Use the rows decoded before the end of a truncated file. An empty tile list means that nothing is left to decode.

    Pillow's own switch for this is a global variable, which would affect other threads.
    """
    image.tile = []
    if image.getbbox() is None:
        raise UnreadableItem("truncated before the first row of pixels")


def orientation_of(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF does not make an image unusable
        return 1


def convert(image: Image.Image, mode: Mode, background: tuple[int, int, int] = WHITE) -> Image.Image:
    """An image in another mode. Transparency is blended with `background` unless `mode` has alpha."""
    scale = _scale(image) if image.mode.startswith(("I", "F")) else 0
    if image.width * image.height <= _STRIP_PIXELS:
        return _converted(image, mode, background, scale)
    if image.mode == mode and not image.has_transparency_data:
        return image
    # A large image in strips, as there may be several copies of a part on the way. The result is the same.
    check_memory(
        image.width * image.height * (_pixel_bytes(image) + (1 if mode == "L" else 4)),
        f"a picture of {image.width}x{image.height} pixels",
    )
    result = Image.new(mode, image.size)
    for box in _strips(image):
        result.paste(_converted(image.crop(box), mode, background, scale), box)
    return result


def _strips(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    rows = max(1, _STRIP_PIXELS // 8 // image.width)
    for top in range(0, image.height, rows):
        yield 0, top, image.width, min(top + rows, image.height)


def _converted(image: Image.Image, mode: Mode, background: tuple[int, int, int], scale: int) -> Image.Image:
    if scale:
        image = Image.fromarray(_eight_bit(image, scale))
    if mode == "RGBA":
        return image.convert("RGBA")
    if image.has_transparency_data:
        image = flatten(image, background)
    return image.convert(mode)


def _scale(image: Image.Image) -> int:
    """Full scale of samples of 16 bits or more. 32-bit modes have none: the smallest usual one that fits is used."""
    if image.mode.startswith("I;16"):
        return 65535
    extremes = [
        (float(values.min()), float(values.max()))
        for box in _strips(image)
        for values in [np.nan_to_num(np.asarray(image.crop(box)))]
    ]
    low, high = min(pair[0] for pair in extremes), max(pair[1] for pair in extremes)
    scales = (1, 255, 65535) if image.mode == "F" else (255, 65535)
    full = next((scale for scale in scales if high <= scale), 0)
    if not full or low < 0:
        raise UnreadableItem(f"samples from {low:g} to {high:g}; save the picture with 8 or 16 bits")
    return full


def _eight_bit(image: Image.Image, scale: int) -> Pixels:
    """Scale samples of 16 bits or more to 8."""
    if image.mode.startswith("I;16"):
        pixels: Pixels = floats_to_bytes(np.arange(65536) / 65535)[np.asarray(image)]
        return pixels
    return floats_to_bytes(np.nan_to_num(np.asarray(image)) / scale)


def flatten(image: Image.Image, background: tuple[int, int, int] = WHITE) -> Image.Image:
    """Blend an image with a colour."""
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, (*background, 255)), layer).convert("RGB")


def _is_jpeg(stream: IO[bytes]) -> bool:
    stream.seek(0)
    return stream.read(len(_JPEG_START)) == _JPEG_START


def _jpeg_scans(stream: IO[bytes]) -> int:
    """Number of markers of a scan; blocks overlap by a byte, so that none is missed."""
    stream.seek(0)
    count, last = 0, b""
    while block := stream.read(2**20):
        count += (last + block).count(_JPEG_SCAN)
        last = block[-1:]
    return count


def _content(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()


def _reason(error: Exception) -> str | None:
    if isinstance(error, UnidentifiedImageError):
        return "not a picture: the content is of no known image format"
    if isinstance(error, Image.DecompressionBombError):
        return "far too many pixels; make the picture smaller"
    if "truncated" in str(error) and not getattr(error, "strerror", None):  # not an error about a file name
        return "truncated: the file ends too early (data.truncated=use takes what is there)"
    return None


class _Silence:
    """Context that suppresses Pillow's warnings, which also come as an error or do not matter.

    Warning filters are global, so the first of several concurrent readers sets them and the last one restores them.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.readers = 0
        self.saved = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self.lock:
            if not self.readers:
                self.saved = warnings.catch_warnings()
                self.saved.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
            self.readers += 1

    def __exit__(self, *raised: object) -> None:
        with self.lock:
            self.readers -= 1
            if not self.readers:
                self.saved.__exit__(None, None, None)


pillow_silent = _Silence()


def floats_to_bytes(values: npt.NDArray[np.floating[Any]]) -> Pixels:
    finite = np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0)
    pixels: Pixels = np.rint(np.clip(finite, 0, 1) * 255).astype(np.uint8)
    return pixels
