"""Trainer of muse-maskgit-pytorch."""

from __future__ import annotations

from typing import Any

from quintet.compat.muse_maskgit_pytorch.vqgan import VQGanVAE
from quintet.compat.tokenizer_trainer import TokenizerTrainer
from quintet.errors import UsageError
from quintet.families.vqgan.model import VQGanVAE as OwnVQGanVAE
from quintet.families.vqgan.trainer import VQGanVAETrainer as OwnVQGanVAETrainer


class VQGanVAETrainer(TokenizerTrainer):
    """Trains a `VQGanVAE` on a folder of images, with the arguments of the original."""

    own_class = OwnVQGanVAETrainer

    def adapt(self, model: Any, arguments: dict[str, Any], keys: dict[str, Any]) -> None:
        side = arguments.pop("image_size", None)
        if side is None:
            return
        if isinstance(model, VQGanVAE):
            model.set_image_size(side)
        elif isinstance(model, OwnVQGanVAE) and (side, side) != model.config.size:
            raise UsageError(f"image_size={side}, but the model was built for image_size={model.config.image_size}")
