"""Datasets of audio: windows of the files of a captioned folder, or of a data set handed over in Python, in batches.

An item holds `wavs` (windows, samples) float32, mono at the rate of the model; `lengths` (windows) int64, the samples
of each that are sound; and the `metadata` of its file. In training there is one window, at a random position for the
item and the epoch; otherwise a long clip comes as several, or as one of its whole length. A window is never padded
here, and in a batch never cut to the shortest: `pad_windows` pads to the longest, with a mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.common.batch import Dataset, Item, collate
from quintet.common.logging import say
from quintet.common.rng import ItemRNG
from quintet.config import AudioDataConfig, WindowedAudioDataConfig
from quintet.data.python_dataset import Field, Indexable, PythonDataset, split_object
from quintet.data.splits import FolderDataset, HeaderCache, Splits, split_folder
from quintet.errors import UnreadableItem, UsageError
from quintet.media import audio as sounds
from quintet.media.audio import to_loudness
from quintet.media.audio_formats import AudioHeader, Samples, read_header
from quintet.media.files import MediaFile

WHOLE = 4
"""Clips of up to so many windows are decoded whole and may be kept; of longer ones windows are read."""
LOOKED_AT = 100
"""Files whose rate is looked at before they are used."""
_OWN_LENGTH = ("wavs", "lengths", "token_ids")
"""Fields that `pad_windows` puts together itself, since items differ in length."""


@dataclass
class AudioFolder(FolderDataset[Samples]):
    """Audio files of a scanned folder as training items, and their captions. With `train` false nothing is random."""

    rate: int
    seconds: float
    stride: float = field(default=1.0, kw_only=True)
    """Seconds from one window to the next, outside training."""
    max_windows: int = field(default=16, kw_only=True)
    """Of one clip, outside training."""
    loudness: float | None = field(default=None, kw_only=True)
    """Of each window, in LUFS."""
    whole: bool = field(default=False, kw_only=True)
    """Outside training a clip comes as one window, however long it is."""
    first_window_only: bool = field(default=False, kw_only=True)
    """A clip comes as its first window, in training too: the same every time, so that it can be encoded once."""
    _headers: HeaderCache[AudioHeader] = field(default_factory=HeaderCache, init=False, repr=False)
    _last: tuple[int, MediaFile] = field(default=(-1, ""), init=False, repr=False)

    def load(self, item: int, rng: ItemRNG) -> Item:
        frames, window = self.frames(item), self.window
        if self.first_window_only:
            starts = [0]
        elif self.train:
            starts = [int(rng.number("crop") * (max(frames - window, 0) + 1))]
        elif self.whole:
            starts, window = [0], frames
        else:
            stride = max(1, round(self.stride * self.rate))
            starts = sounds.window_starts(frames, window, stride, self.max_windows)
        read = np.concatenate([self._read(item, start, min(window, frames)) for start in starts])
        return {**self.metadata(item), **_windows(read)}

    @property
    def preprocessing_key(self) -> str:
        """How files become items: with the files themselves, all that the codes of items depend on."""
        if self.first_window_only:
            cut = f"the first {self.seconds:g} s"
        elif self.train:
            cut = f"{self.seconds:g} s from anywhere"
        elif self.whole:
            cut = "whole"
        else:
            cut = f"{self.seconds:g} s every {self.stride:g} s, {self.max_windows} at most"
        return f"{self.rate} Hz, {cut}, loudness {self.loudness}"

    def file_rate(self, item: int) -> int | None:
        """Samples a second as the file has them; none if it cannot be read."""
        try:
            return self._header(item).rate
        except UnreadableItem:
            return None

    @property
    def window(self) -> int:
        """Samples of a window."""
        return max(1, round(self.seconds * self.rate))

    def frames(self, item: int) -> int:
        """Samples of a whole clip at the rate of the model."""
        header = self._header(item)
        return sounds.resampled_length(header.frames, header.rate, self.rate)

    def _header(self, item: int) -> AudioHeader:
        if item in self._headers and self.entries[item].stored is not None:
            return self._headers[item]
        file = self._file(item)
        if item not in self._headers:
            self._headers[item] = read_header(file)
        return self._headers[item]

    def _file(self, item: int) -> MediaFile:
        """A file in memory is at hand until the next is asked for; one on the disk may have changed each time."""
        known, file = self._last
        if known != item or self.entries[item].stored is None:
            file = super()._file(item)
            self._last = item, file
        return file

    def _read(self, item: int, start: int, count: int) -> Samples:
        """One window, (1, count). How it is read depends on the file alone, so keeping clips changes no sample."""
        if self.frames(item) <= WHOLE * self.window:
            samples = self._whole(item)[:, start : start + count]
        else:
            samples = sounds.read_audio(
                self._file(item), self.rate, start=start, frames=count, header=self._header(item)
            )
        return samples if self.loudness is None else to_loudness(samples, self.rate, self.loudness)

    def _whole(self, item: int) -> Samples:
        if item in self._kept:
            return self._kept[item]
        samples = sounds.read_audio(self._file(item), self.rate, header=self._header(item))
        return self._keep(item, samples, samples.nbytes)


def _windows(read: Samples) -> Item:
    wavs = torch.from_numpy(read)
    return {"wavs": wavs, "lengths": torch.full((len(wavs),), wavs.shape[1])}


def pad_windows(items: Sequence[Item]) -> dict[str, Any]:
    """The windows of all items one below the other, (windows, samples), padded with silence to the longest.

    `mask` is true where there is sound, `owners` tells the item in the batch that each window is of; in training, one
    window an item, row and item are the same. `token_ids`, of data sets whose texts come as ids, stay a list.
    """
    fields = collate([{name: value for name, value in item.items() if name not in _OWN_LENGTH} for item in items])
    lengths = torch.cat([item["lengths"] for item in items])
    longest = max(item["wavs"].shape[1] for item in items)
    fields["wavs"] = torch.cat(
        [torch.nn.functional.pad(item["wavs"], (0, longest - item["wavs"].shape[1])) for item in items]
    )
    counts = torch.tensor([len(item["wavs"]) for item in items])
    fields["lengths"] = lengths
    if any("token_ids" in item for item in items):
        fields["token_ids"] = _all_token_ids(items)
    fields["mask"] = torch.arange(longest) < lengths[:, None]
    fields["owners"] = torch.arange(len(items)).repeat_interleave(counts)
    return fields


def _all_token_ids(items: Sequence[Item]) -> list[Tensor]:
    if not all("token_ids" in item for item in items):
        raise UsageError(
            "some items of the data set have a text in words, others have one of ids; give all in one form"
        )
    return [item["token_ids"] for item in items]


def mean_over_windows(values: Tensor, owners: Tensor, items: int) -> Tensor:
    """What was computed for each window (windows, ...), averaged for each item (items, ...)."""
    sums = values.new_zeros(items, *values.shape[1:]).index_add(0, owners, values)
    counts = torch.bincount(owners, minlength=items).to(values)
    return sums / counts.reshape(-1, *[1] * (values.ndim - 1))


def audio_folder_splits(config: AudioDataConfig, rate: int, *, first_window_only: bool = False) -> Splits:
    """The folders that the configuration names, split for validation.

    Outside training clips come whole, unless the configuration says how they are cut into windows. With `first_window_only` each
    comes as its first window, always.
    """
    make = partial(
        AudioFolder,
        rate=rate,
        seconds=config.seconds,
        loudness=config.loudness,
        whole=True,
        first_window_only=first_window_only,
        memory=config.memory_megabytes * 2**20,
    )
    if isinstance(config, WindowedAudioDataConfig):
        make = partial(make, whole=False, stride=config.stride, max_windows=config.max_windows)
    return split_folder(config, sounds.EXTENSIONS, make)


def report_resampling(source: Dataset, rate: int, whose: str) -> None:
    """Tell the person where files are of another rate than the one they are used at, which is of the named thing."""
    assert isinstance(source, AudioFolder)
    looked_at = min(len(source), LOOKED_AT)
    others = Counter(found for item in range(looked_at) if (found := source.file_rate(item)) not in (rate, None))
    if others:
        rates = ", ".join(f"{count} of {other} Hz" for other, count in others.most_common())
        say(f"resampled to the {rate} Hz of {whose}: {rates}, of the first {looked_at} files")


def _is_wave(value: Any) -> bool:
    return hasattr(value, "ndim") and value.ndim in (1, 2) and "float" in str(value.dtype)


def _is_ids(value: Any) -> bool:
    return hasattr(value, "ndim") and value.ndim == 1 and "int" in str(value.dtype)


FIELDS: tuple[Field, ...] = (
    Field("wavs", ("wav", "wave", "waveform", "audio"), _is_wave, "fractions, one a sample, at the model's rate"),
    Field(
        "texts",
        ("text", "caption", "label"),
        lambda value: isinstance(value, str) or _is_ids(value),
        "a caption, or whole numbers, its ids in the vocabulary",
        required=False,
    ),
    Field("raw_texts", ("raw_text",), lambda value: False, "a caption, if there are no texts", required=False),
)


@dataclass
class PythonAudio(PythonDataset):
    """Audio of a person's own data set, as `AudioFolder` gives it; but a text may be given as ids of a vocabulary,
    which come out as `token_ids` in place of `texts`."""

    fields = FIELDS

    rate: int
    config: AudioDataConfig
    captioned: bool = True
    """Whether every item must have a text."""
    first_window_only: bool = False
    """Whether a sound comes as its first window, in training too."""

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = self.routed(item)
        wave = _wave(routed["wavs"])
        frames, window = len(wave), max(1, round(self.config.seconds * self.rate))
        if self.first_window_only:
            starts = [0]
        elif self.train:
            starts = [int(rng.number("crop") * (max(frames - window, 0) + 1))]
        elif not isinstance(self.config, WindowedAudioDataConfig):
            starts, window = [0], frames
        else:
            stride = max(1, round(self.config.stride * self.rate))
            starts = sounds.window_starts(frames, window, stride, self.config.max_windows)
        read = np.stack([self._levelled(wave[start : start + window]) for start in starts])
        return {**self._text(item, routed), **_windows(read)}

    def metadata(self, item: int) -> Item:
        return self._text(item, self.routed(item))

    def _levelled(self, samples: Samples) -> Samples:
        return samples if self.config.loudness is None else to_loudness(samples, self.rate, self.config.loudness)

    def _text(self, item: int, routed: dict[str, Any]) -> Item:
        if not self.captioned:
            return {}
        given = {name: routed[name] for name in ("raw_texts", "texts") if routed.get(name) is not None}
        if len(given) != 1:
            which = "neither raw_texts nor texts" if not given else "both raw_texts and texts"
            raise UsageError(f"{self.name(item)} of the data set has {which}; give one of them")
        (value,) = given.values()
        return {"token_ids": _ids(value)} if _is_ids(value) else {"texts": str(value)}


def _wave(value: Any) -> Samples:
    if not _is_wave(value):
        what = f"{value.dtype} of shape {tuple(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
        raise UnreadableItem(f"has {what} for a sound; fractions are expected, one a sample")
    wave = value.detach().cpu().float().numpy() if isinstance(value, Tensor) else np.asarray(value, np.float32)
    if wave.ndim == 2:
        if len(wave) != 1:
            raise UnreadableItem(f"has {len(wave)} channels; mix them to one")
        wave = wave[0]
    if not len(wave):
        raise UnreadableItem("has no samples")
    if not np.isfinite(wave).all():
        raise UnreadableItem("has samples that are not finite")
    return wave


def _ids(value: Any) -> Tensor:
    """Without the zeros at the end, which are padding, as they were in the original."""
    ids = value.detach().cpu().long() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, np.int64))
    length = int((ids != 0).nonzero().max()) + 1 if ids.any() else 0
    if not length:
        raise UnreadableItem("has a text without any id but 0, which is padding")
    return ids[:length]


def python_audio_splits(
    dataset: Indexable,
    config: AudioDataConfig,
    rate: int,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
    captioned: bool = True,
    first_window_only: bool = False,
) -> Splits:
    """A data set object, split by fraction and seed unless a validation set comes with it.

    Where it is not `captioned`, texts are neither asked for nor handed on. With `first_window_only` each sound comes as its first
    window, always.
    """
    make = partial(PythonAudio, rate=rate, config=config, captioned=captioned, first_window_only=first_window_only)
    return split_object(dataset, config, make, validation, declared)
