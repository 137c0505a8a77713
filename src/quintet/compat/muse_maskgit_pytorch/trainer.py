"""Trainer with the keywords of muse-maskgit-pytorch."""

from __future__ import annotations

from typing import Any

from quintet.compat.translation import own_arguments
from quintet.errors import UsageError
from quintet.families.vqgan.model import VQGanVAE
from quintet.families.vqgan.trainer import VQGanVAETrainer as OwnVQGanVAETrainer


class VQGanVAETrainer(OwnVQGanVAETrainer):
    """quintet's `VQGanVAETrainer` that also accepts the keywords of muse-maskgit-pytorch."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        arguments = own_arguments("VQGanVAETrainer", positional, keywords)
        side, model = arguments.pop("image_size", None), arguments["model"]
        if side is not None and isinstance(model, VQGanVAE) and (side, side) != model.config.size:
            raise UsageError(f"image_size={side}, but the model was built for image_size={model.config.image_size}")
        super().__init__(**arguments)
