"""Datasets of images: the files of a captioned folder, or a data set handed over in Python."""

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
from quintet.common.rng import ItemRNG
from quintet.config import ImageDataConfig
from quintet.data.python_dataset import CAPTION, Field, Indexable, PythonDataset, caption_of, split_object
from quintet.data.splits import FolderDataset, Splits, split_folder
from quintet.errors import UnreadableItem
from quintet.media import image as images
from quintet.media.image_decoding import Mode, Pixels, Truncated

MODES: dict[int, Mode] = {1: "L", 3: "RGB", 4: "RGBA"}
"""Channels to Pillow's name."""


@dataclass
class ImageFolder(FolderDataset[Pixels]):
    """Images of a scanned folder as training items: bytes, (channels, height, width), and their captions.

    With `train` false nothing is random: the centre, unflipped.
    """

    height: int
    width: int
    mode: Mode = field(default="RGB", kw_only=True)
    flip: bool = field(default=False, kw_only=True)
    random_crop: bool = field(default=False, kw_only=True)
    truncated: Truncated = field(default="skip", kw_only=True)

    def load(self, item: int, rng: ItemRNG) -> Item:
        pixels = self._moved(item, rng) if self.train and self.random_crop else self._centred(item)
        if self.train and self.flip and rng.number("flip") < 0.5:
            pixels = pixels[:, ::-1]
        return {**self.metadata(item), "images": images.bytes_tensor(pixels)}

    @property
    def preprocessing_key(self) -> str:
        """How files become items: with the files themselves, all that the codes of items depend on."""
        text = f"{self.height} x {self.width} {self.mode} {self.truncated}"
        moved = self.train and (self.flip or self.random_crop)
        return f"{text} flip={self.flip} crop={self.random_crop}" if moved else text

    def _moved(self, item: int, rng: ItemRNG) -> Pixels:
        x, y = rng.number("crop-x"), rng.number("crop-y")
        return images.resize_and_crop(self._read(item), self.height, self.width, x=x, y=y)

    def _centred(self, item: int) -> Pixels:
        """Always the same pixels, so they may be kept."""
        if item in self._kept:
            return self._kept[item]
        pixels = images.resize_and_crop(self._read(item), self.height, self.width)
        return self._keep(item, pixels, pixels.nbytes)

    def _read(self, item: int) -> Image.Image:
        side = max(self.height, self.width)
        return images.read_image(self._file(item), mode=self.mode, truncated=self.truncated, side=side)


def folder_splits(config: ImageDataConfig, size: tuple[int, int], channels: int) -> Splits:
    """The folders that the configuration names, split for validation."""
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


@dataclass
class PythonImages(PythonDataset):
    """Images of a person's own data set."""

    fields = FIELDS

    height: int
    width: int
    channels: int
    flip: bool

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = self.routed(item)
        image = self._fitted(routed["images"])
        if self.train and self.flip and rng.number("flip") < 0.5:
            image = image.flip(-1)
        return {"images": image, "texts": caption_of(routed)}

    def _fitted(self, value: Any) -> Tensor:
        if isinstance(value, Image.Image):
            value = images.resize_and_crop(images.upright(value, MODES[self.channels]), self.height, self.width)
        picture: Tensor = value if isinstance(value, Tensor) else images.bytes_tensor(value)
        if picture.ndim == 2:
            picture = picture[None]
        if picture.shape[0] != self.channels:
            raise UnreadableItem(f"has {picture.shape[0]} channels, model.channels is {self.channels}")
        if tuple(picture.shape[1:]) == (self.height, self.width):
            return picture
        scaled = F.interpolate(picture[None].float(), (self.height, self.width), mode="bilinear", antialias=True)[0]
        return scaled if picture.is_floating_point() else scaled.round().clamp(0, 255).to(torch.uint8)


def python_splits(
    dataset: Indexable,
    config: ImageDataConfig,
    size: tuple[int, int],
    channels: int,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
) -> Splits:
    """A data set object, split by fraction and seed unless a validation set comes with it."""
    make = partial(PythonImages, height=size[0], width=size[1], channels=channels, flip=config.flip)
    return split_object(dataset, config, make, validation, declared)
