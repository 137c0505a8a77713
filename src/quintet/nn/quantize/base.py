"""Base classes of quantizers: projection to code space and back, losses, codes and statistics.

A quantizer takes `(batch, positions, dim)`. Its code space may have fewer dimensions, with two linear projections.
Everything inside runs in fp32 (fp64 for fp64 input), also under autocast, so that codes depend on the precision of the
model only through the input.

Padding (`mask` false) gets code -1 and a zero vector. It takes no part in losses and statistics, and affects no other
position, even if it is NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.precision import at_least_fp32
from quintet.common.statistics import Statistics
from quintet.errors import UsageError


class Quantized(NamedTuple):
    """Output of a quantizer.

    `vectors` `(batch, positions, dim)` are the quantized vectors in the dtype of the input, with a straight-through
    gradient. `codes` are int64 `(batch, positions)`, or `(batch, positions, levels)` for a residual quantizer. `loss`
    is the weighted auxiliary loss; its average over ranks is the loss of the global batch. `statistics` are the input
    of `update`, after summation over micro-batches and ranks.
    """

    vectors: Tensor
    codes: Tensor
    loss: Tensor
    statistics: Statistics


class Projection(nn.Linear):
    """A linear layer that computes in the dtype of its input, whatever the dtype of its weights."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.to(input.dtype), self.bias.to(input.dtype))


