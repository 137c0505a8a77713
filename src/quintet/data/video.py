"""Video datasets: clips of the files of a captioned folder or of a Python data set, and their batches.

An item holds `videos` (3, frames, height, width) uint8 and the `metadata` of its file. In training a clip starts at a
random frame for the item and the epoch; otherwise it is the middle of the file. All frames of a clip are scaled and
cropped in the same way. A short file yields a short clip; `pad_clips` pads a batch and returns a mask of the real
frames. An image is a clip of one frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.batch import Item, collate
from quintet.common.pixels import RangeReport, check_type
from quintet.common.rng import ItemRNG
from quintet.config import VideoDataConfig
from quintet.data.python_dataset import CAPTION, Field, Indexable, PythonDataset, caption_of, split_object
from quintet.data.splits import FolderDataset, HeaderCache, Splits, split_folder
from quintet.errors import UnreadableItem, UsageError
from quintet.media import image as images
from quintet.media import video as videos
from quintet.media.files import MediaFile
from quintet.media.video_header import Clip, Fit, VideoHeader
from quintet.media.video_writing import as_clip

MAX_CACHED_CLIPS = 4
"""A file of at most this many clips is read in full and may be cached; of a longer file only clips are read."""
MAX_CACHED_BYTES = 2**26
"""The same for the size of the fitted frames of a file."""


@dataclass
class VideoFolder(FolderDataset[Clip]):
    """Clips of a scanned folder, with their captions, as items. Nothing is random if `train` is false."""

    height: int
    width: int
    frames: int = field(default=17, kw_only=True)
    stride: int = field(default=1, kw_only=True)
    fps: float | None = field(default=None, kw_only=True)
    """Frames per second, sampled by time instead of by `stride`; None uses `stride`."""
    flip: bool = field(default=False, kw_only=True)
    random_crop: bool = field(default=False, kw_only=True)
    _headers: HeaderCache[VideoHeader] = field(default_factory=HeaderCache, init=False, repr=False)

    def load(self, item: int, rng: ItemRNG) -> Item:
        file = self._file(item)
        header = self._header(item, file)
        start = rng.number("start") if self.train else 0.5
        indices = videos.clip_frames(header, self.frames, stride=self.stride, rate=self.fps, start=start)
        if self.train and self.random_crop:
            fit = Fit(self.height, self.width, rng.number("crop-x"), rng.number("crop-y"))
            clip = videos.read_video(file, indices, fit=fit, header=header)
        else:
            clip = self._centre_crop(item, file, header, indices)
        if self.train and self.flip and rng.number("flip") < 0.5:
            clip = clip[:, :, ::-1]
        return {**self.metadata(item), "videos": videos.clip_tensor(clip)}

    @property
    def preprocessing_key(self) -> str:
        """Text of all preprocessing settings; part of the token-cache key."""
        pace = f"every {self.stride}" if self.fps is None else f"{self.fps} a second"
        text = f"{self.height} x {self.width}, {self.frames} frames, {pace}"
        return f"{text}, from anywhere, flip={self.flip} crop={self.random_crop}" if self.train else text

    def _header(self, item: int, file: MediaFile) -> VideoHeader:
        if item not in self._headers:
            self._headers[item] = videos.read_header(file)
        return self._headers[item]

    def _centre_crop(self, item: int, file: MediaFile, header: VideoHeader, indices: Sequence[int]) -> Clip:
        """The same pixels every time, so they may be cached; a short file is read in full, cached or not."""
        fit = Fit(self.height, self.width)
        size = header.frames * self.height * self.width * 3
        short = header.frames <= MAX_CACHED_CLIPS * (indices[-1] - indices[0] + 1)
        # The way of reading depends on the file and the frames alone: a damaged file is otherwise readable or not
        # depending on what is cached.
        if not short or size > MAX_CACHED_BYTES:
            return videos.read_video(file, indices, fit=fit, header=header)
        if item in self._cached:
            return self._cached[item][indices]
        return self._cache(item, videos.read_video(file, fit=fit, header=header), size)[indices]


def pad_clips(items: Sequence[Item], frames: int | None = None) -> dict[str, Any]:
    """Batch of clips of different lengths: `videos` (items, 3, frames, height, width), by default of the longest.

    `mask` (items, frames) is true for real frames. Padding repeats the last frame, because no real clip ends in black.
    """
    fields = collate([{name: value for name, value in item.items() if name != "videos"} for item in items])
    lengths = torch.tensor([item["videos"].shape[1] for item in items])
    longest = int(lengths.max()) if frames is None else frames
    indices = torch.arange(longest)
    fields["videos"] = torch.stack(
        [item["videos"][:, indices.clamp(max=item["videos"].shape[1] - 1)] for item in items]
    )
    fields["mask"] = indices < lengths[:, None]
    return fields


def video_folder_splits(config: VideoDataConfig, size: tuple[int, int]) -> Splits:
    """Splits of the folders that the configuration names."""
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
    return split_folder(config, videos.EXTENSIONS | videos.FRAME_EXTENSIONS, make, image_sequences=True)


FIELDS: tuple[Field, ...] = (
    Field(
        "videos",
        ("video", "clip", "frames", "images", "image"),
        lambda value: hasattr(value, "ndim") and value.ndim in (3, 4),
        "a 3 x frames x height x width tensor, a frames x height x width x 3 uint8 array, or one image",
    ),
    CAPTION,
)


def range_report() -> RangeReport:
    """For the splits of one data set."""
    return RangeReport("a video of the dataset", "the others are clamped to that range")


@dataclass
class PythonVideos(PythonDataset):
    """Videos of a Python data set: `videos` (3, frames, height, width) uint8; an image is a clip of one frame."""

    fields = FIELDS

    height: int
    width: int
    config: VideoDataConfig
    unclamped: bool = field(default=False, kw_only=True)
    """Keep floating-point pixels of any range as they are; `videos` is then floating point."""
    report_range: RangeReport = field(default_factory=range_report, kw_only=True)

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = self.routed(item)
        if self.unclamped:
            return {"texts": caption_of(routed), "videos": self._floats(routed["videos"], rng)}
        clip = _clip(routed["videos"], self.report_range)
        start = rng.number("start") if self.train else 0.5
        clip = clip[videos.stride_frames(len(clip), self.config.frames, self.config.stride, start)]
        random_crop = self.train and self.config.random_crop
        x, y = (rng.number("crop-x"), rng.number("crop-y")) if random_crop else (0.5, 0.5)
        if clip.shape[1:3] != (self.height, self.width):
            clip = np.stack([images.resize_and_crop(frame, self.height, self.width, x=x, y=y) for frame in clip])
        if self.train and self.config.flip and rng.number("flip") < 0.5:
            clip = clip[:, :, ::-1]
        return {"texts": caption_of(routed), "videos": videos.clip_tensor(clip)}

    def _floats(self, value: Any, rng: ItemRNG) -> Tensor:
        """Frames of a clip as floating-point values (3, frames, height, width)."""
        if isinstance(value, Tensor) and value.is_floating_point():
            clip = _as_tensor(value).float()
        else:
            clip = videos.clip_tensor(_clip(value, self.report_range)).float() / 255
        if clip.ndim != 4 or len(clip) != 3 or not clip.numel():
            raise UnreadableItem(f"has shape {tuple(value.shape)} for a video; expected {FIELDS[0].expects}")
        start = rng.number("start") if self.train else 0.5
        clip = clip[:, videos.stride_frames(clip.shape[1], self.config.frames, self.config.stride, start)]
        if clip.shape[2:] != (self.height, self.width):
            size = (self.height, self.width)
            clip = F.interpolate(clip.transpose(0, 1), size, mode="bilinear", antialias=True).transpose(0, 1)
        return clip.flip(-1) if self.train and self.config.flip and rng.number("flip") < 0.5 else clip


def _as_tensor(value: Tensor) -> Tensor:
    """A checked video of a data set as (channels, frames, height, width); a gray one is repeated."""
    check_type(value)
    if value.is_floating_point() and not value.isfinite().all():
        raise UnreadableItem("has pixels that are not finite")
    value = value[:, None] if value.ndim == 3 else value
    return value.expand(3, -1, -1, -1) if len(value) == 1 else value


def _clip(value: Any, report_range: RangeReport) -> Clip:
    if not hasattr(value, "ndim") or value.ndim not in (3, 4):
        what = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
        raise UnreadableItem(f"has {what} for a video; expected {FIELDS[0].expects}")
    if isinstance(value, Tensor):
        value = _as_tensor(value)
        report_range(value)
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
    unclamped: bool = False,
) -> Splits:
    """Splits of a Python data set, by fraction and seed unless `validation` is another data set."""
    if config.fps is not None:
        raise UsageError(
            "data.fps needs time stamps, which the clips of a Python data set do not have; use data.stride"
        )
    options: dict[str, Any] = {"config": config, "unclamped": unclamped, "report_range": range_report()}
    make = partial(PythonVideos, height=size[0], width=size[1], **options)
    return split_object(dataset, config, make, validation, declared)
