"""Usages of the trainers of meshgpt-pytorch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.optim import lr_scheduler

from compat.trainers import Items, make_autoencoder, make_transformer, mesh
from compat.usage import usage
from quintet.compat.meshgpt_pytorch import MeshAutoencoderTrainer


@usage("MeshAutoencoderTrainer", "without a model and data", refused=" needs ")
def nothing_to_train() -> None:
    MeshAutoencoderTrainer(None, num_train_steps=1, batch_size=2)


@usage("MeshAutoencoderTrainer", "any scheduler of torch, and arguments of the optimizer")
def scheduler(folder: Path) -> None:
    trainer = make_autoencoder(
        folder,
        num_train_steps=4,
        scheduler=lr_scheduler.StepLR,
        scheduler_kwargs={"step_size": 2, "gamma": 0.5},
        optimizer_kwargs={"amsgrad": True},
        warmup_steps=0,
    )
    trainer()
    assert trainer.optimizer.param_groups[0]["lr"] == trainer.learning_rate / 2


@usage("MeshAutoencoderTrainer", "a scheduler that follows the metrics", refused="cannot be resumed exactly")
def plateau(folder: Path) -> None:
    make_autoencoder(folder, scheduler=lr_scheduler.ReduceLROnPlateau)


@usage("MeshAutoencoderTrainer", "items as dictionaries, with face edges and texts")
def dictionaries(folder: Path) -> None:
    names = ("vertices", "faces", "face_edges", "texts")
    data = Items(lambda index: dict(zip(names, (*mesh(index), torch.tensor([[0, 1]]), "a box"), strict=True)))
    make_autoencoder(folder, dataset=data, num_train_steps=1)()


@usage("MeshAutoencoderTrainer", "data_kwargs name the values of an item")
def names_of_values(folder: Path) -> None:
    data = Items(lambda index: mesh(index)[::-1])
    options = {"val_dataset": None, "data_kwargs": ["faces", "vertices"], "num_train_steps": 1}
    make_autoencoder(folder, dataset=data, **options)()


@usage("MeshAutoencoderTrainer", "save(path), load(path), and the averaged tokenizer")
def saving(folder: Path) -> None:
    trainer = make_autoencoder(folder)
    trainer.train_step()
    trainer.save(folder / "mesh-autoencoder.pt")
    trainer.load(folder / "mesh-autoencoder.pt")
    assert trainer.step.item() == 1
    assert trainer.tokenize(**trainer.next_data_to_forward_kwargs(iter(trainer.dataloader))) is not None


@usage("MeshTransformerTrainer", "train on meshes, with a validation set")
def transformer(folder: Path) -> None:
    trainer = make_transformer(folder, num_train_steps=2, val_every=1)
    trainer()
    assert trainer.step == 2