class Quantizer(nn.Module, ABC):
    """Base class of single and residual quantizers.

    `forward` changes no state, and may communicate with other ranks, so all ranks must call it; `encode` and
    `codes_to_vectors` are local. `update` and `init_from_data` change the state and must be called by all ranks with
    the same arguments.
    """

    levels: int = 1
    """Number of residual quantizers."""
    code_axes: int = 0
    """Number of extra axes of the codes: 1 for a residual quantizer (its levels), else 0."""

    def __init__(self, dim: int, code_dim: int, num_codes: int) -> None:
        super().__init__()
        if min(dim, code_dim) < 1:
            raise UsageError(f"A quantizer needs dimensions of at least 1, not dim={dim} and code_dim={code_dim}.")
        self.dim = dim
        self.code_dim = code_dim
        self.num_codes = num_codes
        self.project_in: nn.Module = Projection(dim, code_dim) if dim != code_dim else nn.Identity()
        self.project_out: nn.Module = Projection(code_dim, dim) if dim != code_dim else nn.Identity()
        # An empty buffer that knows the device and dtype of the module, also without weights or a codebook.
        self.placement: Tensor
        self.register_buffer("placement", torch.empty(0), persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, return_candidates: bool = False) -> Quantized:
        with torch.autocast(x.device.type, enabled=False):
            latents = self.to_latents(x, mask)
            assigned = self.assign(latents, mask, return_candidates)
            return self.from_latents(x, latents, assigned, complete=mask is None)

    @torch.no_grad()
    def encode(self, x: Tensor, mask: Tensor | None = None, levels: int | None = None) -> Tensor:
        """Codes only, of the first `levels` levels or of all: cheaper than `forward`, and without communication."""
        with torch.autocast(x.device.type, enabled=False):
            codes = self.nearest(self.to_latents(x, mask).flatten(0, 1), levels)
            codes = codes.view(*x.shape[:2], *codes.shape[1:])
            if mask is None:
                return codes
            return codes.masked_fill(~(mask if self.code_axes == 0 else mask[..., None]), -1)

    def codes_to_vectors(self, codes: Tensor) -> Tensor:
        """The vectors `(batch, positions, dim)` of codes, as `forward` returns them.

        A code of -1 contributes nothing; a position with only -1 is a zero vector.
        """
        with torch.autocast(codes.device.type, enabled=False):
            axes = codes.ndim - self.code_axes
            values = self.values_of(codes.flatten(0, axes - 1)).view(*codes.shape[:axes], self.code_dim)
            vectors: Tensor = self.project_out(values)
            return vectors.masked_fill(self.absent(codes)[..., None], 0)

    def all_vectors(self, level: int = 0) -> Tensor:
        """The vectors of all codes of a level, (codes, dim), without those of other levels."""
        codes = torch.arange(self.num_codes, device=self.placement.device)
        if self.code_axes:
            columns = torch.arange(self.levels, device=codes.device)
            codes = torch.where(columns == level, codes[:, None], -1)
        return self.codes_to_vectors(codes).detach()

    def update(self, statistics: Statistics, seed: int) -> None:
        """Update the codebook from the statistics of an accepted step, summed over micro-batches and ranks."""

    def init_from_data(self, vectors: Tensor, seed: int) -> None:
        """Initialise the codebook from vectors `(n, dim)` of the model, the same on all ranks."""
        with torch.no_grad(), torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors[vectors.isfinite().all(-1)]
            if len(vectors) == 0:
                raise UsageError("A codebook cannot be initialised without finite vectors; check the encoder's output.")
            self.init_from_latents(self.to_latents(vectors[None], None)[0], seed)

    @abstractmethod
    def assign(self, latents: Tensor, mask: Tensor | None, return_candidates: bool) -> Quantized:
        """Quantize `latents` `(batch, positions, code_dim)`: values (no gradient), codes, loss and statistics."""

    @abstractmethod
    def nearest(self, latents: Tensor, levels: int | None = None) -> Tensor:
        """The nearest codes of `latents` `(n, code_dim)`; of a residual quantizer only the first `levels`."""

    @abstractmethod
    def look_up(self, codes: Tensor) -> Tensor:
        """The values `(n, code_dim)` of codes; codes of a single quantizer must be at least 0."""

    def bound(self, latents: Tensor) -> Tensor:
        """Map latents to the range of the codes, with gradient."""
        return latents

    def init_from_latents(self, latents: Tensor, seed: int) -> None:
        """`init_from_data` in code space, for latents `(n, code_dim)`."""

    def values_of(self, codes: Tensor) -> Tensor:
        """The values of codes that may be -1, whose value is 0."""
        return self.look_up(codes.clamp(min=0)).masked_fill((codes < 0)[..., None], 0)

    def absent(self, codes: Tensor) -> Tensor:
        """Mask `(batch, positions)` of positions without any code."""
        return codes < 0

    def to_latents(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Project the model's vectors `(batch, positions, dim)` to bounded latents `(batch, positions, code_dim)`."""
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise UsageError(f"This quantizer takes (batch, positions, {self.dim}), not {tuple(x.shape)}.")
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
        exact = at_least_fp32(x)
        latents: Tensor = self.bound(self.project_in(exact))
        return latents

    def from_latents(self, x: Tensor, latents: Tensor, assigned: Quantized, complete: bool) -> Quantized:
        """Project quantized values back to the model's vectors, with a straight-through gradient.

        `latents - latents.detach()` is exactly 0, so the values are exactly those of the codes. `complete` means that
        every position has a code.
        """
        values = assigned.vectors + (latents - latents.detach())
        vectors: Tensor = self.project_out(values).to(x.dtype)
        if not complete:
            vectors = vectors.masked_fill(self.absent(assigned.codes)[..., None], 0)
        return assigned._replace(vectors=vectors)


class SingleQuantizer(Quantizer):
    """Base class of quantizers with one code per position; subclasses define codes and auxiliary loss."""

    @abstractmethod
    def auxiliary_loss(self, latents: Tensor, values: Tensor, valid: Tensor | None) -> Tensor:
        """The weighted loss of latents `(n, code_dim)` and the values of their codes; `valid` is `(n,)`."""

    def assign(self, latents: Tensor, mask: Tensor | None, return_candidates: bool) -> Quantized:
        flat = latents.flatten(0, 1)
        valid = None if mask is None else mask.flatten()
        with torch.no_grad():
            codes = self.nearest(flat)
            values = self.look_up(codes).to(latents.dtype)
            statistics = self.collect_statistics(latents.detach(), codes, mask, return_candidates)
        loss = self.auxiliary_loss(flat, values, valid)
        if valid is not None:
            codes = codes.masked_fill(~valid, -1)
            values = values.masked_fill(~valid[:, None], 0)
        return Quantized(values.view_as(latents), codes.view(latents.shape[:2]), loss, statistics)

    def collect_statistics(
        self, latents: Tensor, codes: Tensor, mask: Tensor | None, return_candidates: bool
    ) -> Statistics:
        """The usage count of each code."""
        bins = self.bins(codes, mask)
        # Not `bincount`, which synchronises with the GPU.
        count = torch.zeros(self.num_codes + 1, dtype=torch.int64, device=codes.device)
        return Statistics({"count": count.index_add_(0, bins, torch.ones_like(bins))[: self.num_codes]})

    def bins(self, codes: Tensor, mask: Tensor | None) -> Tensor:
        """The bin of each position: its code, or `num_codes` for padding, which is discarded later."""
        return codes if mask is None else codes.masked_fill(~mask.flatten(), self.num_codes)


def usage(counts: Tensor) -> Tensor:
    """Fraction of codes (last axis) with a count above 0."""
    return (counts > 0).float().mean(-1)


def perplexity(counts: Tensor) -> Tensor:
    """Perplexity of the code distribution given by counts (last axis)."""
    frequencies = counts.float() / counts.sum(-1, keepdim=True).clamp(min=1)
    return torch.xlogy(frequencies, frequencies).sum(-1).neg().exp()
