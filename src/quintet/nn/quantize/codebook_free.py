"""Quantizers with a fixed grid of codes instead of a codebook: LFQ (MAGVIT-v2, 2310.05737) and FSQ (2309.15505).

LFQ: a code is the signs of log2(codes) numbers. The entropy loss minimises the entropy of each vector's code
distribution and maximises the entropy of the batch's mean distribution. The paper's softmax over all codes, of
exp(2 * inverse_temperature * latent . code), factorises into independent bits with log odds
4 * inverse_temperature * scale * latent. So the entropy of a vector is the sum of the entropies of its bits, and the
mean distribution over all 2^bits codes is one matrix product of the distributions of two halves of the bits: exact,
with 2^bits numbers in memory instead of positions * 2^bits.

FSQ: each of a few numbers is bounded and rounded. It has no auxiliary loss and no codebook that could collapse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common import collectives
from quintet.errors import UsageError
from quintet.nn.quantize.base import SingleQuantizer


class LookupFreeQuantizer(SingleQuantizer):
    """LFQ: codes are signs; the first dimension is the highest bit, and values are `scale` or `-scale`.

    loss = `entropy_weight` * (entropy of a vector - `diversity_gamma` * entropy of the batch)
    + `commitment_weight` * mean squared distance, all as means over the global batch; entropies in nats.
    With `inverse_temperature` 100 and scale 1, a bit is uncertain only within about 0.01 of 0. `depth` is the level
    in a residual quantizer: the scale is 2^-depth.
    """

    def __init__(
        self,
        dim: int,
        num_codes: int,
        *,
        entropy_weight: float = 0.1,
        diversity_gamma: float = 4.0,
        commitment_weight: float = 0.25,
        inverse_temperature: float = 100.0,
        depth: int = 0,
    ) -> None:
        super().__init__(dim, bits_of(num_codes), num_codes)
        self.entropy_weight = entropy_weight
        self.diversity_gamma = diversity_gamma
        self.commitment_weight = commitment_weight
        self.inverse_temperature = inverse_temperature
        self.scale = 2.0**-depth

    def nearest(self, latents: Tensor, levels: int | None = None) -> Tensor:
        return ((latents > 0).long() << bit_shifts(self.code_dim, latents.device)).sum(-1)

    def look_up(self, codes: Tensor) -> Tensor:
        bits = (codes[:, None] >> bit_shifts(self.code_dim, codes.device)) & 1
        return (2 * bits - 1).to(self.placement.dtype) * self.scale

    def auxiliary_loss(self, latents: Tensor, values: Tensor, valid: Tensor | None) -> Tensor:
        log_odds = latents * (4 * self.inverse_temperature * self.scale)
        no, yes = F.logsigmoid(-log_odds), F.logsigmoid(log_odds)
        weights = latents.new_ones(len(latents)) if valid is None else valid.to(latents.dtype)
        half = self.code_dim // 2
        high = joint_probabilities(no[:, :half], yes[:, :half]) * weights[:, None]
        low = joint_probabilities(no[:, half:], yes[:, half:])
        entropies = -(no.exp() * no + yes.exp() * yes).sum(-1)
        distances = (latents - values).square().mean(-1)
        sums = torch.stack([weights.sum(), weights @ entropies, weights @ distances])
        # One collective for all sums; the rest is the same on every rank.
        sums = collectives.sum_over_ranks(torch.cat([sums, (high.t() @ low).flatten()]))
        means = sums[1:] / sums[0].detach().clamp(min=1)
        entropy, distance, average = means[0], means[1], means[2:]
        # Avoids an infinite gradient for codes of probability 0.
        diversity = -(average * average.clamp(min=torch.finfo(average.dtype).tiny).log()).sum()
        entropy_loss = entropy - self.diversity_gamma * diversity
        return self.entropy_weight * entropy_loss + self.commitment_weight * distance


def bit_shifts(bits: int, device: torch.device) -> Tensor:
    """The bit index of each dimension in the code, highest first, `(bits,)`."""
    return torch.arange(bits - 1, -1, -1, device=device)


def joint_probabilities(no: Tensor, yes: Tensor) -> Tensor:
    """Probabilities `(n, 2^bits)` of all combinations of independent bits, from log probabilities `(n, bits)`.

    All logarithms have the same sign, so their sums, computed as one matrix product, lose no precision.
    """
    bits = no.shape[-1]
    words = torch.arange(2**bits, device=no.device)[:, None] >> bit_shifts(bits, no.device) & 1
    chosen = torch.cat([1 - words, words], -1).to(no.dtype)
    return (torch.cat([no, yes], -1) @ chosen.t()).exp()


def bits_of(num_codes: int) -> int:
    """log2 of `num_codes`, which must be a power of two."""
    bits = max(num_codes, 0).bit_length() - 1
    if bits < 1 or num_codes != 2**bits:
        below = 2 ** max(bits, 1)
        raise UsageError(f"LFQ needs a power of two as num_codes, not {num_codes}; use {below} or {2 * below}.")
    return bits


LEVEL_SIZES: dict[int, tuple[int, ...]] = {
    2**8: (8, 6, 5),
    2**10: (8, 5, 5, 5),
    2**12: (7, 5, 5, 5, 5),
    2**14: (8, 8, 8, 6, 5),
    2**16: (8, 8, 8, 5, 5, 5),
}
"""The paper's grids for common codebook sizes. The product of the level sizes is close to the codebook size."""

