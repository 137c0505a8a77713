"""Usages of the trainers of meshgpt-pytorch."""

from __future__ import annotations

from compat.usage import usage
from quintet.compat.meshgpt_pytorch import MeshAutoencoderTrainer


@usage("MeshAutoencoderTrainer", "without a model and data", refused=" needs ")
def nothing_to_train() -> None:
    MeshAutoencoderTrainer(None, num_train_steps=1, batch_size=2)
