"""Data of MuLaN: splits, windows of clips in memory, and checks of the captions."""

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

MAX_CHECKED = 100
"""Items of a Python dataset whose captions are checked before training."""


def mulan_splits(config: MuLaNConfig, tower: TextTransformer) -> Splits:
    splits = audio_folder_splits(config.data, config.model.audio.sample_rate)
    check_captions(splits, config, tower)
    return splits


def clip_windows(wave: Tensor, rate: int, config: MuLaNConfig) -> Item:
    """A clip (samples,) as an item, preprocessed as files are: resampled, split into windows, loudness normalised."""
    data, sample_rate = config.data, config.model.audio.sample_rate
    samples = resample(wave.detach().float().cpu().numpy()[None], rate, sample_rate)
    size, stride = (max(1, round(each * sample_rate)) for each in (data.seconds, data.stride))
    starts = window_starts(samples.shape[1], size, stride, data.max_windows)
    windows = [samples[:, start : start + size] for start in starts]
    if data.loudness is not None:
        windows = [to_loudness(window, sample_rate, data.loudness) for window in windows]
    wavs = torch.cat([torch.from_numpy(window) for window in windows])
    return {"wavs": wavs, "lengths": torch.full((len(wavs),), wavs.shape[1])}


def check_captions(splits: Splits, config: MuLaNConfig, tower: TextTransformer) -> None:
    """Raise if captions are missing; warn if they are too long or all the same."""
    captions = [pair for source in (splits.train, splits.validation) for pair in _captions(source)]
    if not captions:
        return
    missing = [name for name, text in captions if not text]
    if missing and not config.data.allow_missing_captions:
        raise UsageError(
            f"{len(missing)} of {len(captions)} clips have no caption, for example {missing[0]}; add captions, or set "
            "data.allow_missing_captions=true"
        )
    if long := tower.too_long([text for _, text in captions]):
        say(
            f"{len(long)} captions are longer than model.text.max_length={config.model.text.max_length} and are "
            f"truncated, for example {long[0]!r}"
        )
    ((text, count),) = Counter(text for _, text in captions).most_common(1)
    if text and count == len(captions):
        say(f"warning: all {count} clips have the same caption {text!r}: a contrastive loss cannot learn from it")


def _captions(source: Dataset) -> Iterator[tuple[str, str]]:
    """Name and caption of each clip; clips whose captions are token ids are left out."""
    assert isinstance(source, AudioFolder | PythonAudio)
    # A Python dataset may have to load the whole clip to return its caption.
    count = len(source) if isinstance(source, AudioFolder) else min(len(source), MAX_CHECKED)
    for item in range(count):
        metadata = source.metadata(item)
        if "texts" in metadata:
            yield source.name(item), metadata["texts"]
