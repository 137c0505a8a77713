"""Usages of the trainers of phenaki-pytorch."""

from __future__ import annotations

from pathlib import Path

import torch

from compat.trainers import Items, make_phenaki
from compat.usage import usage
from quintet.compat.phenaki_pytorch import PhenakiTrainer


@usage("PhenakiTrainer", "without a model and data", refused=" needs ")
def nothing_to_train() -> None:
    PhenakiTrainer(None, train_num_steps=1, batch_size=2)


@usage("PhenakiTrainer", "train_step() returns the loss; save and load by milestone")
def milestones(folder: Path) -> None:
    trainer = make_phenaki(folder)
    assert isinstance(trainer.train_step(), float)
    trainer.save(1)
    following = trainer.train_step()
    trainer.load(1)
    assert trainer.step == 1
    assert trainer.train_step() == following


@usage("PhenakiTrainer", "dataset_fields name the values of an item")
def fields(folder: Path) -> None:
    data = Items(lambda index: ("a clip", torch.rand(3, 5, 16, 16)))
    make_phenaki(folder, dataset=data, dataset_fields=("texts", "videos"), train_num_steps=1).train()


@usage("PhenakiTrainer", "codebook ids instead of videos")
def codes(folder: Path) -> None:
    data = Items(lambda index: (torch.randint(0, 16, (3, 2, 2)), "a clip"))
    make_phenaki(folder, dataset=data, train_num_steps=1).train()


@usage("PhenakiTrainer", "text_embeds instead of texts")
def embeddings(folder: Path) -> None:
    data = Items(lambda index: (torch.rand(3, 5, 16, 16), torch.randn(3, 768)))
    make_phenaki(folder, dataset=data, train_num_steps=1).train()


@usage("PhenakiTrainer", "train_on_images with num_frames, which it replaces")
def images(folder: Path) -> None:
    make_phenaki(folder, train_on_images=True, num_frames=17, train_num_steps=1).train()
