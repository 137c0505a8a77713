"""Owns the interface of all quantizers and the way from a model's vectors to code space and back.

A quantizer works on `(batch, positions, dim)`. Its own code space may have fewer dimensions; it then owns the two
linear maps between them. Everything inside runs in fp32 (fp64 for fp64 input), whatever autocast says, so that the
codes of a file do not depend on the precision of the rest of the model more than its input does.

Padding (`mask` false) gets code -1 and vector 0, takes no part in losses and statistics, and cannot reach anything
else even if it is NaN.
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
    """What a quantizer says about a batch.

    `vectors` has the shape and dtype of the input, the values of the codes and a straight-through gradient.
    `codes` is int64, `(batch, positions)`, or `(batch, positions, levels)` of a residual quantizer.
    `loss` is the weighted auxiliary loss; averaged over ranks, as DDP averages, it is that of the global batch.
    `statistics` is what `update` wants back once it is summed over micro-batches and ranks.
    """

    vectors: Tensor
    codes: Tensor
    loss: Tensor
    statistics: Statistics


class Projection(nn.Linear):
    """A linear map in the dtype of its input, whatever dtype its weights rest in."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.to(input.dtype), self.bias.to(input.dtype))


class Quantizer(nn.Module, ABC):
    """What every quantizer does, of one level or several.

    `forward` changes no state and speaks with the other ranks (all of them must call it); `encode` and
    `codes_to_vectors` are local. `update` and `init_from_data` change the state and must be called by all ranks with
    the same arguments.
    """

    levels: int = 1
    code_axes: int = 0
    """How many axes of the codes are the code's own: 1 of a residual quantizer, its levels."""

    def __init__(self, dim: int, code_dim: int, num_codes: int) -> None:
        super().__init__()
        if min(dim, code_dim) < 1:
            raise UsageError(f"A quantizer needs dimensions of at least 1, not dim={dim} and code_dim={code_dim}.")
        self.dim = dim
        self.code_dim = code_dim
        self.num_codes = num_codes
        self.project_in: nn.Module = Projection(dim, code_dim) if dim != code_dim else nn.Identity()
        self.project_out: nn.Module = Projection(code_dim, dim) if dim != code_dim else nn.Identity()
        # Empty; it follows the module to its device and dtype, also where there is neither weight nor codebook.
        self.placement: Tensor
        self.register_buffer("placement", torch.empty(0), persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, return_candidates: bool = False) -> Quantized:
        with torch.autocast(x.device.type, enabled=False):
            latents = self.to_latents(x, mask)
            assigned = self.assign(latents, mask, return_candidates)
            return self.from_latents(x, latents, assigned, complete=mask is None)

    @torch.no_grad()
    def encode(self, x: Tensor, mask: Tensor | None = None, levels: int | None = None) -> Tensor:
        """The codes alone, of the first `levels` or all: cheaper than `forward`, and without a word to other ranks."""
        with torch.autocast(x.device.type, enabled=False):
            codes = self.nearest(self.to_latents(x, mask).flatten(0, 1), levels)
            codes = codes.view(*x.shape[:2], *codes.shape[1:])
            if mask is None:
                return codes
            return codes.masked_fill(~(mask if self.code_axes == 0 else mask[..., None]), -1)

    def codes_to_vectors(self, codes: Tensor) -> Tensor:
        """The vectors `forward` gave for these codes; code -1 adds nothing, and only -1 is the vector 0."""
        with torch.autocast(codes.device.type, enabled=False):
            axes = codes.ndim - self.code_axes
            values = self.values_of(codes.flatten(0, axes - 1)).view(*codes.shape[:axes], self.code_dim)
            vectors: Tensor = self.project_out(values)
            return vectors.masked_fill(self.absent(codes)[..., None], 0)

    def all_vectors(self) -> Tensor:
        """Those of all codes of a single level, (codes, dim)."""
        return self.codes_to_vectors(torch.arange(self.num_codes, device=self.placement.device)).detach()

    def update(self, statistics: Statistics, seed: int) -> None:
        """Learn from the statistics of an accepted step, summed over micro-batches and ranks."""

    def init_from_data(self, vectors: Tensor, seed: int) -> None:
        """Start the codebook from a sample of the model's own vectors, `(n, dim)`, the same on all ranks."""
        with torch.no_grad(), torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors[vectors.isfinite().all(-1)]
            if len(vectors) == 0:
                raise UsageError("A codebook cannot start from no finite vectors; check the encoder's output.")
            self.start(self.to_latents(vectors[None], None)[0], seed)

    @abstractmethod
    def assign(self, latents: Tensor, mask: Tensor | None, return_candidates: bool) -> Quantized:
        """In code space: values (no gradient), codes, loss (with gradient) and statistics of `latents`."""

    @abstractmethod
    def nearest(self, latents: Tensor, levels: int | None = None) -> Tensor:
        """The codes of `(n, code_dim)`; of several levels perhaps only the first."""

    @abstractmethod
    def look_up(self, codes: Tensor) -> Tensor:
        """The values `(n, code_dim)` of codes, all of them at least 0 where this is a single level."""

    def bound(self, latents: Tensor) -> Tensor:
        """Bring latents, with gradient, into the region where the codes are."""
        return latents

    def start(self, latents: Tensor, seed: int) -> None:
        """`init_from_data`, in code space."""

    def values_of(self, codes: Tensor) -> Tensor:
        """The values of codes that may be -1, which stands for 0."""
        return self.look_up(codes.clamp(min=0)).masked_fill((codes < 0)[..., None], 0)

    def absent(self, codes: Tensor) -> Tensor:
        """Which positions have no code at all, `(batch, positions)`."""
        return codes < 0

    def to_latents(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """From the model's vectors to bounded latents in code space."""
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise UsageError(f"This quantizer takes (batch, positions, {self.dim}), not {tuple(x.shape)}.")
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
        exact = at_least_fp32(x)
        latents: Tensor = self.bound(self.project_in(exact))
        return latents

    def from_latents(self, x: Tensor, latents: Tensor, assigned: Quantized, complete: bool) -> Quantized:
        """From values in code space to the model's vectors, with the straight-through gradient.

        `latents - latents.detach()` is exactly 0, so the values stay exactly those of the codes. `complete`:
        every position has a code.
        """
        values = assigned.vectors + (latents - latents.detach())
        vectors: Tensor = self.project_out(values).to(x.dtype)
        if not complete:
            vectors = vectors.masked_fill(self.absent(assigned.codes)[..., None], 0)
        return assigned._replace(vectors=vectors)


class SingleQuantizer(Quantizer):
    """A quantizer of one level: says which codes, and what they cost; this class does the rest."""

    @abstractmethod
    def auxiliary_loss(self, latents: Tensor, values: Tensor, valid: Tensor | None) -> Tensor:
        """The weighted loss of `(n, code_dim)` latents and the values of their codes."""

    def assign(self, latents: Tensor, mask: Tensor | None, return_candidates: bool) -> Quantized:
        flat = latents.flatten(0, 1)
        valid = None if mask is None else mask.flatten()
        with torch.no_grad():
            codes = self.nearest(flat)
            values = self.look_up(codes).to(latents.dtype)
            statistics = self.report(latents.detach(), codes, mask, return_candidates)
        loss = self.auxiliary_loss(flat, values, valid)
        if valid is not None:
            codes = codes.masked_fill(~valid, -1)
            values = values.masked_fill(~valid[:, None], 0)
        return Quantized(values.view_as(latents), codes.view(latents.shape[:2]), loss, statistics)

    def report(self, latents: Tensor, codes: Tensor, mask: Tensor | None, return_candidates: bool) -> Statistics:
        """How often each code was used."""
        bins = self.bins(codes, mask)
        # Not `bincount`, which makes a GPU wait for its result's length.
        count = torch.zeros(self.num_codes + 1, dtype=torch.int64, device=codes.device)
        return Statistics({"count": count.index_add_(0, bins, torch.ones_like(bins))[: self.num_codes]})

    def bins(self, codes: Tensor, mask: Tensor | None) -> Tensor:
        """Where each position is counted: at its code, or, padding, in one bin more, to be cut off."""
        return codes if mask is None else codes.masked_fill(~mask.flatten(), self.num_codes)


def usage(counts: Tensor) -> Tensor:
    """Which part of the codes (the last axis) is used at all, 0 to 1."""
    return (counts > 0).float().mean(-1)


def perplexity(counts: Tensor) -> Tensor:
    """How many equally frequent codes would be as varied as these counts (the last axis)."""
    frequencies = counts.float() / counts.sum(-1, keepdim=True).clamp(min=1)
    return torch.xlogy(frequencies, frequencies).sum(-1).neg().exp()
