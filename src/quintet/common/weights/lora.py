"""Low-rank adapters (LoRA, 2106.09685) in saved weights: their names, and merging them into the weights they adapt.

A checkpoint of a run with `train.lora` has both, `NAME.weight` and the factors `NAME.lora_a` and `NAME.lora_b`. Whoever
opens it for anything but resuming merges them, so that pipelines and exports know plain weights only.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

DOWN, UP = "lora_a", "lora_b"
"""Names of the factors: (rank, inputs) and (outputs, rank)."""


def is_adapter(name: str) -> bool:
    """Whether a parameter is a factor of an adapter."""
    return name.rpartition(".")[2] in (DOWN, UP)


def merged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights without adapters: `weight + lora_b @ lora_a`; tensors without adapters are unchanged."""
    plain = {name: tensor for name, tensor in tensors.items() if not is_adapter(name)}
    for name in tensors:
        layer = name.removesuffix(DOWN)
        parts = [layer + each for each in ("weight", DOWN, UP)]
        if all(each in tensors for each in parts):
            weight, down, up = (tensors[each] for each in parts)
            plain[parts[0]] = torch.addmm(weight, up.to(weight.dtype), down.to(weight.dtype))
    return plain
