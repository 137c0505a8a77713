"""`AudioCodecTrainer`: trains an `AudioCodec` from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from quintet.data.audio import python_audio_splits
from quintet.data.splits import Splits
from quintet.families.audio_codec.config import AudioCodecConfig
from quintet.families.audio_codec.model import AudioCodec
from quintet.families.audio_codec.task import AudioCodecTask
from quintet.training.options import TrainerOptions
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class AudioCodecTrainer(PythonTrainer):
    """Train an `AudioCodec` on a folder of audio files or a dataset object.

        AudioCodecTrainer(AudioCodec(dim=32, sample_rate=16_000), data="audio/", out="runs/codec", steps=10_000).train()

    Items of a dataset are waveforms at the model's sampling rate, alone or under the name `wavs`; captions are ignored.
    """

    config_class = AudioCodecConfig
    task_class = AudioCodecTask
    model_class = AudioCodec

    def __init__(self, model: AudioCodec, **options: Unpack[TrainerOptions]) -> None:
        super().__init__(model, **options)

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        config: AudioCodecConfig = task.config
        return python_audio_splits(
            data,
            config.data,
            config.model.sample_rate,
            validation=validation,
            declared=declared,
            captioned=False,
            channels=config.model.channels,
        )
