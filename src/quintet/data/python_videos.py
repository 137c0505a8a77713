"""Owns clips of a data set handed over in Python as training sources. An item comes out as `VideoFolder` of
`data/video.py` gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from quintet.common.batch import Item
from quintet.common.rng import ItemRNG
from quintet.config import VideoDataConfig
from quintet.data.fields import Field, route
from quintet.data.python_sets import Indexable, split_object
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem, UsageError
from quintet.media import image as images
from quintet.media.video import Clip, clip_tensor, stride_frames
from quintet.media.video_writing import as_clip

FIELDS = (
    Field(
        "videos",
        ("video", "clip", "frames", "images", "image"),
        lambda value: hasattr(value, "ndim") and value.ndim in (3, 4),
        "a 3 x frames x height x width tensor, a frames x height x width x 3 uint8 array, or one picture",
    ),
    Field("texts", ("text", "caption", "label"), lambda value: isinstance(value, str), "a caption", required=False),
)


@dataclass
class PythonVideos:
    """Items of a person's own data set; a picture is a clip of one frame."""

    dataset: Indexable
    places: Sequence[int]
    height: int
    width: int
    config: VideoDataConfig
    train: bool
    declared: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.places)

    def name(self, item: int) -> str:
        return f"item {self.places[item]}"

    def load(self, item: int, draw: ItemRNG) -> Item:
        routed = self._routed(item)
        clip = _clip(routed["videos"])
        start = draw.number("start") if self.train else 0.5
        clip = clip[stride_frames(len(clip), self.config.frames, self.config.stride, start)]
        moved = self.train and self.config.random_crop
        x, y = (draw.number("crop-x"), draw.number("crop-y")) if moved else (0.5, 0.5)
        if clip.shape[1:3] != (self.height, self.width):
            clip = np.stack([images.resize_and_crop(frame, self.height, self.width, x=x, y=y) for frame in clip])
        if self.train and self.config.flip and draw.number("flip") < 0.5:
            clip = clip[:, :, ::-1]
        return {"texts": _text(routed), "videos": clip_tensor(clip)}

    def metadata(self, item: int) -> Item:
        """The text alone; of most data sets the clip has to be made for it all the same."""
        return {"texts": _text(self._routed(item))}

    def _routed(self, item: int) -> dict[str, Any]:
        return route(self.dataset[self.places[item]], FIELDS, self.declared)


def _text(routed: dict[str, Any]) -> str:
    return "" if routed.get("texts") is None else str(routed["texts"])


def _clip(value: Any) -> Clip:
    if not hasattr(value, "ndim") or value.ndim not in (3, 4):
        what = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
        raise UnreadableItem(f"has {what} for a video; expected {FIELDS[0].expects}")
    if isinstance(value, Tensor):
        if value.is_floating_point() and not value.isfinite().all():
            raise UnreadableItem("has pixels that are not finite")
        value = value[:, None] if value.ndim == 3 else value
        value = value.expand(3, -1, -1, -1) if len(value) == 1 else value
    elif value.ndim == 3:
        value = value[None]
    try:
        return as_clip(value)
    except ValueError as problem:
        raise UnreadableItem(str(problem)) from problem


def python_video_splits(
    dataset: Indexable,
    config: VideoDataConfig,
    size: tuple[int, int],
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
) -> Splits:
    """A data set object, split by fraction and seed unless a validation set comes with it."""
    if config.fps is not None:
        raise UsageError(
            "data.fps goes by time stamps, which clips of a data set in Python do not have; use data.stride"
        )

    def clips(items: Indexable, places: Sequence[int], names: Sequence[str] | None, train: bool) -> PythonVideos:
        return PythonVideos(items, places, *size, config, train, names)

    return split_object(dataset, config, clips, validation, declared)
