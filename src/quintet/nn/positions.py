"""Positions on a line or a grid: learned ones, and rotary ones (Su et al. 2021, 2104.09864)."""

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


CosSin = tuple[Tensor, Tensor]
"""Cosines and sines, each `(tokens, 1, head_dim)` or with the batch before, by which queries and keys are rotated. As
a plane's first coordinate loses what its second one gains, the sines of first ones are negative."""


class Rotary(nn.Module):
    """Rotates queries and keys by their position on a grid, so that attention sees distances.

    The `head_dim / 2` planes of a head are shared out among the axes. A plane is made of the coordinates i and
    `head_dim / 2` + i.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(self, shape: Sequence[int], head_dim: int, theta: float = 10_000.0) -> None:
        super().__init__()
        self.shape = checked_shape(shape)
        axes, planes = len(self.shape), head_dim // 2
        if head_dim % 2 or planes < axes:
            raise UsageError(f"Rotary positions on {axes} axes need an even head_dim of at least {2 * axes}.")
        angles = []
        for axis, size in enumerate(self.shape):
            share = planes // axes + (axis < planes % axes)
            speeds = theta ** -(torch.arange(share, dtype=torch.float64) / share)
            places = torch.arange(size, dtype=torch.float64).view(-1, *[1] * (axes - axis))
            angles.append((places * speeds).expand(*self.shape, share))
        whole = torch.cat(angles, dim=-1)[..., None, :]
        # Not saved: they follow from the shape, and a longer grid may continue from the same weights.
        for name, halves in (("cosines", (whole.cos(), whole.cos())), ("sines", (-whole.sin(), whole.sin()))):
            self.register_buffer(name, torch.cat(halves, dim=-1).to(torch.get_default_dtype()), persistent=False)

    def between(self, first: int, last: int) -> CosSin:
        """The cosines and sines of the places from `first` to before `last` on a line."""
        part = checked_part(first, last, self.shape)
        return self.cosines[part], self.sines[part]

    def at(self, places: Tensor) -> CosSin:
        """The cosines and sines of places that are counted over the whole shape, last axis fastest."""
        return self.cosines.flatten(0, -3)[places], self.sines.flatten(0, -3)[places]

    def forward(self, grid: Sequence[int]) -> CosSin:
        """The cosines and sines of a grid that fits into the shape."""
        part = tuple(slice(size) for size in checked_grid(grid, self.shape))
        return self.cosines[part].flatten(0, -3), self.sines[part].flatten(0, -3)


def apply_rotary(x: Tensor, cos_sin: CosSin) -> Tensor:
    """Rotate `(batch, tokens, heads, head_dim)`, in the precision of the angles."""
    cosines, sines = cos_sin
    # Half way round, every coordinate lies where the other one of its plane was.
    rotated = x * cosines + x.roll(x.shape[-1] // 2, dims=-1) * sines
    return rotated.to(x.dtype)
