"""Owns finite scalar quantization (FSQ, 2309.15505): each of a few numbers is bounded and rounded to a fixed grid.

There is no codebook to learn, no auxiliary loss, and nothing that could collapse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.errors import UsageError
from quintet.nn.quantize.base import SingleQuantizer

LEVEL_SIZES: dict[int, tuple[int, ...]] = {
    2**8: (8, 6, 5),
    2**10: (8, 5, 5, 5),
    2**12: (7, 5, 5, 5, 5),
    2**14: (8, 8, 8, 6, 5),
    2**16: (8, 8, 8, 5, 5, 5),
}
"""The paper's grids for the usual sizes of codebooks. Their products are near the size, not equal to it."""

MARGIN = 1e-3
"""How far beyond the outermost grid points the bounded numbers reach, so that those points can be reached."""


class FiniteScalarQuantizer(SingleQuantizer):
    """Dimension i has `level_sizes[i]` grid points in [-1, 1], 0 among them; the first one is the lowest digit.

    `num_codes` is the product of the level sizes. An even number of points reaches one further below 0 than
    above. `depth` is the level in a residual quantizer: the grid is smaller by (size - 1)^depth, which is what
    the rounding of the level before leaves over.
    """

    def __init__(self, dim: int, level_sizes: Sequence[int], *, depth: int = 0) -> None:
        if len(level_sizes) == 0 or min(level_sizes) < 3:
            raise UsageError(f"FSQ needs level sizes of at least 3, not {list(level_sizes)}; for 2 use LFQ.")
        super().__init__(dim, len(level_sizes), math.prod(level_sizes))
        self.level_sizes = tuple(level_sizes)
        self.depth = depth

    def bound(self, latents: Tensor) -> Tensor:
        sizes, widths = self._sizes(latents), self._widths(latents)
        reach = (sizes - 1) * (1 + MARGIN) / 2
        offsets = (sizes % 2 == 0) / 2
        # The shift makes 0 in be 0 out, although an even grid is not symmetric.
        shifts = (offsets / reach).atanh()
        return ((latents + shifts).tanh() * reach - offsets) / widths

    def nearest(self, latents: Tensor, levels: int | None = None) -> Tensor:
        sizes, widths = self._sizes(latents), self._widths(latents)
        # A NaN must not become an index: the step that made it is skipped, but only after this.
        steps = (latents * (widths / self._scales(latents))).nan_to_num().round()
        digits = (steps + widths).clamp(min=0).minimum(sizes - 1)
        return (digits.long() * self._places(latents.device)).sum(-1)

    def look_up(self, codes: Tensor) -> Tensor:
        digits = codes[:, None] // self._places(codes.device) % torch.tensor(self.level_sizes, device=codes.device)
        widths = self._widths(self.placement)
        return (digits - widths) * (self._scales(widths) / widths)

    def auxiliary_loss(self, latents: Tensor, values: Tensor, valid: Tensor | None) -> Tensor:
        return latents.new_zeros(())

    def _sizes(self, like: Tensor) -> Tensor:
        return like.new_tensor(self.level_sizes)

    def _widths(self, like: Tensor) -> Tensor:
        """Grid steps from 0 to -1."""
        return like.new_tensor([size // 2 for size in self.level_sizes])

    def _scales(self, like: Tensor) -> Tensor:
        return like.new_tensor([float(size - 1) ** -self.depth for size in self.level_sizes])

    def _places(self, device: torch.device) -> Tensor:
        """What one step of each digit adds to the code."""
        return torch.tensor([math.prod(self.level_sizes[:i]) for i in range(self.code_dim)], device=device)


def grid_for(num_codes: int) -> tuple[int, ...]:
    """The paper's level sizes for about so many codes."""
    if num_codes not in LEVEL_SIZES:
        known = ", ".join(map(str, LEVEL_SIZES))
        raise UsageError(f"FSQ has no grid for {num_codes} codes; take one of {known}, or give level_sizes.")
    return LEVEL_SIZES[num_codes]
