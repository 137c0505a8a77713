"""Image files: reading them whatever their state, fitting them to a size, and writing images and grids.

Layouts are one rule: an array is height x width x channels, a tensor is channels x height x width. Bytes are
0-255, floats 0-1. A picture that cannot be used raises `UnreadableItem` with the reason; Pillow's own errors and
warnings never leave `image_decoding.py`. Importing this file does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, features

from quintet.common.files import atomic_write
from quintet.errors import UsageError
from quintet.media.files import MediaFile, media_ref
from quintet.media.image_decoding import (
    CHANNELS,
    GAP,
    MAX_PIXELS,
    MIN_SIDE,
    TRANSPOSE,
    ImageFacts,
    Mode,
    Pixels,
    Request,
    Truncated,
    convert,
    flatten,
    floats_to_bytes,
    orientation_of,
    read,
)

if TYPE_CHECKING:
    from torch import Tensor

EXTENSIONS = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
    | ({".avif"} if features.check("avif") else set())
)
ImageLike: TypeAlias = "Tensor | npt.NDArray[Any]"


def read_image(
    path: MediaFile,
    *,
    mode: Mode = "RGB",
    truncated: Truncated = "skip",
    side: int | None = None,
    max_pixels: int = MAX_PIXELS,
    min_side: int = MIN_SIDE,
) -> Image.Image:
    """The first frame of a file, upright, in `mode`; transparency lies on white unless `mode` keeps it.

    `side` is the longer side that will be needed in the end: a larger JPEG is then decoded at a half, a quarter
    or an eighth of its size, which costs a fraction of the time. `truncated="use"` takes what is there of a
    file that ends too early.
    """
    return read(media_ref(path), Request(mode, truncated, side, max_pixels, min_side))[0]


def upright(image: Image.Image, mode: Mode = "RGB") -> Image.Image:
    """An image that somebody else opened, by the rules of `read_image`."""
    image.load()
    method = TRANSPOSE.get(orientation_of(image))
    return convert(image if method is None else image.transpose(method), mode)


def probe_image(path: MediaFile, *, truncated: Truncated = "skip") -> ImageFacts:
    """What a file holds, after decoding it by the rules of `read_image`: what passes here can be trained on."""
    return read(media_ref(path), Request("RGB", truncated, 1, MAX_PIXELS, MIN_SIDE))[1]


def resize_and_crop(image: Image.Image | Pixels, height: int, width: int, *, x: float = 0.5, y: float = 0.5) -> Pixels:
    """Scale until the picture just covers height x width, cut off what is beyond; x, y in [0, 1] place the window.

    The window is taken from the source before scaling, so a panorama is never blown up as a whole.
    """
    if not isinstance(image, Image.Image):
        image = _from_array(image)
    scale = min(image.width / width, image.height / height)
    left, right = _window(image.width, width * scale, x)
    top, bottom = _window(image.height, height * scale, y)
    resized = image.resize((width, height), Image.Resampling.BICUBIC, box=(left, top, right, bottom), reducing_gap=GAP)
    return _to_array(resized)


def to_tensor(pixels: Pixels) -> Tensor:
    """Bytes, height x width x channels, as floats in [0, 1], channels x height x width."""
    return bytes_tensor(pixels).float().div_(255)


def bytes_tensor(pixels: Pixels) -> Tensor:
    """Bytes, height x width x channels, as a uint8 tensor, channels x height x width."""
    import torch

    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def to_uint8(tensor: Tensor) -> Pixels:
    """A tensor (..., channels, height, width) as bytes (..., height, width, channels); floats clamped to [0, 1]."""
    array: npt.NDArray[Any] = _detached(tensor).movedim(-3, -1).contiguous().numpy()
    return array if array.dtype == np.uint8 else floats_to_bytes(array)


def write_image(picture: ImageLike, path: str | os.PathLike[str]) -> Path:
    """Write a tensor (CHW) or array (HWC) in the format of the path's extension; the file appears whole or not."""
    path = Path(path)
    file_format = Image.registered_extensions().get(path.suffix.lower())
    if file_format is None or file_format not in Image.SAVE:
        raise UsageError(f"cannot write {path}: '{path.suffix}' is no image format; use .png")
    image = _from_array(_as_pixels(picture))
    if file_format == "JPEG":
        image = image.convert("RGB") if image.mode == "L" else flatten(image)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, durable=False) as temporary, temporary.open("wb") as stream:
        image.save(stream, format=file_format)
    return path


def image_grid(pictures: Sequence[ImageLike], columns: int, padding: int = 2) -> Pixels:
    """The pictures row by row on white, as one RGB array; tensors are CHW, arrays HWC, sizes may differ."""
    if not pictures or columns < 1:
        raise ValueError("a grid needs at least one picture and one column")
    cells = [_as_rgb(_as_pixels(picture)) for picture in pictures]
    columns = min(columns, len(cells))
    rows = -(-len(cells) // columns)
    height = max(cell.shape[0] for cell in cells) + padding
    width = max(cell.shape[1] for cell in cells) + padding
    grid = np.full((rows * height + padding, columns * width + padding, 3), 255, np.uint8)
    for index, cell in enumerate(cells):
        top = padding + index // columns * height
        left = padding + index % columns * width
        grid[top : top + cell.shape[0], left : left + cell.shape[1]] = cell
    return grid


# Arrays and tensors


def _window(length: int, wanted: float, position: float) -> tuple[float, float]:
    """Where a window begins and ends; on whole pixels, so that cropping without scaling does not blur."""
    room = max(0.0, length - wanted)
    start = min(int(room), int(room * position + 0.5))
    return start, min(start + wanted, length)


def _to_array(image: Image.Image) -> Pixels:
    array = np.array(image, np.uint8)
    return array[:, :, None] if array.ndim == 2 else array


def _from_array(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels))


def _detached(tensor: Tensor) -> Tensor:
    import torch

    tensor = tensor.detach().cpu()
    return tensor if tensor.dtype == torch.uint8 else tensor.float()


def _as_pixels(picture: ImageLike) -> Pixels:
    if not isinstance(picture, np.ndarray):
        pixels = to_uint8(picture)
    elif picture.dtype == np.uint8:
        pixels = picture
    else:
        pixels = floats_to_bytes(picture)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[-1] not in CHANNELS.values():
        raise ValueError(
            f"a picture is a CHW tensor or an HWC array with 1, 3 or 4 channels, not {tuple(picture.shape)}"
        )
    return pixels


def _as_rgb(pixels: Pixels) -> Pixels:
    if pixels.shape[-1] == 4:
        return _to_array(flatten(_from_array(pixels)))
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
