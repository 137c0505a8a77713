"""Convolution blocks over images that several tokenizers use."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 8
"""Channels per group of a group norm."""


class ResidualBlock(nn.Module):
    """Residual block: two pre-norm 3 x 3 convolutions, `(batch, dim, height, width)` to the same shape."""

    recomputable = True

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(dim // GROUP, dim)
        self.first = nn.Conv2d(dim, dim, 3, padding=1)
        self.second_norm = nn.GroupNorm(dim // GROUP, dim)
        self.second = nn.Conv2d(dim, dim, 3, padding=1)
        # Zero-initialised: a block starts close to the identity, whatever the depth.
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(F.silu(self.first_norm(x)))
        update: Tensor = self.second(F.silu(self.second_norm(hidden)))
        return x + update
