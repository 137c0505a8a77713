"""Owns `MuseTrainer`: the loop bound to the recipe `muse`, for use in Python."""

from __future__ import annotations

from quintet.families.muse.config import MuseConfig
from quintet.families.muse.task import MuseTask
from quintet.nn.maskgit import MaskGit
from quintet.training.python_trainer import PythonTrainer


class MuseTrainer(PythonTrainer):
    """Train a `MaskGit` on the codes of a folder of captioned pictures.

        MuseTrainer(tokenizer=open_link("runs/tok"), data="photos/", out="runs/muse", steps=10_000).train()

    `open_link` is that of `quintet.runs`. Without a model it is made to fit the tokenizer. With a `base`, a trained
    muse, it learns to draw the base's pictures larger. Any configuration key goes through `config={"optim.lr": 1e-4}`.
    """

    config_class = MuseConfig
    task_class = MuseTask
    model_class = MaskGit
    needs = ("tokenizer",)
