"""`TokenizerTrainer`: what the trainers of tokenizers of images and videos share, `VQGanVAETrainer` and
`CViViTTrainer`."""

from __future__ import annotations

from typing import Any

import torch

from quintet.compat.model import CompatModel, may_replace, replace_folder
from quintet.compat.trainer import CompatTrainer, number
from quintet.training.trainer import Logs


class TokenizerTrainer(CompatTrainer):
    """Trains a tokenizer and its discriminator."""

    model_attribute = "vae"
    average_attribute = "ema_vae"
    checkpoint_name = "vae.{step}.pt"

    def _show_checkpoint(self, number: int) -> None:
        """Also write the averaged weights of this step, as the folder `vae.N.ema.pt`."""
        super()._show_checkpoint(number)
        target = self._results / f"vae.{self.own.step}.ema.pt"
        if not self.has_ema or self.own.engine.is_sharded or not may_replace(target):
            return
        averaged = self.ema_vae.ema_model
        if isinstance(averaged, CompatModel):
            averaged.save(target)
        else:
            replace_folder(target, self.own.task.pipeline(self.own.state.averaged_modules()).contents())

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
