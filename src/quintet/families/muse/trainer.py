"""`MuseTrainer`: trains a `MaskGit` on image codes from Python."""

from __future__ import annotations

from typing import Unpack

from quintet.families.muse.config import MuseConfig
from quintet.families.muse.task import MuseTask
from quintet.nn.maskgit import MaskGit
from quintet.pipelines.base import PipelineLike
from quintet.training.options import TrainerOptions
from quintet.training.python_trainer import PythonTrainer


class MuseTrainer(PythonTrainer):
    """Train a `MaskGit` on the codes of a folder of captioned images.

        MuseTrainer(tokenizer="runs/tok", data="photos/", out="runs/muse", steps=10_000).train()

    Without `model`, a model that fits the tokenizer is created. With `base`, a trained muse run, this trains a
    super-resolution model that enlarges the images of the base model.
    """

    config_class = MuseConfig
    task_class = MuseTask
    model_class = MaskGit
    needs = ("tokenizer",)

    def __init__(
        self,
        model: MaskGit | None = None,
        *,
        tokenizer: PipelineLike | None = None,
        base: PipelineLike | None = None,
        **options: Unpack[TrainerOptions],
    ) -> None:
        super().__init__(model, tokenizer=tokenizer, base=base, **options)
