"""`CViViTTrainer`: trains a `CViViT` from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

from quintet.data.splits import Splits
from quintet.data.video import python_video_splits
from quintet.families.cvivit.config import CViViTConfig
from quintet.families.cvivit.model import CViViT
from quintet.families.cvivit.task import CViViTTask
from quintet.training.options import TrainerOptions
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class CViViTTrainer(PythonTrainer):
    """Train a `CViViT` on a folder or a dataset object.

        CViViTTrainer(CViViT(dim=256, image_size=64), data="clips/", out="runs/tok", steps=10_000).train()

    Set any other configuration key with `config={"data.frames": 9}`.
    """

    config_class = CViViTConfig
    task_class = CViViTTask
    model_class = CViViT
    unclamped: ClassVar[bool] = False
    """Whether floating-point videos of a data set keep pixels outside [0, 1]."""

    def __init__(self, model: CViViT, **options: Unpack[TrainerOptions]) -> None:
        super().__init__(model, **options)

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        config: CViViTConfig = task.config
        return python_video_splits(
            data, config.data, config.model.size, validation=validation, declared=declared, unclamped=cls.unclamped
        )
