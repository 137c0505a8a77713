"""Residual quantization (SoundStream, 2107.03312): each level quantizes the residual of the previous levels.

`ProductQuantizer` splits vectors into parts, with one residual quantizer per part.
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
    """Base class of quantizers with codes `(batch, positions, levels)`; the last levels may be missing or -1."""

    code_axes = 1

    def check_levels(self, codes: Tensor) -> None:
        if codes.shape[-1] > self.levels:
            raise UsageError(f"The codes have {codes.shape[-1]} levels, but the quantizer has {self.levels}.")

    def values_of(self, codes: Tensor) -> Tensor:
        return self.look_up(codes)

    def absent(self, codes: Tensor) -> Tensor:
        return (codes < 0).all(-1)


class ResidualQuantizer(LevelledQuantizer):
    """`levels` quantizers in sequence in one code space; their values are summed, their losses averaged.

    `build(level)` returns the quantizer of a level, without projections. `shared` (VQ) uses one codebook for all
    levels. LFQ and FSQ must be built with `depth=level`, which makes their grids finer.

    The straight-through gradient is applied once, to the sum. Applied at each level, as is often done, it would
    multiply the gradient of the input by the number of levels. Statistics have the level as prefix.
    """

    def __init__(self, dim: int, levels: int, build: Callable[[int], SingleQuantizer], shared: bool = False) -> None:
        if levels < 1:
            raise UsageError(f"A residual quantizer needs levels of at least 1, not {levels}.")
        quantizers = [build(level) for level in range(1 if shared else levels)]
        first = quantizers[0]
        super().__init__(dim, first.code_dim, first.num_codes)
        if any((each.dim, each.code_dim) != (self.code_dim, self.code_dim) for each in quantizers):
            raise UsageError("The levels of a residual quantizer need the same dimension and no projections.")
        if shared and not isinstance(first, VectorQuantizer):
            raise UsageError("Only VQ has a codebook that residual levels can share; set shared=False.")
        if any(isinstance(each, VectorQuantizer) and each.cosine for each in quantizers):
            raise UsageError("cosine compares only directions, which leave no residual; use it with levels=1.")
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
        """`active_levels (batch,)`: number of levels that an item uses; its codes of later levels are -1."""
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

    def init_from_latents(self, latents: Tensor, seed: int) -> None:
        residuals = [latents]
        for level in range(self.levels):
            quantizer = self.level(level)
            quantizer.init_from_latents(residuals[-1], rng.seed_from(seed, level))
            residuals.append(residuals[-1] - quantizer.look_up(quantizer.nearest(residuals[-1])))
        if self.shared:
            # The levels were initialised separately to compute the residuals; now the shared codebook is fitted to all.
            self.level(0).init_from_latents(torch.cat(residuals[:-1]), seed)


def active_positions(latents: Tensor, mask: Tensor | None, active_levels: Tensor | None, level: int) -> Tensor | None:
    """Mask `(batch, positions)` of the positions that use this level; None for all."""
    if active_levels is None:
        return mask
    active = (active_levels > level)[:, None].expand(latents.shape[:2])
    return active if mask is None else active & mask


def total(parts: list[Tensor]) -> Tensor:
    """The sum in the order of the levels, so that encoding and decoding agree to the last bit."""
    return functools.reduce(torch.add, parts)


class ProductQuantizer(LevelledQuantizer):
    """Product quantizer: one residual quantizer per part of the vector, with the levels of all parts concatenated.

    So the first levels encode only the first part.
    """

    def __init__(self, parts: Sequence[ResidualQuantizer]) -> None:
        dim = sum(part.dim for part in parts)
        super().__init__(dim, dim, parts[0].num_codes)
        if any(part.num_codes != self.num_codes for part in parts):
            raise UsageError("The parts of a product quantizer need the same codebook size.")
        self.levels = sum(part.levels for part in parts)
        self.parts = nn.ModuleList(parts)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_candidates: bool = False,
        active_levels: Tensor | None = None,
    ) -> Quantized:
        """`active_levels (batch,)`: number of levels that an item uses; its codes of later levels are -1."""
        results: list[Quantized] = []
        before = 0
        for part, own in zip(self._parts(), self._split(x), strict=True):
            results.append(
                part(own, mask, return_candidates, None if active_levels is None else active_levels - before)
            )
            before += part.levels
        return _joined(results)

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

    def init_from_latents(self, latents: Tensor, seed: int) -> None:
        for number, (part, own) in enumerate(zip(self._parts(), self._split(latents), strict=True)):
            part.init_from_data(own, rng.seed_from(seed, number))

    def _parts(self) -> list[ResidualQuantizer]:
        return [part for part in self.parts if isinstance(part, ResidualQuantizer)]

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        if x.shape[-1] != self.dim:
            raise UsageError(f"This quantizer takes vectors of dimension {self.dim}, not {x.shape[-1]}.")
        return torch.split(x, [part.dim for part in self._parts()], dim=-1)


def _joined(results: Sequence[Quantized]) -> Quantized:
    statistics = [own.statistics.with_prefix(str(number)) for number, own in enumerate(results)]
    return Quantized(
        torch.cat([own.vectors for own in results], -1),
        torch.cat([own.codes for own in results], -1),
        torch.stack([own.loss for own in results]).mean(),
        sum(statistics, Statistics()),
    )
