"""Usages of the trainers of phenaki-pytorch."""

from __future__ import annotations

from compat.usage import usage
from quintet.compat.phenaki_pytorch import PhenakiTrainer


@usage("PhenakiTrainer", "without a model and data", refused=" needs ")
def nothing_to_train() -> None:
    PhenakiTrainer(None, train_num_steps=1, batch_size=2)
