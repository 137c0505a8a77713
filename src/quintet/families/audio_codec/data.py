"""Clips of sound as the codec reads them."""

from __future__ import annotations

from quintet.data.audio import audio_folder_splits, say_resampled
from quintet.data.splits import Splits
from quintet.families.audio_codec.config import AudioCodecConfig


def clip_splits(config: AudioCodecConfig) -> Splits:
    splits = audio_folder_splits(config.data, config.model.rate)
    say_resampled(splits.train, config.model.rate, "the model (model.rate)")
    return splits
