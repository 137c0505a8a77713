"""`VQGanVAETrainer`: trains a `VQGanVAE` from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from quintet.data.image import python_splits
from quintet.data.splits import Splits
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.model import VQGanVAE
from quintet.families.vqgan.task import VQGanTask
from quintet.training.options import TrainerOptions
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class VQGanVAETrainer(PythonTrainer):
    """Train a `VQGanVAE` on a folder or a dataset object.

        VQGanVAETrainer(VQGanVAE(dim=64, image_size=128), data="photos/", out="runs/tok", steps=10_000).train()

    Set any other configuration key with `config={"optim.lr": 1e-4}`.
    """

    config_class = VQGanConfig
    task_class = VQGanTask
    model_class = VQGanVAE

    def __init__(self, model: VQGanVAE, **options: Unpack[TrainerOptions]) -> None:
        super().__init__(model, **options)

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        config: VQGanConfig = task.config
        size, channels = config.model.size, config.model.channels
        return python_splits(data, config.data, size, channels, validation=validation, declared=declared)
