"""Owns sounds of a data set handed over in Python as training sources.

An item comes out as `AudioFolder` of `data/audio.py` gives it; only that a text may also be given as ids of a
vocabulary, which come out as `token_ids` in place of `texts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.common.batch import Item
from quintet.common.rng import ItemRNG
from quintet.config import AudioDataConfig, SoundDataConfig
from quintet.data.fields import Field, route
from quintet.data.python_sets import Indexable, split_object
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem, UsageError
from quintet.media.audio import window_starts
from quintet.media.audio_formats import Samples
from quintet.media.loudness import to_loudness


def _is_wave(value: Any) -> bool:
    return hasattr(value, "ndim") and value.ndim in (1, 2) and "float" in str(value.dtype)


def _is_ids(value: Any) -> bool:
    return hasattr(value, "ndim") and value.ndim == 1 and "int" in str(value.dtype)


FIELDS = (
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
class PythonAudio:
    """Items of a person's own data set. To train on, one window of each; otherwise of a long sound several, or all."""

    dataset: Indexable
    places: Sequence[int]
    rate: int
    config: SoundDataConfig
    train: bool
    declared: Sequence[str] | None = None
    captioned: bool = True
    """Whether every item must have a text."""
    opening: bool = False
    """Whether a sound comes as its first window, in training too."""

    def __len__(self) -> int:
        return len(self.places)

    def name(self, item: int) -> str:
        return f"item {self.places[item]}"

    def load(self, item: int, draw: ItemRNG) -> Item:
        routed = self._routed(item)
        wave = _wave(routed["wavs"])
        frames, window = len(wave), max(1, round(self.config.seconds * self.rate))
        if self.opening:
            starts = [0]
        elif self.train:
            starts = [int(draw.number("crop") * (max(frames - window, 0) + 1))]
        elif not isinstance(self.config, AudioDataConfig):
            starts, window = [0], frames
        else:
            stride = max(1, round(self.config.stride * self.rate))
            starts = window_starts(frames, window, stride, self.config.max_windows)
        wavs = torch.from_numpy(np.stack([self._levelled(wave[start : start + window]) for start in starts]))
        return {**self._text(item, routed), "wavs": wavs, "lengths": torch.full((len(wavs),), wavs.shape[1])}

    def metadata(self, item: int) -> Item:
        """The text alone; of most data sets the sound has to be made for it all the same."""
        return self._text(item, self._routed(item))

    def _routed(self, item: int) -> dict[str, Any]:
        return route(self.dataset[self.places[item]], FIELDS, self.declared)

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
    config: SoundDataConfig,
    rate: int,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
    captioned: bool = True,
    opening: bool = False,
) -> Splits:
    """A data set object, split by fraction and seed unless a validation set comes with it.

    Where it is not `captioned`, texts are neither asked for nor handed on. With `opening` each sound comes as its first
    window, always.
    """

    def sounds(items: Indexable, places: Sequence[int], names: Sequence[str] | None, train: bool) -> PythonAudio:
        return PythonAudio(items, places, rate, config, train, names, captioned, opening)

    return split_object(dataset, config, sounds, validation, declared)
