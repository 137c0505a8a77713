"""Trainer of muse-maskgit-pytorch."""

from __future__ import annotations

from typing import Any

import torch

from quintet.compat.muse_maskgit_pytorch.vqgan import VQGanVAE
from quintet.compat.trainer import CompatTrainer, number
from quintet.errors import UsageError
from quintet.families.vqgan.model import VQGanVAE as OwnVQGanVAE
from quintet.families.vqgan.trainer import VQGanVAETrainer as OwnVQGanVAETrainer
from quintet.training.trainer import Logs


class VQGanVAETrainer(CompatTrainer):
    """Trains a `VQGanVAE` on a folder of images, with the arguments of the original."""

    own_class = OwnVQGanVAETrainer
    model_attribute = "vae"
    average_attribute = "ema_vae"
    checkpoint_name = "vae.{step}.pt"

    def adapt(self, model: Any, arguments: dict[str, Any], keys: dict[str, Any]) -> None:
        side = arguments.pop("image_size", None)
        if side is None:
            return
        if isinstance(model, VQGanVAE):
            model.set_image_size(side)
        elif isinstance(model, OwnVQGanVAE) and (side, side) != model.config.size:
            raise UsageError(f"image_size={side}, but the model was built for image_size={model.config.image_size}")

    def logs(self, logs: Logs) -> dict[str, Any]:
        """`loss`, `discr_loss` if there is a discriminator, and `reconstructions` (channels, height, width) if due."""
        shown: dict[str, Any] = {"loss": number(logs, "generator/loss")}
        if "discriminator" in self.own.task.modules:
            shown["discr_loss"] = number(logs, "discriminator/loss")
        if "reconstructions" in logs:
            shown["reconstructions"] = logs["reconstructions"].permute(2, 0, 1).float() / 255
        return shown

    @property
    def optim(self) -> torch.optim.Optimizer:
        return self.optimizer_of("generator")

    @property
    def discr_optim(self) -> torch.optim.Optimizer:
        return self.optimizer_of("discriminator")

    @property
    def vae_parameters(self) -> set[torch.nn.Parameter]:
        return set(self.own.unwrapped_model.parameters())
