"""Learned positions on a line or a grid, and the checks of grids that rotary ones share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError

EMBEDDING_SCALE = 0.5
"""Standard deviation of fresh embeddings and positions. Much less than what a block adds, and tokens would drown in
the first blocks' noise until training has turned them up: measured with Muse, see docs/decisions/0008."""


class LearnedPositions(nn.Module):
    """One learned table for each axis of a grid; a place's vector is the sum of its rows."""

    def __init__(self, shape: Sequence[int], dim: int) -> None:
        super().__init__()
        self.shape = checked_shape(shape)
        self.tables = nn.ParameterList(torch.randn(size, dim) * EMBEDDING_SCALE for size in self.shape)

    def between(self, first: int, last: int) -> Tensor:
        """The vectors of the places from `first` to before `last` on a line."""
        part: Tensor = self.tables[0][checked_part(first, last, self.shape)]
        return part

    def at(self, places: Tensor) -> Tensor:
        """The vectors of places that are counted over the whole shape, last axis fastest; `(..., dim)`."""
        return F.embedding(places, self(self.shape))

    def forward(self, grid: Sequence[int]) -> Tensor:
        """The vectors of a grid that fits into the shape, `(tokens, dim)`, last axis fastest."""
        grid = checked_grid(grid, self.shape)
        total: Tensor = self.tables[0][: grid[0]]
        for table, size in zip(list(self.tables)[1:], grid[1:], strict=True):
            total = total[..., None, :] + table[:size]
        return total.reshape(-1, total.shape[-1])


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if not shape or min(shape) < 1:
        raise UsageError(f"Positions need a grid with at least one place on every axis, not {tuple(shape)}.")
    return tuple(shape)


def checked_grid(grid: Sequence[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(grid) != len(shape) or any(not 1 <= size <= most for size, most in zip(grid, shape, strict=True)):
        raise UsageError(f"A grid of {grid_text(grid)} does not fit into the positions of {grid_text(shape)}.")
    return tuple(grid)


def checked_part(first: int, last: int, shape: tuple[int, ...]) -> slice:
    if last > shape[0]:
        raise UsageError(f"{last} tokens do not fit into the positions of {grid_text(shape)}.")
    return slice(first, last)


def grid_text(grid: Sequence[int]) -> str:
    return " x ".join(map(str, grid))
