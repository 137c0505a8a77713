"""Owns `FrozenModel`: another trained model that a recipe stands on, frozen, such as the tokenizer of a generator.

A run keeps a copy of what it stands on in its own folder, so that it can be resumed, sampled and moved when the
original is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quintet.common.batch import Batch
from quintet.common.inference import inference_mode
from quintet.common.weights.checkpoint import Contents
from quintet.common.weights.loading import weights_digest
from quintet.data.tokenized import TokenEncoder

if TYPE_CHECKING:
    from quintet.training.task import Task


@dataclass
class FrozenModel:
    """A trained model to build on. Nothing of it is trained, averaged or saved among the run's own modules."""

    recipe: Task[Any]
    modules: dict[str, nn.Module]
    reference: str
    """What the person called it."""
    contents: Contents
    """The folder that `quintet export` would write of it."""

    def __post_init__(self) -> None:
        for net in self.modules.values():
            net.eval().requires_grad_(False)

    @property
    def model(self) -> Any:
        return self.modules[self.recipe.exported]

    @cached_property
    def digest(self) -> str:
        """A hash of the weights: two models with the same one encode alike."""
        return weights_digest(self.recipe.name, self.model)

    def to(self, device: torch.device) -> None:
        """To the device, with all that it stands on itself."""
        for net in self.modules.values():
            net.to(device)
        for link in self.recipe.links.values():
            link.to(device)

    def encode(self, batch: Batch, **options: Any) -> Tensor:
        """Codes of media, wherever the model is; without gradient. `options` are those of its own kind of recipe."""
        # A model may have nothing to learn and still have tables.
        device = next(chain(self.model.parameters(), self.model.buffers())).device
        with inference_mode(self.modules):
            return self.recipe.encode(self.modules, batch.to(device, torch.float32), **options)

    def token_encoder(self) -> TokenEncoder:
        """The model as the token cache needs it."""
        return TokenEncoder(self.digest, self.recipe.collate, self.encode)
