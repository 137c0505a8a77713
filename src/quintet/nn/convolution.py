"""Owns blocks of convolutions over pictures, which more than one tokenizer has."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 8
"""Channels normalised together."""


class ResidualBlock(nn.Module):
    """Two normalised 3 x 3 convolutions beside the identity."""

    recomputable = True

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(dim // GROUP, dim)
        self.first = nn.Conv2d(dim, dim, 3, padding=1)
        self.second_norm = nn.GroupNorm(dim // GROUP, dim)
        self.second = nn.Conv2d(dim, dim, 3, padding=1)
        # A block starts by adding no more than a constant, so that depth costs nothing at the beginning.
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(F.silu(self.first_norm(x)))
        update: Tensor = self.second(F.silu(self.second_norm(hidden)))
        return x + update
