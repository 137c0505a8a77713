"""`MuLaNTrainer`: trains a `MuLaN` from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from quintet.data.audio import python_audio_splits
from quintet.data.splits import Splits
from quintet.families.mulan.config import MuLaNConfig
from quintet.families.mulan.data import check_captions
from quintet.families.mulan.model import MuLaN
from quintet.families.mulan.task import MuLaNTask
from quintet.training.options import CONTRASTIVE_BATCH, TrainerOptions
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class MuLaNTrainer(PythonTrainer):
    """Train a `MuLaN` on a folder of captioned audio files or a dataset object.

        MuLaNTrainer(MuLaN(latent_dim=128), data="audio/", out="runs/mulan", steps=10_000, batch_size=64).train()

    Items of a dataset hold `wavs`, samples at the model's sampling rate, and `texts`, a caption or token ids.
    """

    config_class = MuLaNConfig
    task_class = MuLaNTask
    model_class = MuLaN
    batch_sizes = CONTRASTIVE_BATCH

    def __init__(self, model: MuLaN, **options: Unpack[TrainerOptions]) -> None:
        super().__init__(model, **options)

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        assert isinstance(task, MuLaNTask)
        config = task.config
        rate = config.model.audio.sample_rate
        splits = python_audio_splits(data, config.data, rate, validation=validation, declared=declared)
        check_captions(splits, config, task.mulan.text)
        return splits
