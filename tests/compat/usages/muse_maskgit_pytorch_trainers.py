"""Usages of the trainers of muse-maskgit-pytorch."""

from __future__ import annotations

from compat.usage import usage
from quintet.compat.muse_maskgit_pytorch import VQGanVAETrainer


@usage("VQGanVAETrainer", "without a model and data", refused=" needs ")
def nothing_to_train() -> None:
    VQGanVAETrainer(None, num_train_steps=1, batch_size=2)
