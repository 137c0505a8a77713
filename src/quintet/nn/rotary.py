"""Rotary position embeddings on a line or a grid (Su et al. 2021, 2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.positions import checked_grid, checked_part, checked_shape

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
