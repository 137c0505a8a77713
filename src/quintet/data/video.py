"""Owns the data of video recipes: the clips of a captioned folder as training items, and padding them to batches.

An item holds `videos` (3, frames, height, width), bytes; `texts`; and of the embedded data `motion`, what is true of
it. In training a clip begins at a frame drawn for the item and the epoch; otherwise it is the middle of the file. All
frames of a clip are scaled and cropped alike. A file with fewer frames than asked for gives fewer: nothing is made up
here, and `pad_clips` says by a mask which frames of a batch there are. A picture is a clip of one frame.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from quintet.common.batch import Item, collate
from quintet.common.rng import ItemRNG
from quintet.config import VideoDataConfig
from quintet.data.index.folder import Entry, may_keep
from quintet.data.splits import Splits, split_folder
from quintet.media import video as films
from quintet.media.files import MediaFile
from quintet.media.video import Clip, Fit, VideoHeader

WHOLE = 4
"""Files of up to so many clips may be kept, once they are read; of longer ones clips are read."""
HEADERS = 2**14
"""Headers that are kept; a set of shards may have millions."""
_KNOWN = ("motion",)


@dataclass
class VideoFolder:
    """Clips of a scanned folder as training items, and their captions. With `train` false nothing is drawn."""

    root: str | os.PathLike[str]
    entries: Sequence[Entry]
    height: int
    width: int
    frames: int = field(default=17, kw_only=True)
    stride: int = field(default=1, kw_only=True)
    fps: float | None = field(default=None, kw_only=True)
    """Frames a second by time, instead of every so many."""
    flip: bool = field(default=False, kw_only=True)
    random_crop: bool = field(default=False, kw_only=True)
    train: bool = field(default=True, kw_only=True)
    memory: int = field(default=0, kw_only=True)
    """Bytes of decoded files kept by each process; what does not fit is read again."""
    _kept: dict[int, Clip] = field(default_factory=dict, init=False, repr=False)
    _headers: dict[int, VideoHeader] = field(default_factory=dict, init=False, repr=False)
    _used: int = field(default=0, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.entries)

    def name(self, item: int) -> str:
        """The file of an item, as logs and summaries call it."""
        return self.entries[item].file

    def load(self, item: int, draw: ItemRNG) -> dict[str, Any]:
        """Read one item; `UnreadableItem` with the reason if its file cannot be used."""
        file = self.entries[item].media(self.root)
        header = self._header(item, file)
        start = draw.number("start") if self.train else 0.5
        places = films.clip_frames(header, self.frames, stride=self.stride, rate=self.fps, start=start)
        if self.train and self.random_crop:
            fit = Fit(self.height, self.width, draw.number("crop-x"), draw.number("crop-y"))
            clip = films.read_video(file, places, fit=fit, header=header)
        else:
            clip = self._centred(item, file, header, places)
        if self.train and self.flip and draw.number("flip") < 0.5:
            clip = clip[:, :, ::-1]
        return {**self.about(item), "videos": films.clip_tensor(clip)}

    def about(self, item: int) -> dict[str, Any]:
        """What is known of an item without opening its file: its caption and, in the embedded data, what it shows."""
        entry = self.entries[item]
        return {"texts": entry.text or "", **{name: entry.extra[name] for name in _KNOWN if name in entry.extra}}

    @property
    def reading(self) -> str:
        """How files become items: with the files themselves, all that the codes of items depend on."""
        pace = f"every {self.stride}" if self.fps is None else f"{self.fps} a second"
        text = f"{self.height} x {self.width}, {self.frames} frames, {pace}"
        return f"{text}, from anywhere, flip={self.flip} crop={self.random_crop}" if self.train else text

    def _header(self, item: int, file: MediaFile) -> VideoHeader:
        if item not in self._headers:
            if len(self._headers) >= HEADERS:
                self._headers.clear()
            self._headers[item] = films.read_header(file)
        return self._headers[item]

    def _centred(self, item: int, file: MediaFile, header: VideoHeader, places: Sequence[int]) -> Clip:
        """Always the same pixels, so they may be kept: for the clips of later epochs all of a short file is read."""
        fit = Fit(self.height, self.width)
        if item in self._kept:
            return self._kept[item][places]
        size = header.frames * self.height * self.width * 3
        short = header.frames <= WHOLE * (places[-1] - places[0] + 1)
        if not short or not may_keep(self.entries, item, size, self._used, self.memory):
            return films.read_video(file, places, fit=fit, header=header)
        self._kept[item] = films.read_video(file, fit=fit, header=header)
        self._used += size
        return self._kept[item][places]


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

    def folder(path: str, entries: Sequence[Entry], train: bool) -> VideoFolder:
        return VideoFolder(
            path,
            entries,
            *size,
            frames=config.frames,
            stride=config.stride,
            fps=config.fps,
            flip=config.flip,
            random_crop=config.random_crop,
            train=train,
            memory=config.memory_megabytes * 2**20,
        )

    return split_folder(config, films.EXTENSIONS | films.FRAME_EXTENSIONS, folder, films=True)
