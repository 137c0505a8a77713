"""Usages of the trainer of musiclm-pytorch."""

from __future__ import annotations

from pathlib import Path

import torch

from compat.trainers import Items, make_mulan
from compat.usage import usage
from compat.usages.musiclm_pytorch import mulan
from quintet.compat.musiclm_pytorch import MuLaNTrainer


@usage("MuLaNTrainer", "without a model and data", refused=" needs ")
def nothing_to_train() -> None:
    MuLaNTrainer(None, num_train_steps=1, batch_size=2)


@usage("MuLaNTrainer", "train on a data set of clips and texts; one step per item by default")
def train() -> None:
    data = Items(lambda index: (torch.randn(1024 + index), f"sound {index}"), 5)
    trainer = MuLaNTrainer(mulan(), data, batch_size=2)
    trainer.train()
    assert trainer.steps == trainer.num_train_steps == len(data)


@usage("MuLaNTrainer", "train_step() in a loop saves to results_folder, and load(path) continues")
def steps(folder: Path) -> None:
    trainer = make_mulan(folder, save_model_every=2)
    losses = [trainer.train_step()["loss"] for _ in range(4)]
    assert all(isinstance(loss, float) for loss in losses)
    trainer.load(trainer.results_folder / "mulan.2.pt")
    assert trainer.steps == 2
    assert trainer.train_step()["loss"] == losses[2]


@usage("MuLaNTrainer", "a batch of one item", refused="at least 2")
def one_item() -> None:
    MuLaNTrainer(mulan(), Items(lambda index: (torch.randn(1024), "a sound")), batch_size=1)
