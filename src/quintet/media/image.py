"""Image files: robust reading, resizing and cropping, and writing of images and grids.

Arrays are (height, width, channels), tensors are (channels, height, width); uint8 values are 0-255, floats are 0-1. An
image that cannot be used raises `UnreadableItem` with the reason; Pillow's errors and warnings never leave
`image_decoding.py`. Importing this module does not import torch.
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
    """The first frame of a file, upright, in `mode`; transparency is blended with white unless `mode` has alpha.

    `side` is the longer side of the final size: a larger JPEG is then decoded at a half, a quarter or an eighth of its
    size, which is several times faster. `truncated="use"` accepts a file that ends too early.
    """
    return read(media_ref(path), Request(mode, truncated, side, max_pixels, min_side))[0]


def upright(image: Image.Image, mode: Mode = "RGB") -> Image.Image:
    """An already opened image, converted as by `read_image`."""
    image.load()
    method = TRANSPOSE.get(orientation_of(image))
    return convert(image if method is None else image.transpose(method), mode)


def probe_image(path: MediaFile, *, truncated: Truncated = "skip") -> ImageFacts:
    """The properties of a file, after decoding it as `read_image` does."""
    return read(media_ref(path), Request("RGB", truncated, 1, MAX_PIXELS, MIN_SIDE))[1]


def resize_and_crop(image: Image.Image | Pixels, height: int, width: int, *, x: float = 0.5, y: float = 0.5) -> Pixels:
    """Scale an image to cover height x width and crop the rest; x, y in [0, 1] set the position of the crop.

    The crop is taken before scaling, so a panorama is never enlarged in full. Returns (height, width, channels) uint8.
    """
    if not isinstance(image, Image.Image):
        image = _from_array(image)
    scale = min(image.width / width, image.height / height)
    left, right = _window(image.width, width * scale, x)
    top, bottom = _window(image.height, height * scale, y)
    resized = image.resize((width, height), Image.Resampling.BICUBIC, box=(left, top, right, bottom), reducing_gap=GAP)
    return _to_array(resized)


def to_tensor(pixels: Pixels) -> Tensor:
    """uint8 array (height, width, channels) to a float tensor (channels, height, width) in [0, 1]."""
    return bytes_tensor(pixels).float().div_(255)


def bytes_tensor(pixels: Pixels) -> Tensor:
    """uint8 array (height, width, channels) to a uint8 tensor (channels, height, width)."""
    import torch

    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def to_uint8(tensor: Tensor) -> Pixels:
    """Tensor (..., channels, height, width) to uint8 (..., height, width, channels); floats are clamped to [0, 1]."""
    array: npt.NDArray[Any] = _detached(tensor).movedim(-3, -1).contiguous().numpy()
    return array if array.dtype == np.uint8 else floats_to_bytes(array)


def write_image(image: ImageLike, path: str | os.PathLike[str]) -> Path:
    """Write a tensor (CHW) or array (HWC) atomically, in the format of the path's extension."""
    path = Path(path)
    file_format = Image.registered_extensions().get(path.suffix.lower())
    if file_format is None or file_format not in Image.SAVE:
        raise UsageError(f"cannot write {path}: '{path.suffix}' is not an image format; use .png")
    encoded = _from_array(_as_pixels(image))
    if file_format == "JPEG":
        encoded = encoded.convert("RGB") if encoded.mode == "L" else flatten(encoded)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, durable=False) as temporary, temporary.open("wb") as stream:
        encoded.save(stream, format=file_format)
    return path


def image_grid(images: Sequence[ImageLike], columns: int, padding: int = 2) -> Pixels:
    """The images row by row on white, as one RGB array; tensors are CHW, arrays HWC, sizes may differ."""
    if not images or columns < 1:
        raise ValueError("a grid needs at least one image and one column")
    cells = [_as_rgb(_as_pixels(image)) for image in images]
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


def _window(length: int, size: float, position: float) -> tuple[float, float]:
    """Start and end of a window; the start is a whole pixel, so that cropping without scaling does not blur."""
    room = max(0.0, length - size)
    start = min(int(room), int(room * position + 0.5))
    return start, min(start + size, length)


def _to_array(image: Image.Image) -> Pixels:
    array = np.array(image, np.uint8)
    return array[:, :, None] if array.ndim == 2 else array


def _from_array(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels))


def _detached(tensor: Tensor) -> Tensor:
    import torch

    tensor = tensor.detach().cpu()
    return tensor if tensor.dtype == torch.uint8 else tensor.float()


def _as_pixels(image: ImageLike) -> Pixels:
    if not isinstance(image, np.ndarray):
        pixels = to_uint8(image)
    elif image.dtype == np.uint8:
        pixels = image
    else:
        pixels = floats_to_bytes(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[-1] not in CHANNELS.values():
        raise ValueError(f"an image is a CHW tensor or an HWC array with 1, 3 or 4 channels, not {tuple(image.shape)}")
    return pixels


def _as_rgb(pixels: Pixels) -> Pixels:
    if pixels.shape[-1] == 4:
        return _to_array(flatten(_from_array(pixels)))
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
