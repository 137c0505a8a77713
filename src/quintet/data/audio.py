"""Audio datasets: windows of the files of a captioned folder or of a Python data set, and their batches.

An item holds `wavs` (windows, samples) float32, mono at the model's sampling rate, or (windows, 2, samples) for a
stereo model; `lengths` (windows,) int64, the number of samples of each window; and the `metadata` of its file. In
training an item has one window, at a random position for the item and the epoch; otherwise a long clip has several
windows, or one of its full length. Datasets never pad a window, and `pad_windows` pads a batch to its longest window,
with a mask.
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
from quintet.media import audio
from quintet.media.audio import to_loudness
from quintet.media.audio_formats import AudioHeader, Samples, read_header
from quintet.media.files import MediaFile

MAX_CACHED_WINDOWS = 4
"""A clip of at most this many windows is decoded in full and may be cached; of a longer clip only windows are read."""
MAX_FILES_CHECKED = 100
"""`report_resampling` reads the sampling rate of at most this many files."""
_OWN_LENGTH = ("wavs", "lengths", "token_ids")
"""Fields that `pad_windows` batches itself, because items differ in length."""


@dataclass
class AudioFolder(FolderDataset[Samples]):
    """Audio files of a scanned folder, with their captions, as items. Nothing is random if `train` is false."""

    rate: int
    seconds: float
    stride: float = field(default=1.0, kw_only=True)
    """Seconds between the starts of two windows, outside training."""
    max_windows: int = field(default=16, kw_only=True)
    """Most windows of one clip, outside training."""
    loudness: float | None = field(default=None, kw_only=True)
    """Loudness of each window, in LUFS; None leaves it as it is."""
    full_clip: bool = field(default=False, kw_only=True)
    """Whether a clip is one window of its full length, outside training."""
    first_window_only: bool = field(default=False, kw_only=True)
    """Whether a clip is always its first window, in training too, so that it can be encoded once."""
    channels: int = field(default=1, kw_only=True)
    """1: files are mixed to mono. 2: stereo; both channels of a mono file are equal."""
    _headers: HeaderCache[AudioHeader] = field(default_factory=HeaderCache, init=False, repr=False)
    _last: tuple[int, MediaFile] = field(default=(-1, ""), init=False, repr=False)

    def load(self, item: int, rng: ItemRNG) -> Item:
        frames, window = self.frames(item), self.window
        if self.first_window_only:
            starts = [0]
        elif self.train:
            starts = [int(rng.number("crop") * (max(frames - window, 0) + 1))]
        elif self.full_clip:
            starts, window = [0], frames
        else:
            stride = max(1, round(self.stride * self.rate))
            starts = audio.window_starts(frames, window, stride, self.max_windows)
        windows = [self._read(item, start, min(window, frames)) for start in starts]
        windows = [self.with_axis(each) for each in windows]
        # A long clip is one window and no part of the cache, so it needs no copy.
        read = windows[0] if len(windows) == 1 and item not in self._cached else np.concatenate(windows)
        return {**self.metadata(item), **windows_of(read)}

    @property
    def preprocessing_key(self) -> str:
        """Text of all preprocessing settings; part of the token-cache key."""
        if self.first_window_only:
            cut = f"the first {self.seconds:g} s"
        elif self.train:
            cut = f"{self.seconds:g} s from anywhere"
        elif self.full_clip:
            cut = "whole"
        else:
            cut = f"{self.seconds:g} s every {self.stride:g} s, {self.max_windows} at most"
        return f"{self.rate} Hz, {cut}, loudness {self.loudness}{self.channels_key}"

    @property
    def channels_key(self) -> str:
        """The channels as part of `preprocessing_key`; nothing for mono, whose caches are older than stereo."""
        return "" if self.channels == 1 else f", {self.channels} channels"

    def with_axis(self, window: Samples) -> Samples:
        """A window (channels, samples) with the axis of the windows of an item: (1, samples) or (1, 2, samples)."""
        return window if self.channels == 1 else window[None]

    def file_rate(self, item: int) -> int | None:
        """Sampling rate of the file in Hz; None if the file cannot be read."""
        try:
            return self._header(item).rate
        except UnreadableItem:
            return None

    @property
    def window(self) -> int:
        """Length of a window in samples."""
        return max(1, round(self.seconds * self.rate))

    def frames(self, item: int) -> int:
        """Length of the full clip in samples, at the model's sampling rate."""
        header = self._header(item)
        return audio.resampled_length(header.frames, header.rate, self.rate)

    def _header(self, item: int) -> AudioHeader:
        if item in self._headers and self.entries[item].stored is not None:
            return self._headers[item]
        file = self._file(item)
        if item not in self._headers:
            self._headers[item] = read_header(file)
        return self._headers[item]

    def _file(self, item: int) -> MediaFile:
        """The last file from a shard stays in memory; a file on disk is looked up again, as it may have changed."""
        known, file = self._last
        if known != item or self.entries[item].stored is None:
            file = super()._file(item)
            self._last = item, file
        return file

    def _read(self, item: int, start: int, count: int) -> Samples:
        """One window, (channels, count). The way of reading depends on the file alone, so caching changes no sample."""
        if self.frames(item) <= MAX_CACHED_WINDOWS * self.window:
            samples = self._full_clip(item)[:, start : start + count]
            return samples if self.loudness is None else to_loudness(samples, self.rate, self.loudness)
        file, header = self._file(item), self._header(item)
        samples = audio.read_channels(file, self.channels, self.rate, start=start, frames=count, header=header)
        return samples if self.loudness is None else to_loudness(samples, self.rate, self.loudness, in_place=True)

    def _full_clip(self, item: int) -> Samples:
        if item in self._cached:
            return self._cached[item]
        samples = audio.read_channels(self._file(item), self.channels, self.rate, header=self._header(item))
        return self._cache(item, samples, samples.nbytes)


