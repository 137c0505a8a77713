"""Low-rank adaptation of linear layers (LoRA, Hu et al. 2021, 2106.09685)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.rng import seed_from


class LoRALinear(nn.Linear):
    """A linear layer whose weight is fixed, plus the product of two trained factors: x -> W x + B A x.

    `lora_a` (rank, inputs) starts random and `lora_b` (outputs, rank) at 0, so that the layer starts as it was. There
    is no further scale (`alpha` equals the rank): the learning rate sets the size of the change.
    """

    def __init__(self, layer: nn.Linear, rank: int, seed: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        for parameter in layer.parameters():
            parameter.requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        down = torch.randn(rank, self.in_features, generator=generator) * self.in_features**-0.5
        self.lora_a = nn.Parameter(down.to(self.weight))
        self.lora_b = nn.Parameter(torch.zeros(self.out_features, rank).to(self.weight))

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias) + F.linear(F.linear(input, self.lora_a), self.lora_b)


def adaptable_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers inside the blocks of a module, by name. Embeddings and output layers are no part of a block."""
    return {
        ".".join(part for part in (block_name, name) if part): layer
        for block_name, block in module.named_modules()
        if getattr(type(block), "recomputable", False)
        for name, layer in block.named_modules()
        if type(layer) is nn.Linear
    }


def add_adapters(module: nn.Module, rank: int, seed: int) -> int:
    """Replace the linear layers inside the blocks of a module by adapted ones; returns their number.

    The start of an adapter depends on `seed` and its name only."""
    layers = adaptable_layers(module)
    for name, layer in layers.items():
        parent, _, own = name.rpartition(".")
        setattr(module.get_submodule(parent), own, LoRALinear(layer, rank, seed_from(seed, "lora", name)))
    return len(layers)
