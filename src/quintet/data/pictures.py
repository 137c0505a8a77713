"""Owns the data of image recipes: a captioned folder, or a data set handed over in Python, as training sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from quintet.config import PictureDataConfig
from quintet.core.draw import Draw, seed_from
from quintet.core.recipe import Sources
from quintet.data.fields import Field, route
from quintet.data.folder import Entry, ImageFolder
from quintet.data.sources import split_folder
from quintet.errors import UnreadableItem
from quintet.media import image as images

MODES: dict[int, images.Mode] = {1: "L", 3: "RGB", 4: "RGBA"}
"""Channels to Pillow's name."""


class Indexable(Protocol):
    """A torch or Hugging Face data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


def folder_sources(config: PictureDataConfig, size: tuple[int, int], channels: int) -> Sources:
    """The folders that the configuration names, split for validation."""

    def folder(path: str, entries: Sequence[Entry], train: bool) -> ImageFolder:
        return ImageFolder(
            path,
            entries,
            *size,
            mode=MODES[channels],
            flip=config.flip,
            random_crop=config.random_crop,
            truncated=config.truncated,
            train=train,
            memory=config.memory_megabytes * 2**20,
        )

    return split_folder(config, images.EXTENSIONS, folder)


FIELDS = (
    Field(
        "images",
        ("image", "img", "picture", "pixels", "pixel_values"),
        lambda value: isinstance(value, Image.Image) or (hasattr(value, "ndim") and value.ndim in (2, 3)),
        "a Pillow image, a channels x height x width tensor, or a height x width x channels uint8 array",
    ),
    Field("texts", ("text", "caption", "label"), lambda value: isinstance(value, str), "a caption", required=False),
)


@dataclass
class PythonPictures:
    """Items of a person's own data set."""

    dataset: Indexable
    places: Sequence[int]
    height: int
    width: int
    channels: int
    flip: bool
    declared: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.places)

    def name(self, item: int) -> str:
        return f"item {self.places[item]}"

    def load(self, item: int, draw: Draw) -> dict[str, Any]:
        routed = route(self.dataset[self.places[item]], FIELDS, self.declared)
        picture = self._fitted(routed["images"])
        if self.flip and draw.number("flip") < 0.5:
            picture = picture.flip(-1)
        return {"images": picture, "texts": "" if routed.get("texts") is None else str(routed["texts"])}

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


def python_sources(
    dataset: Indexable,
    config: PictureDataConfig,
    size: tuple[int, int],
    channels: int,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
) -> Sources:
    """A data set object, split by fraction and seed unless a validation set comes with it."""
    declared = declared or getattr(dataset, "data_kwargs", None)
    everything = range(len(dataset))
    held_out = [] if validation is not None else _held_out(everything, config.validation_fraction, config.split_seed)
    chosen = set(held_out)
    train = [place for place in everything if place not in chosen]
    looked_at: Indexable = dataset if validation is None else validation
    places = range(len(looked_at)) if validation is not None else held_out or train

    def pictures(items: Indexable, numbers: Sequence[int], flip: bool) -> PythonPictures:
        return PythonPictures(items, numbers, *size, channels, flip, declared)

    return Sources(
        pictures(dataset, train, config.flip),
        pictures(looked_at, places, flip=False),
        f"python: {len(dataset)} items",
        about={"path": None, "dataset": type(dataset).__name__},
    )


def _held_out(places: Sequence[int], fraction: float, seed: int) -> list[int]:
    """By hash, but neither side empty where two items can be had."""
    if not fraction or len(places) < 2:
        return []
    ordered = sorted(places, key=lambda place: _hash(seed, place))
    count = sum(_hash(seed, place) < fraction for place in places)
    return sorted(ordered[: min(max(count, 1), len(places) - 1)])


def _hash(seed: int, place: int) -> float:
    return seed_from(seed, place, "validation") / 2**63