def windows_of(read: Samples) -> Item:
    """The fields of windows (windows, samples) or (windows, channels, samples)."""
    wavs = torch.from_numpy(read)
    return {"wavs": wavs, "lengths": torch.full((len(wavs),), wavs.shape[-1])}


def pad_windows(items: Sequence[Item]) -> dict[str, Any]:
    """Batch of the windows of all items: `wavs` (windows, samples), or (windows, channels, samples), padded with zeros
    to the longest window.

    `lengths` (windows,) are the samples of each window, and `mask` (windows, samples) is true where a sample is not
    padding. `owners` (windows,) is the index in the batch of the item that each window belongs to; in training, with
    one window per item, that is the row itself. `token_ids`, of data sets whose texts are token ids, stay a list.
    """
    fields = collate([{name: value for name, value in item.items() if name not in _OWN_LENGTH} for item in items])
    lengths = torch.cat([item["lengths"] for item in items])
    longest = max(item["wavs"].shape[-1] for item in items)
    fields["wavs"] = torch.cat(
        [torch.nn.functional.pad(item["wavs"], (0, longest - item["wavs"].shape[-1])) for item in items]
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
        raise UsageError("some items of the data set have a text and others have token ids; use one form for all items")
    return [item["token_ids"] for item in items]


def mean_over_windows(values: Tensor, owners: Tensor, items: int) -> Tensor:
    """Mean over the windows of each item: `values` (windows, ...) to (items, ...)."""
    sums = values.new_zeros(items, *values.shape[1:]).index_add(0, owners, values)
    counts = torch.bincount(owners, minlength=items).to(values)
    return sums / counts.reshape(-1, *[1] * (values.ndim - 1))


def audio_folder_splits(
    config: AudioDataConfig,
    rate: int,
    *,
    channels: int = 1,
    first_window_only: bool = False,
    uses_captions: bool | None = None,
) -> Splits:
    """Splits of the folders that the configuration names.

    Outside training an item is the full clip, unless the configuration has keys for windows. With `first_window_only`
    an item is always the first window of its clip. `uses_captions` is that of `split_folder`.
    """
    make = partial(
        AudioFolder,
        rate=rate,
        seconds=config.seconds,
        loudness=config.loudness,
        full_clip=True,
        first_window_only=first_window_only,
        channels=channels,
        memory=config.memory_megabytes * 2**20,
    )
    if isinstance(config, WindowedAudioDataConfig):
        make = partial(make, full_clip=False, stride=config.stride, max_windows=config.max_windows)
    return split_folder(config, audio.EXTENSIONS, make, uses_captions=uses_captions)


def report_resampling(source: Dataset, rate: int, rate_owner: str) -> None:
    """Print how many files have another sampling rate than `rate`, which is the rate of `rate_owner`."""
    assert isinstance(source, AudioFolder)
    checked = min(len(source), MAX_FILES_CHECKED)
    others = Counter(found for item in range(checked) if (found := source.file_rate(item)) not in (rate, None))
    if others:
        rates = ", ".join(f"{count} of {other} Hz" for other, count in others.most_common())
        say(f"resampled to the {rate} Hz of {rate_owner}: {rates}, of the first {checked} files")


def _is_wave(value: Any) -> bool:
    return hasattr(value, "ndim") and value.ndim in (1, 2) and "float" in str(value.dtype)


def _is_ids(value: Any) -> bool:
    return hasattr(value, "ndim") and value.ndim == 1 and "int" in str(value.dtype)


FIELDS: tuple[Field, ...] = (
    Field("wavs", ("wav", "wave", "waveform", "audio"), _is_wave, "float samples at the model's sampling rate"),
    Field(
        "texts",
        ("text", "caption", "label"),
        lambda value: isinstance(value, str) or _is_ids(value),
        "a caption, or its integer token ids",
        required=False,
    ),
    Field("raw_texts", ("raw_text",), lambda value: False, "a caption, if the item has no texts", required=False),
)


@dataclass
class PythonAudio(PythonDataset):
    """Audio of a Python data set, with the items of `AudioFolder`; token ids instead of a text become `token_ids`."""

    fields = FIELDS

    rate: int
    config: AudioDataConfig
    captioned: bool = True
    """Whether every item must have a text."""
    first_window_only: bool = False
    """Whether a clip is always its first window, in training too."""
    channels: int = 1
    """1: mono. 2: stereo; both channels of a mono item are equal."""

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = self.routed(item)
        wave = _wave(routed["wavs"], self.channels)
        frames, window = wave.shape[-1], max(1, round(self.config.seconds * self.rate))
        if self.first_window_only:
            starts = [0]
        elif self.train:
            starts = [int(rng.number("crop") * (max(frames - window, 0) + 1))]
        elif not isinstance(self.config, WindowedAudioDataConfig):
            starts, window = [0], frames
        else:
            stride = max(1, round(self.config.stride * self.rate))
            starts = audio.window_starts(frames, window, stride, self.config.max_windows)
        read = np.stack([self._normalised(wave[..., start : start + window]) for start in starts])
        return {**self._text(item, routed), **windows_of(read)}

    def metadata(self, item: int) -> Item:
        return self._text(item, self.routed(item))

    def _normalised(self, samples: Samples) -> Samples:
        return samples if self.config.loudness is None else to_loudness(samples, self.rate, self.config.loudness)

    def _text(self, item: int, routed: dict[str, Any]) -> Item:
        if not self.captioned:
            return {}
        texts = {name: routed[name] for name in ("raw_texts", "texts") if routed.get(name) is not None}
        if len(texts) != 1:
            which = "neither raw_texts nor texts" if not texts else "both raw_texts and texts"
            raise UsageError(f"{self.name(item)} of the data set has {which}; return one of them")
        (value,) = texts.values()
        return {"token_ids": _ids(value)} if _is_ids(value) else {"texts": str(value)}


def _wave(value: Any, channels: int) -> Samples:
    """The waveform of an item: (samples,) if `channels` is 1, otherwise (channels, samples)."""
    if not _is_wave(value):
        what = f"{value.dtype} of shape {tuple(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
        raise UnreadableItem(f"has {what} for a sound; fractions are expected, one a sample")
    wave = value.detach().cpu().float().numpy() if isinstance(value, Tensor) else np.asarray(value, np.float32)
    if wave.ndim == 2 and len(wave) not in (1, channels):
        raise UnreadableItem(f"has {len(wave)} channels; mix them to {'one' if channels == 1 else 'one or two'}")
    if channels > 1:
        wave = np.ascontiguousarray(np.broadcast_to(wave, (channels, wave.shape[-1])))
    elif wave.ndim == 2:
        wave = wave[0]
    if not wave.size:
        raise UnreadableItem("has no samples")
    if not np.isfinite(wave).all():
        raise UnreadableItem("has samples that are not finite")
    return wave


def _ids(value: Any) -> Tensor:
    """Token ids (n,) without the zeros at the end, which are padding."""
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
    channels: int = 1,
    kind: type[PythonAudio] = PythonAudio,
) -> Splits:
    """Splits of a Python data set, by fraction and seed unless `validation` is another data set.

    Without `captioned`, texts are not read. With `first_window_only` an item is always the first window of its clip.
    """
    make = partial(
        kind, rate=rate, config=config, captioned=captioned, first_window_only=first_window_only, channels=channels
    )
    return split_object(dataset, config, make, validation, declared)
