"""Datasets of video: clips of a captioned folder, or of a data set handed over in Python, padded to batches.

An item holds `videos` (3, frames, height, width), bytes, and the `metadata` of its file. In training a clip begins at a
random frame for the item and the epoch; otherwise it is the middle of the file. All frames of a clip are scaled and
cropped alike. A file with fewer frames than asked for gives fewer: nothing is made up here, and `pad_clips` says by a
mask which frames of a batch there are. An image is a clip of one frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.common.batch import Item, collate
from quintet.common.rng import ItemRNG
from quintet.config import VideoDataConfig
from quintet.data.python_dataset import CAPTION, Field, Indexable, PythonDataset, caption_of, split_object
from quintet.data.splits import FolderDataset, HeaderCache, Splits, split_folder
from quintet.errors import UnreadableItem, UsageError
from quintet.media import image as images
from quintet.media import video as films
from quintet.media.files import MediaFile
from quintet.media.video_header import Clip, Fit, VideoHeader
from quintet.media.video_writing import as_clip

WHOLE = 4
"""Files of up to so many clips may be kept, once they are read; of longer ones clips are read."""


@dataclass
class VideoFolder(FolderDataset[Clip]):
    """Clips of a scanned folder as training items, and their captions. With `train` false nothing is random."""

    height: int
    width: int
    frames: int = field(default=17, kw_only=True)
    stride: int = field(default=1, kw_only=True)
    fps: float | None = field(default=None, kw_only=True)
    """Frames a second by time, instead of every so many."""
    flip: bool = field(default=False, kw_only=True)
    random_crop: bool = field(default=False, kw_only=True)
    _headers: HeaderCache[VideoHeader] = field(default_factory=HeaderCache, init=False, repr=False)

    def load(self, item: int, rng: ItemRNG) -> Item:
        file = self._file(item)
        header = self._header(item, file)
        start = rng.number("start") if self.train else 0.5
        places = films.clip_frames(header, self.frames, stride=self.stride, rate=self.fps, start=start)
        if self.train and self.random_crop:
            fit = Fit(self.height, self.width, rng.number("crop-x"), rng.number("crop-y"))
            clip = films.read_video(file, places, fit=fit, header=header)
        else:
            clip = self._centred(item, file, header, places)
        if self.train and self.flip and rng.number("flip") < 0.5:
            clip = clip[:, :, ::-1]
        return {**self.metadata(item), "videos": films.clip_tensor(clip)}

    @property
    def preprocessing_key(self) -> str:
        """How files become items: with the files themselves, all that the codes of items depend on."""
        pace = f"every {self.stride}" if self.fps is None else f"{self.fps} a second"
        text = f"{self.height} x {self.width}, {self.frames} frames, {pace}"
        return f"{text}, from anywhere, flip={self.flip} crop={self.random_crop}" if self.train else text

    def _header(self, item: int, file: MediaFile) -> VideoHeader:
        if item not in self._headers:
            self._headers[item] = films.read_header(file)
        return self._headers[item]

    def _centred(self, item: int, file: MediaFile, header: VideoHeader, places: Sequence[int]) -> Clip:
        """Always the same pixels, so they may be kept: for the clips of later epochs all of a short file is read."""
        fit = Fit(self.height, self.width)
        if item in self._kept:
            return self._kept[item][places]
        size = header.frames * self.height * self.width * 3
        short = header.frames <= WHOLE * (places[-1] - places[0] + 1)
        if not short or not self._may_keep(item, size):
            return films.read_video(file, places, fit=fit, header=header)
        return self._keep(item, films.read_video(file, fit=fit, header=header), size)[places]


def pad_clips(items: Sequence[Item], frames: int | None = None) -> dict[str, Any]:
    """Clips of different lengths in one tensor, (items, 3, frames, height, width); without `frames` as long as the
    longest of them.

    `mask` (items, frames) is true where there is a frame. Beyond it the last one stands still, since black would be
    an end that no clip has.
    """
    fields = collate([{name: value for name, value in item.items() if name != "videos"} for item in items])
    lengths = torch.tensor([item["videos"].shape[1] for item in items])
    longest = int(lengths.max()) if frames is None else frames
    places = torch.arange(longest)
    fields["videos"] = torch.stack([item["videos"][:, places.clamp(max=item["videos"].shape[1] - 1)] for item in items])
    fields["mask"] = places < lengths[:, None]
    return fields


def video_folder_splits(config: VideoDataConfig, size: tuple[int, int]) -> Splits:
    """The folders that the configuration names, split for validation."""
    make = partial(
        VideoFolder,
        height=size[0],
        width=size[1],
        frames=config.frames,
        stride=config.stride,
        fps=config.fps,
        flip=config.flip,
        random_crop=config.random_crop,
        memory=config.memory_megabytes * 2**20,
    )
    return split_folder(config, films.EXTENSIONS | films.FRAME_EXTENSIONS, make, films=True)


FIELDS: tuple[Field, ...] = (
    Field(
        "videos",
        ("video", "clip", "frames", "images", "image"),
        lambda value: hasattr(value, "ndim") and value.ndim in (3, 4),
        "a 3 x frames x height x width tensor, a frames x height x width x 3 uint8 array, or one picture",
    ),
    CAPTION,
)


@dataclass
class PythonVideos(PythonDataset):
    """Videos of a person's own data set; an image is a clip of one frame."""

    fields = FIELDS

    height: int
    width: int
    config: VideoDataConfig

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = self.routed(item)
        clip = _clip(routed["videos"])
        start = rng.number("start") if self.train else 0.5
        clip = clip[films.stride_frames(len(clip), self.config.frames, self.config.stride, start)]
        moved = self.train and self.config.random_crop
        x, y = (rng.number("crop-x"), rng.number("crop-y")) if moved else (0.5, 0.5)
        if clip.shape[1:3] != (self.height, self.width):
            clip = np.stack([images.resize_and_crop(frame, self.height, self.width, x=x, y=y) for frame in clip])
        if self.train and self.config.flip and rng.number("flip") < 0.5:
            clip = clip[:, :, ::-1]
        return {"texts": caption_of(routed), "videos": films.clip_tensor(clip)}


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
    make = partial(PythonVideos, height=size[0], width=size[1], config=config)
    return split_object(dataset, config, make, validation, declared)
