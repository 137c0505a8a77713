"""Clips as MuLaN hears them: windows of training, whole clips as several windows, and checks of their captions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from quintet.common.batch import Dataset, Item
from quintet.common.logging import say
from quintet.data.audio import AudioFolder, PythonAudio, audio_folder_splits
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.mulan.config import MuLaNConfig
from quintet.families.mulan.towers import TextTransformer
from quintet.media.audio import resample, to_loudness, window_starts

LOOKED_AT = 100
"""Items of a data set in Python whose captions are looked at before training."""


def mulan_splits(config: MuLaNConfig, tower: TextTransformer) -> Splits:
    splits = audio_folder_splits(config.data, config.model.audio.sample_rate)
    check_captions(splits, config, tower)
    return splits


def clip_windows(wave: Tensor, rate: int, config: MuLaNConfig) -> Item:
    """A clip (samples,) as an item: at the rate of the model, in windows as those of files, as loud."""
    data, own_rate = config.data, config.model.audio.sample_rate
    samples = resample(wave.detach().float().cpu().numpy()[None], rate, own_rate)
    size, stride = (max(1, round(each * own_rate)) for each in (data.seconds, data.stride))
    starts = window_starts(samples.shape[1], size, stride, data.max_windows)
    windows = [samples[:, start : start + size] for start in starts]
    if data.loudness is not None:
        windows = [to_loudness(window, own_rate, data.loudness) for window in windows]
    wavs = torch.cat([torch.from_numpy(window) for window in windows])
    return {"wavs": wavs, "lengths": torch.full((len(wavs),), wavs.shape[1])}


def check_captions(splits: Splits, config: MuLaNConfig, tower: TextTransformer) -> None:
    """Without captions there is nothing to learn; what is odd about them is said."""
    captions = [pair for source in (splits.train, splits.validation) for pair in _captions(source)]
    if not captions:
        return
    missing = [name for name, text in captions if not text]
    if missing and not config.data.allow_missing_captions:
        raise UsageError(
            f"{len(missing)} of {len(captions)} clips have no caption, {missing[0]} for one; add captions, or train "
            "with data.allow_missing_captions=true"
        )
    if long := tower.too_long([text for _, text in captions]):
        say(
            f"{len(long)} captions are longer than model.text.max_length={config.model.text.max_length} and are cut at "
            f"their end, for one: {long[0]!r}"
        )
    ((text, count),) = Counter(text for _, text in captions).most_common(1)
    if text and count == len(captions):
        say(f"warning: all {count} clips have the caption {text!r}: there is nothing to tell them apart by")


def _captions(source: Dataset) -> Iterator[tuple[str, str]]:
    """Of each clip its name and its caption, where it has one in words."""
    assert isinstance(source, AudioFolder | PythonAudio)
    # A data set in Python may have to make a whole sound to tell its caption.
    count = len(source) if isinstance(source, AudioFolder) else min(len(source), LOOKED_AT)
    for item in range(count):
        about = source.metadata(item)
        if "texts" in about:
            yield source.name(item), about["texts"]
