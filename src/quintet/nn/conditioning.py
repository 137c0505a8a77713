"""Owns what a masked transformer is told beside its tokens: texts, and the codes of a smaller picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.transformer import LearnedPositions, Transformer

Conditioning = Mapping[str, Tensor]
"""Batch first: `text` and `text_mask`, what a text becomes; `low`, the tokens of the smaller picture."""

LOW_DEPTH = 2


class LowVectors(NamedTuple):
    """What low-resolution tokens become: a context `(batch, places, text_dim)`, and `(batch, tokens, dim)` to add."""

    context: Tensor
    covering: Tensor


class LowResolution(nn.Module):
    """The codes of a smaller picture, for a model of super-resolution (Chang et al. 2023, 2301.00704).

    They pass through a small transformer into the context, as in the paper. Besides, every token's input gets the
    embedding of the code that covers it: that code is the best evidence for it, and attention need not learn first
    which place lies over which.
    """

    cover: Tensor

    def __init__(
        self, low_grid: Sequence[int], low_codes: int, grid: Sequence[int], dim: int, text_dim: int, heads: int
    ) -> None:
        super().__init__()
        if {len(low_grid), len(grid)} - {2, 3}:
            raise UsageError("model.grid and model.low_grid have rows and columns, and levels if there are any")
        self.low_grid, self.low_codes = tuple(low_grid), low_codes
        self.levels = math.prod(low_grid[2:])
        # The same code means something else at another level, so every level has rows of its own.
        self.embedding = nn.Embedding(self.levels * low_codes, text_dim)
        self.covering = nn.Embedding(self.levels * low_codes, dim)
        for table in (self.embedding, self.covering):
            nn.init.normal_(table.weight, std=0.02)
        self.transformer = Transformer(
            text_dim,
            LOW_DEPTH,
            heads,
            text_dim // heads,
            positions=LearnedPositions(low_grid[:2], text_dim),
        )
        # Not saved: it follows from the grids.
        self.register_buffer("cover", covering_places(low_grid, grid), persistent=False)

    def forward(self, low: Tensor) -> LowVectors:
        """`low` is (batch, tokens of the low grid)."""
        self._check(low)
        levels = rearrange(low, "b (places levels) -> b places levels", levels=self.levels)
        ids = levels + self.low_codes * torch.arange(self.levels, device=low.device)
        context = self.transformer(self.embedding(ids).sum(2))
        return LowVectors(context, self.covering(ids).sum(2)[:, self.cover])

    def _check(self, low: Tensor) -> None:
        expected = math.prod(self.low_grid)
        if low.dim() != 2 or low.shape[1] != expected:
            raise UsageError(
                f"low-resolution codes of shape {tuple(low.shape)} are not rows of {expected} "
                f"(model.low_grid={self.low_grid})"
            )
        # An index that is not there ends a GPU's process without saying which.
        if low.numel() and not 0 <= int(low.min()) <= int(low.max()) < self.low_codes:
            raise UsageError(
                f"low-resolution codes from {int(low.min())} to {int(low.max())} are not all in the vocabulary "
                f"of model.low_codes={self.low_codes}"
            )


def covering_places(low_grid: Sequence[int], grid: Sequence[int]) -> Tensor:
    """For each token of a grid, the place of the low grid under its centre; levels lie on one place."""
    rows, columns = (
        (2 * torch.arange(size) + 1) * low // (2 * size) for low, size in zip(low_grid[:2], grid[:2], strict=True)
    )
    places = rows[:, None] * low_grid[1] + columns
    return places.flatten().repeat_interleave(math.prod(grid[2:]))
