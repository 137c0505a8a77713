"""Usages of the trainers of musiclm-pytorch."""

from __future__ import annotations

from compat.usage import usage
from quintet.compat.musiclm_pytorch import MuLaNTrainer


@usage("MuLaNTrainer", "without a model and data", refused=" needs ")
def nothing_to_train() -> None:
    MuLaNTrainer(None, num_train_steps=1, batch_size=2)
