"""Owns `VQGanVAETrainer`: the loop bound to the recipe `vqgan`, for use in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quintet.data.image import python_splits
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.model import VQGanVAE
from quintet.families.vqgan.task import VQGanTask
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class VQGanVAETrainer(PythonTrainer):
    """Train a `VQGanVAE` on a folder or a data set object.

        VQGanVAETrainer(VQGanVAE(dim=64, image_size=128), data="photos/", out="runs/tok", steps=10_000).train()

    Any configuration key goes through `config={"optim.lr": 1e-4}`. The keywords of the trainer in
    muse-maskgit-pytorch are accepted too; docs/migration.md says what becomes of each.
    """

    config_class = VQGanConfig
    task_class = VQGanTask
    model_class = VQGanVAE

    @classmethod
    def keys_of(cls, model: VQGanVAE, arguments: Mapping[str, Any]) -> dict[str, Any]:
        side = arguments.get("image_size")
        if side is not None and (side, side) != model.config.size:
            raise UsageError(f"image_size={side}, but the model was built for image_size={model.config.image_size}")
        return {}

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        config: VQGanConfig = task.config
        size, channels = config.model.size, config.model.channels
        return python_splits(data, config.data, size, channels, validation=validation, declared=declared)
