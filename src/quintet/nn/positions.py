"""Position embeddings on a line or a grid: learned, and rotary (RoPE, Su et al. 2021, 2104.09864)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError

EMBEDDING_SCALE = 0.5
"""Standard deviation of initial token and position embeddings. With a much smaller one, tokens would be lost in the
output of the first blocks until training has scaled them up: measured with Muse, see docs/decisions/0008."""


class LearnedPositions(nn.Module):
    """Learned position embeddings: one table per axis of a grid; the vector of a position is the sum over axes."""

    def __init__(self, shape: Sequence[int], dim: int) -> None:
        super().__init__()
        self.shape = checked_shape(shape)
        self.tables = nn.ParameterList(torch.randn(size, dim) * EMBEDDING_SCALE for size in self.shape)

    def between(self, first: int, last: int) -> Tensor:
        """The vectors `(last - first, dim)` of the positions from `first` to before `last` on a line."""
        part: Tensor = self.tables[0][checked_part(first, last, self.shape)]
        return part

    def at(self, position_ids: Tensor) -> Tensor:
        """The vectors `(..., dim)` of positions, given as flat indices into the full shape (last axis fastest)."""
        return F.embedding(position_ids, self(self.shape))

    def forward(self, grid: Sequence[int]) -> Tensor:
        """The vectors `(tokens, dim)` of a grid that fits into the shape, last axis fastest."""
        grid = checked_grid(grid, self.shape)
        total: Tensor = self.tables[0][: grid[0]]
        for table, size in zip(list(self.tables)[1:], grid[1:], strict=True):
            total = total[..., None, :] + table[:size]
        return total.reshape(-1, total.shape[-1])


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if not shape or min(shape) < 1:
        raise UsageError(f"Position embeddings need a grid with at least one position per axis, not {tuple(shape)}.")
    return tuple(shape)


def checked_grid(grid: Sequence[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(grid) != len(shape) or any(not 1 <= size <= most for size, most in zip(grid, shape, strict=True)):
        raise UsageError(f"A grid of {grid_text(grid)} does not fit into position embeddings of {grid_text(shape)}.")
    return tuple(grid)


def checked_part(first: int, last: int, shape: tuple[int, ...]) -> slice:
    if last > shape[0]:
        raise UsageError(f"{last} tokens do not fit into position embeddings of {grid_text(shape)}.")
    return slice(first, last)


def grid_text(grid: Sequence[int]) -> str:
    return " x ".join(map(str, grid))


CosSin = tuple[Tensor, Tensor]
"""Cosines and sines of rotary embeddings, each `(tokens, 1, head_dim)` or `(batch, tokens, 1, head_dim)`. The sines of
the first coordinate of each plane have a negative sign."""


class Rotary(nn.Module):
    """Rotary position embeddings: rotate queries and keys by their position, so that attention depends on distances.

    The `head_dim / 2` planes of a head are divided among the axes of the grid. A plane consists of the coordinates i
    and `head_dim / 2` + i.
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
            count = planes // axes + (axis < planes % axes)
            frequencies = theta ** -(torch.arange(count, dtype=torch.float64) / count)
            positions = torch.arange(size, dtype=torch.float64).view(-1, *[1] * (axes - axis))
            angles.append((positions * frequencies).expand(*self.shape, count))
        full = torch.cat(angles, dim=-1)[..., None, :]
        # Not saved: determined by the shape, and a larger grid can use the same checkpoint.
        for name, halves in (("cosines", (full.cos(), full.cos())), ("sines", (-full.sin(), full.sin()))):
            self.register_buffer(name, torch.cat(halves, dim=-1).to(torch.get_default_dtype()), persistent=False)

    def between(self, first: int, last: int) -> CosSin:
        """The cosines and sines of the positions from `first` to before `last` on a line."""
        part = checked_part(first, last, self.shape)
        return self.cosines[part], self.sines[part]

    def at(self, position_ids: Tensor) -> CosSin:
        """The cosines and sines of positions, given as flat indices into the full shape (last axis fastest)."""
        return self.cosines.flatten(0, -3)[position_ids], self.sines.flatten(0, -3)[position_ids]

    def forward(self, grid: Sequence[int]) -> CosSin:
        """The cosines and sines of a grid that fits into the shape."""
        part = tuple(slice(size) for size in checked_grid(grid, self.shape))
        return self.cosines[part].flatten(0, -3), self.sines[part].flatten(0, -3)


def apply_rotary(x: Tensor, cos_sin: CosSin) -> Tensor:
    """Rotate `(batch, tokens, heads, head_dim)`, in the dtype of `cos_sin`; the result has the dtype of `x`."""
    cosines, sines = cos_sin
    # Converted once: products of different dtypes are slow on a CPU.
    wide = x.to(torch.promote_types(x.dtype, cosines.dtype))
    # Rolled by half, every coordinate is at the index of the other one of its plane.
    rotated = wide * cosines + wide.roll(x.shape[-1] // 2, dims=-1) * sines
    return rotated.to(x.dtype)


def waves(bins: int, count: int) -> Tensor:
    """Smooth functions of the bin index, (bins, count): cosines with a period of at least eight bins and power one.

    Embeddings with this initialisation are similar for adjacent bins, which need not be learned from the data.
    """
    positions = (torch.arange(bins) + 0.5) / bins
    half_waves = torch.arange(1, count + 1) * min(1.0, bins / (4 * count))
    return math.sqrt(2) * torch.cos(math.pi * positions[:, None] * half_waves)
