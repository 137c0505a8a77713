"""Residual quantization (SoundStream, 2107.03312): each level quantizes what the levels before left over, of whole
vectors or of parts of them, each with levels of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from quintet.common import rng
from quintet.common.statistics import Statistics
from quintet.errors import UsageError
from quintet.nn.quantize.base import Quantized, Quantizer, SingleQuantizer
from quintet.nn.quantize.vector import VectorQuantizer


class LevelledQuantizer(Quantizer):
    """A quantizer whose codes have several levels; they may lack the last ones, or have -1 there."""

    code_axes = 1

    def check_levels(self, codes: Tensor) -> None:
        if codes.shape[-1] > self.levels:
            raise UsageError(f"These codes have {codes.shape[-1]} levels, but the quantizer has {self.levels}.")

    def values_of(self, codes: Tensor) -> Tensor:
        return self.look_up(codes)

    def absent(self, codes: Tensor) -> Tensor:
        return (codes < 0).all(-1)


class ResidualQuantizer(LevelledQuantizer):
    """`levels` quantizers in a row in one code space; their values add up, their losses are averaged.

    `build(level)` makes the quantizer of a level, without projections of its own. `shared` (VQ): one codebook
    serves all levels. LFQ and FSQ are to be built with `depth=level`, which makes their grids finer.

    Straight-through is applied once, to the sum: applied at each level, as is often done, it would multiply
    the gradient of the input by the number of levels. Statistics stand under the number of their level.
    """

    def __init__(self, dim: int, levels: int, build: Callable[[int], SingleQuantizer], shared: bool = False) -> None:
        if levels < 1:
            raise UsageError(f"A residual quantizer needs levels of at least 1, not {levels}.")
        quantizers = [build(level) for level in range(1 if shared else levels)]
        first = quantizers[0]
        super().__init__(dim, first.code_dim, first.num_codes)
        if any((each.dim, each.code_dim) != (self.code_dim, self.code_dim) for each in quantizers):
            raise UsageError("The levels of a residual quantizer need one dimension, and no projection, in common.")
        if shared and not isinstance(first, VectorQuantizer):
            raise UsageError("Only VQ has a codebook that residual levels can share; leave shared off.")
        if any(isinstance(each, VectorQuantizer) and each.cosine for each in quantizers):
            raise UsageError("cosine compares directions only, of which no residual is left; use it with levels=1.")
        self.levels = levels
        self.shared = shared
        self.quantizers = nn.ModuleList(quantizers)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_candidates: bool = False,
        active_levels: Tensor | None = None,
    ) -> Quantized:
        """`active_levels (batch,)`: an item uses only its first so many levels; its codes beyond are -1."""
        with torch.autocast(x.device.type, enabled=False):
            latents = self.to_latents(x, mask)
            assigned = self.assign(latents, mask, return_candidates, active_levels)
            return self.from_latents(x, latents, assigned, complete=mask is None and active_levels is None)

    def assign(
        self, latents: Tensor, mask: Tensor | None, return_candidates: bool, active_levels: Tensor | None = None
    ) -> Quantized:
        parts: list[Quantized] = []
        statistics = Statistics()
        residual = latents
        for level in range(self.levels):
            active = active_positions(latents, mask, active_levels, level)
            part = self.level(level).assign(residual, active, return_candidates)
            residual = residual - part.vectors
            statistics = statistics + part.statistics.with_prefix(str(level))
            parts.append(part)
        return Quantized(
            total([part.vectors for part in parts]),
            torch.stack([part.codes for part in parts], -1),
            torch.stack([part.loss for part in parts]).mean(),
            statistics,
        )

    def level(self, level: int) -> SingleQuantizer:
        quantizer = self.quantizers[0 if self.shared else level]
        assert isinstance(quantizer, SingleQuantizer)
        return quantizer

    def bound(self, latents: Tensor) -> Tensor:
        return self.level(0).bound(latents)

    def nearest(self, latents: Tensor, levels: int | None = None) -> Tensor:
        codes: list[Tensor] = []
        for level in range(self.levels if levels is None else min(levels, self.levels)):
            codes.append(self.level(level).nearest(latents))
            latents = latents - self.level(level).look_up(codes[-1])
        return torch.stack(codes, -1)

    def look_up(self, codes: Tensor) -> Tensor:
        self.check_levels(codes)
        return total([self.level(i).values_of(part) for i, part in enumerate(codes.unbind(-1))])

    def update(self, statistics: Statistics, seed: int) -> None:
        parts = [statistics.strip_prefix(str(level)) for level in range(self.levels)]
        if self.shared:
            parts = [sum(parts, Statistics())]
        for level, part in enumerate(parts):
            self.level(level).update(part, rng.seed_from(seed, level))

    def start(self, latents: Tensor, seed: int) -> None:
        residuals = [latents]
        for level in range(self.levels):
            quantizer = self.level(level)
            quantizer.start(residuals[-1], rng.seed_from(seed, level))
            residuals.append(residuals[-1] - quantizer.look_up(quantizer.nearest(residuals[-1])))
        if self.shared:
            # Each level was started alone to see what it leaves over; the one codebook has to serve them all.
            self.level(0).start(torch.cat(residuals[:-1]), seed)


def active_positions(latents: Tensor, mask: Tensor | None, active_levels: Tensor | None, level: int) -> Tensor | None:
    """Which positions `(batch, positions)` have this level; None for all."""
    if active_levels is None:
        return mask
    active = (active_levels > level)[:, None].expand(latents.shape[:2])
    return active if mask is None else active & mask


def total(parts: list[Tensor]) -> Tensor:
    """The sum, always in the order of the levels: encoding and decoding agree to the last bit."""
    return functools.reduce(torch.add, parts)


class ProductQuantizer(LevelledQuantizer):
    """The levels of the first part of a vector, then those of the next; to others they are levels of one quantizer.

    So the first few levels are all about the first part.
    """

    def __init__(self, parts: Sequence[ResidualQuantizer]) -> None:
        dim = sum(part.dim for part in parts)
        super().__init__(dim, dim, parts[0].num_codes)
        if any(part.num_codes != self.num_codes for part in parts):
            raise UsageError("The parts of a vector need codebooks of one size.")
        self.levels = sum(part.levels for part in parts)
        self.parts = nn.ModuleList(parts)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_candidates: bool = False,
        active_levels: Tensor | None = None,
    ) -> Quantized:
        """`active_levels (batch,)`: an item uses only its first so many levels; its codes beyond are -1."""
        found: list[Quantized] = []
        before = 0
        for part, own in zip(self._parts(), self._split(x), strict=True):
            found.append(part(own, mask, return_candidates, None if active_levels is None else active_levels - before))
            before += part.levels
        return _joined(found)

    def assign(self, latents: Tensor, mask: Tensor | None, return_candidates: bool) -> Quantized:
        parts = zip(self._parts(), self._split(latents), strict=True)
        return _joined([part.assign(own, mask, return_candidates) for part, own in parts])

    def level(self, level: int) -> SingleQuantizer:
        levels = [part.level(number) for part in self._parts() for number in range(part.levels)]
        return levels[level]

    def nearest(self, latents: Tensor, levels: int | None = None) -> Tensor:
        left = self.levels if levels is None else levels
        codes: list[Tensor] = []
        for part, own in zip(self._parts(), self._split(latents[None]), strict=True):
            if left > 0:
                codes.append(part.encode(own, levels=left)[0])
            left -= part.levels
        return torch.cat(codes, -1)

    def look_up(self, codes: Tensor) -> Tensor:
        self.check_levels(codes)
        vectors = []
        for part in self._parts():
            own, codes = codes[..., : part.levels], codes[..., part.levels :]
            known = own.shape[-1] > 0
            vectors.append(part.codes_to_vectors(own) if known else self.placement.new_zeros(len(own), part.dim))
        return torch.cat(vectors, -1)

    def update(self, statistics: Statistics, seed: int) -> None:
        for number, part in enumerate(self._parts()):
            part.update(statistics.strip_prefix(str(number)), rng.seed_from(seed, number))

    def start(self, latents: Tensor, seed: int) -> None:
        for number, (part, own) in enumerate(zip(self._parts(), self._split(latents), strict=True)):
            part.init_from_data(own, rng.seed_from(seed, number))

    def _parts(self) -> list[ResidualQuantizer]:
        return [part for part in self.parts if isinstance(part, ResidualQuantizer)]

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        if x.shape[-1] != self.dim:
            raise UsageError(f"This quantizer takes vectors of {self.dim}, not {x.shape[-1]}.")
        return torch.split(x, [part.dim for part in self._parts()], dim=-1)


def _joined(found: Sequence[Quantized]) -> Quantized:
    statistics = [own.statistics.with_prefix(str(number)) for number, own in enumerate(found)]
    return Quantized(
        torch.cat([own.vectors for own in found], -1),
        torch.cat([own.codes for own in found], -1),
        torch.stack([own.loss for own in found]).mean(),
        sum(statistics, Statistics()),
    )