MARGIN = 1e-3
"""Relative margin of bounded values beyond the outermost grid points, so that those points can be reached."""


class FiniteScalarQuantizer(SingleQuantizer):
    """FSQ: dimension i has `level_sizes[i]` grid points in [-1, 1], including 0; the first is the lowest digit.

    `num_codes` is the product of the level sizes. A grid with an even number of points has one more point below 0 than
    above. `depth` is the level in a residual quantizer: the grid is smaller by (size - 1)^depth, the size of the
    rounding error of the previous level.
    """

    def __init__(self, dim: int, level_sizes: Sequence[int], *, depth: int = 0) -> None:
        if len(level_sizes) == 0 or min(level_sizes) < 3:
            raise UsageError(f"FSQ needs level sizes of at least 3, not {list(level_sizes)}; for 2 use LFQ.")
        super().__init__(dim, len(level_sizes), math.prod(level_sizes))
        self.level_sizes = tuple(level_sizes)
        self.depth = depth
        # Buffers, because a constant that a forward pass creates is a copy to the GPU that it waits for.
        self.sizes: Tensor
        self.strides: Tensor
        self.scales: Tensor
        self.register_buffer("sizes", torch.tensor(self.level_sizes), persistent=False)
        strides = [math.prod(self.level_sizes[:i]) for i in range(self.code_dim)]
        self.register_buffer("strides", torch.tensor(strides), persistent=False)
        self.register_buffer("scales", torch.tensor(self._exact_scales), persistent=False)

    def bound(self, latents: Tensor) -> Tensor:
        sizes, widths = self.sizes.to(latents.dtype), self._widths(latents.dtype)
        reach = (sizes - 1) * (1 + MARGIN) / 2
        offsets = (sizes % 2 == 0) / 2
        # The shift maps 0 to 0, although an even grid is not symmetric.
        shifts = (offsets / reach).atanh()
        return ((latents + shifts).tanh() * reach - offsets) / widths

    def nearest(self, latents: Tensor, levels: int | None = None) -> Tensor:
        sizes, widths = self.sizes.to(latents.dtype), self._widths(latents.dtype)
        # A NaN must not become an index: the step that produced it is skipped only later.
        steps = (latents * (widths / self._scales(latents.dtype))).nan_to_num().round()
        digits = (steps + widths).clamp(min=0).minimum(sizes - 1)
        return (digits.long() * self.strides).sum(-1)

    def look_up(self, codes: Tensor) -> Tensor:
        digits = codes[:, None] // self.strides % self.sizes
        widths = self._widths(self.placement.dtype)
        return (digits - widths) * (self._scales(widths.dtype) / widths)

    def auxiliary_loss(self, latents: Tensor, values: Tensor, valid: Tensor | None) -> Tensor:
        return latents.new_zeros(())

    def _widths(self, dtype: torch.dtype) -> Tensor:
        """Number of grid steps from 0 to -1, `(code_dim,)`."""
        return (self.sizes // 2).to(dtype)

    @property
    def _exact_scales(self) -> list[float]:
        return [float(size - 1) ** -self.depth for size in self.level_sizes]

    def _scales(self, dtype: torch.dtype) -> Tensor:
        if dtype == self.scales.dtype == torch.float32:
            return self.scales
        return torch.tensor(self._exact_scales, dtype=dtype, device=self.sizes.device)


def grid_for(num_codes: int) -> tuple[int, ...]:
    """The paper's level sizes for about `num_codes` codes."""
    if num_codes not in LEVEL_SIZES:
        known = ", ".join(map(str, LEVEL_SIZES))
        raise UsageError(f"FSQ has no default grid for {num_codes} codes; use one of {known}, or set level_sizes.")
    return LEVEL_SIZES[num_codes]
