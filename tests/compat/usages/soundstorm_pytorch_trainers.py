"""Usages of the trainers of soundstorm-pytorch."""

from __future__ import annotations

from compat.usage import usage
from quintet.compat.soundstorm_pytorch import SoundStormTrainer


@usage("SoundStormTrainer", "without a model and data", refused=" needs ")
def nothing_to_train() -> None:
    SoundStormTrainer(None, num_train_steps=1, batch_size=2)
