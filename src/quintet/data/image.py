"""Image datasets: the files of a captioned folder, or the items of a Python data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from quintet.common.batch import Item
from quintet.common.pixels import RangeReport, check_type
from quintet.common.rng import ItemRNG
from quintet.config import ImageDataConfig
from quintet.data.python_dataset import CAPTION, Field, Indexable, PythonDataset, caption_of, split_object
from quintet.data.splits import FolderDataset, Splits, split_folder
from quintet.errors import UnreadableItem
from quintet.media import image as images
from quintet.media.image_decoding import Mode, Pixels, Truncated

MODES: dict[int, Mode] = {1: "L", 3: "RGB", 4: "RGBA"}
"""Number of channels to the name of Pillow's mode."""


@dataclass
class ImageFolder(FolderDataset[Pixels]):
    """Images of a scanned folder, with their captions, as items: `images` (channels, height, width) uint8.

    Nothing is random if `train` is false: the centre crop, not flipped.
    """

    height: int
    width: int
    mode: Mode = field(default="RGB", kw_only=True)
    flip: bool = field(default=False, kw_only=True)
    random_crop: bool = field(default=False, kw_only=True)
    truncated: Truncated = field(default="skip", kw_only=True)

    def load(self, item: int, rng: ItemRNG) -> Item:
        pixels = self._random_crop(item, rng) if self.train and self.random_crop else self._centre_crop(item)
        if self.train and self.flip and rng.number("flip") < 0.5:
            pixels = pixels[:, ::-1]
        return {**self.metadata(item), "images": images.bytes_tensor(pixels)}

    @property
    def preprocessing_key(self) -> str:
        """Text of all preprocessing settings; part of the token-cache key."""
        text = f"{self.height} x {self.width} {self.mode} {self.truncated}"
        augmented = self.train and (self.flip or self.random_crop)
        return f"{text} flip={self.flip} crop={self.random_crop}" if augmented else text

    def _random_crop(self, item: int, rng: ItemRNG) -> Pixels:
        x, y = rng.number("crop-x"), rng.number("crop-y")
        return images.resize_and_crop(self._read(item), self.height, self.width, x=x, y=y)

    def _centre_crop(self, item: int) -> Pixels:
        """The same pixels every time, so they may be cached."""
        if item in self._cached:
            return self._cached[item]
        pixels = images.resize_and_crop(self._read(item), self.height, self.width)
        return self._cache(item, pixels, pixels.nbytes)

    def _read(self, item: int) -> Image.Image:
        side = max(self.height, self.width)
        return images.read_image(self._file(item), mode=self.mode, truncated=self.truncated, side=side)


def folder_splits(config: ImageDataConfig, size: tuple[int, int], channels: int) -> Splits:
    """Splits of the folders that the configuration names."""
    make = partial(
        ImageFolder,
        height=size[0],
        width=size[1],
        mode=MODES[channels],
        flip=config.flip,
        random_crop=config.random_crop,
        truncated=config.truncated,
        memory=config.memory_megabytes * 2**20,
    )
    return split_folder(config, images.EXTENSIONS, make)


FIELDS: tuple[Field, ...] = (
    Field(
        "images",
        ("image", "img", "picture", "pixels", "pixel_values"),
        lambda value: isinstance(value, Image.Image) or (hasattr(value, "ndim") and value.ndim in (2, 3)),
        "a Pillow image, a channels x height x width tensor, or a height x width x channels uint8 array",
    ),
    CAPTION,
)


def _range_report() -> RangeReport:
    """For the splits of one data set."""
    return RangeReport("an image of the dataset", "samples and metrics clamp the others")


@dataclass
class PythonImages(PythonDataset):
    """Images of a Python data set: `images` (channels, height, width), uint8 or float in [0, 1]."""

    fields = FIELDS

    height: int
    width: int
    channels: int
    flip: bool
    report_range: RangeReport = field(default_factory=_range_report, kw_only=True)

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = self.routed(item)
        image = self._fitted(routed["images"])
        if self.train and self.flip and rng.number("flip") < 0.5:
            image = image.flip(-1)
        return {"images": image, "texts": caption_of(routed)}

    def _fitted(self, value: Any) -> Tensor:
        if isinstance(value, Image.Image):
            value = images.resize_and_crop(images.upright(value, MODES[self.channels]), self.height, self.width)
        image: Tensor = value if isinstance(value, Tensor) else images.bytes_tensor(value)
        check_type(image)
        self.report_range(image)
        if image.ndim == 2:
            image = image[None]
        if image.shape[0] != self.channels:
            raise UnreadableItem(f"has {image.shape[0]} channels, model.channels is {self.channels}")
        if tuple(image.shape[1:]) == (self.height, self.width):
            return image
        scaled = F.interpolate(image[None].float(), (self.height, self.width), mode="bilinear", antialias=True)[0]
        return scaled if image.is_floating_point() else scaled.round().clamp(0, 255).to(torch.uint8)


def python_splits(
    dataset: Indexable,
    config: ImageDataConfig,
    size: tuple[int, int],
    channels: int,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
) -> Splits:
    """Splits of a Python data set, by fraction and seed unless `validation` is another data set."""
    options: dict[str, Any] = {"height": size[0], "width": size[1], "channels": channels}
    make = partial(PythonImages, **options, flip=config.flip, report_range=_range_report())
    return split_object(dataset, config, make, validation, declared)
