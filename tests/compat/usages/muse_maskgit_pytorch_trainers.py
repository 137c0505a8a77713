"""Usages of the trainer of muse-maskgit-pytorch."""

from __future__ import annotations

from pathlib import Path

import torch

from compat.trainers import make_vqgan, vae
from compat.usage import usage
from quintet.compat.muse_maskgit_pytorch import VQGanVAETrainer


@usage("VQGanVAETrainer", "without a model and data", refused=" needs ")
def nothing_to_train() -> None:
    VQGanVAETrainer(None, num_train_steps=1, batch_size=2)


@usage("VQGanVAETrainer", "train_step() in a loop saves, samples and returns the losses")
def steps(folder: Path) -> None:
    trainer = make_vqgan(folder, save_model_every=2, save_results_every=2)
    logs = [trainer.train_step() for _ in range(2)]
    assert [isinstance(log["loss"] + log["discr_loss"], float) for log in logs] == [True, True]
    assert logs[1]["reconstructions"].shape[0] == 3
    assert trainer.ema_vae(torch.rand(1, 3, 16, 16)).shape == (1, 3, 16, 16)


@usage("VQGanVAETrainer", "the model loads a checkpoint of the trainer")
def load_into_the_model(folder: Path) -> None:
    trainer = make_vqgan(folder, num_train_steps=2, save_model_every=2)
    trainer.train()
    model = vae()
    model.load(folder / "results" / "vae.2.pt")
    images = torch.rand(1, 3, 16, 16)
    model.eval(), trainer.vae.eval()
    torch.testing.assert_close(model(images), trainer.vae(images))


@usage("VQGanVAETrainer", "the model loads the averaged weights, vae.N.ema.pt")
def load_the_average(folder: Path) -> None:
    trainer = make_vqgan(folder, num_train_steps=2, save_model_every=2)
    trainer.train()
    model = vae().eval()
    model.load(folder / "results" / "vae.2.ema.pt")
    images = torch.rand(1, 3, 16, 16)
    torch.testing.assert_close(model(images), trainer.ema_vae(images))


@usage("VQGanVAETrainer", "a second training in the same results folder; nothing is overwritten")
def twice(folder: Path) -> None:
    for _ in range(2):
        make_vqgan(folder, num_train_steps=1).train()
    assert (folder / "results" / "vqgan-1").is_dir()
    assert (folder / "results" / "vqgan-2").is_dir()
