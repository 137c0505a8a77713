"""Owns quantization of a vector in parts, each by residual levels of its own that know nothing of the other parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quintet.common import rng
from quintet.common.statistics import Statistics
from quintet.errors import UsageError
from quintet.nn.quantize.base import Quantized, Quantizer, SingleQuantizer
from quintet.nn.quantize.residual import ResidualQuantizer


class PartedQuantizer(Quantizer):
    """The levels of the first part of a vector, then those of the next; to others they are levels of one quantizer.

    So the first few levels are all about the first part.
    """

    code_axes = 1

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
        want_rows: bool = False,
        active_levels: Tensor | None = None,
    ) -> Quantized:
        """`active_levels (batch,)`: an item uses only its first so many levels; its codes beyond are -1."""
        found: list[Quantized] = []
        before = 0
        for part, own in zip(self._parts(), self._split(x), strict=True):
            found.append(part(own, mask, want_rows, None if active_levels is None else active_levels - before))
            before += part.levels
        return _joined(found)

    def assign(self, latents: Tensor, mask: Tensor | None, want_rows: bool) -> Quantized:
        parts = zip(self._parts(), self._split(latents), strict=True)
        return _joined([part.assign(own, mask, want_rows) for part, own in parts])

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
        """Codes may lack the last levels, or have -1 there."""
        if codes.shape[-1] > self.levels:
            raise UsageError(f"These codes have {codes.shape[-1]} levels, but the quantizer has {self.levels}.")
        vectors = []
        for part in self._parts():
            own, codes = codes[..., : part.levels], codes[..., part.levels :]
            known = own.shape[-1] > 0
            vectors.append(part.codes_to_vectors(own) if known else self.placement.new_zeros(len(own), part.dim))
        return torch.cat(vectors, -1)

    def values_of(self, codes: Tensor) -> Tensor:
        return self.look_up(codes)

    def absent(self, codes: Tensor) -> Tensor:
        return (codes < 0).all(-1)

    def update(self, statistics: Statistics, seed: int) -> None:
        for number, part in enumerate(self._parts()):
            part.update(statistics.of(str(number)), rng.seed_from(seed, number))

    def start(self, latents: Tensor, seed: int) -> None:
        for number, (part, own) in enumerate(zip(self._parts(), self._split(latents), strict=True)):
            part.initialise(own, rng.seed_from(seed, number))

    def _parts(self) -> list[ResidualQuantizer]:
        return [part for part in self.parts if isinstance(part, ResidualQuantizer)]

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        if x.shape[-1] != self.dim:
            raise UsageError(f"This quantizer takes vectors of {self.dim}, not {x.shape[-1]}.")
        return torch.split(x, [part.dim for part in self._parts()], dim=-1)


def _joined(found: Sequence[Quantized]) -> Quantized:
    statistics = [own.statistics.named(str(number)) for number, own in enumerate(found)]
    return Quantized(
        torch.cat([own.vectors for own in found], -1),
        torch.cat([own.codes for own in found], -1),
        torch.stack([own.loss for own in found]).mean(),
        sum(statistics, Statistics()),
    )
