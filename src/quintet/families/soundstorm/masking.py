"""Masking of codes in training (Borsos et al. 2023, 2305.09636, section 3.3).

The prompt of a row, of 0 to all but one of its frames, is not masked. Behind the prompt a random fraction of the codes
of one level is masked, and all codes of finer levels are; coarser levels are not. The model predicts the masked codes
of that level. Prompt length, level and fraction are drawn per row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.sampling.masked import Schedule, corrupt, cosine, training_mask


class MaskedPositions(NamedTuple):
    """The true positions of a mask (batch, frames), as indices."""

    flat: Tensor
    """(positions,), in the flattened mask."""
    order: Tensor
    """(batch, longest), the frames of each row, those of its positions first; `longest` is the largest number of
    positions in a row."""
    packed: Tensor
    """(positions,), in the flattened `order`."""

    @classmethod
    def of(cls, where: Tensor) -> MaskedPositions:
        """Found in a mask; on a GPU this waits for the mask."""
        counts = where.sum(1)
        longest = int(counts.max())
        order = where.int().argsort(dim=1, descending=True, stable=True)[:, :longest]
        packed = (torch.arange(longest, device=where.device) < counts[:, None]).flatten().nonzero()[:, 0]
        return cls(where.flatten().nonzero()[:, 0], order, packed)


@dataclass(frozen=True)
class MaskedCodes:
    """Masked training codes and their targets; the original codes are not modified."""

    tokens: Tensor
    """(batch, frames, num_quantizers), with `mask_id` where a code is masked."""
    levels: Tensor
    """(batch,), the level that each row predicts; 0 is the coarsest."""
    where: Tensor
    """(batch, frames), the masked positions of that level, which are predicted."""
    targets: Tensor
    """(positions,), the original codes at these positions, row by row."""
    positions: MaskedPositions | None = None
    """The positions as indices, if they are known; otherwise the model finds them in `where`."""

    def filled(self, predictions: Tensor) -> Tensor:
        """The tokens with predictions (positions,) filled in, for a critic; finer levels stay masked."""
        own = torch.arange(self.tokens.shape[2], device=self.tokens.device) == self.levels[:, None]
        return self.tokens.masked_scatter(self.where[..., None] & own[:, None], predictions.to(self.tokens.dtype))


def mask_codes(
    codes: Tensor,
    frames: Tensor,
    rng: ItemRNG,
    mask_id: int,
    schedule: Schedule = cosine,
    span: int = 1,
    coarse_bias: float = 1.0,
    name: str = "hide",
    *,
    visible_prob: float = 0.0,
    random_prob: float = 0.0,
) -> MaskedCodes:
    """Mask a random part of codes (batch, frames, num_quantizers) with the valid mask `frames` (batch, frames).

    A `coarse_bias` above 1 selects coarse levels more often; an integer N selects the coarsest of N uniform levels.
    `visible_prob` and `random_prob` are those of `sampling.masked.corrupt`.
    """
    lengths = frames.sum(1)
    prompts = (rng.uniform(f"{name}-prompt").to(codes.device) * lengths).long().minimum(lengths - 1)
    levels = _levels(rng, codes.shape[-1], coarse_bias, f"{name}-level").to(codes.device)
    masked_codes = mask_level(codes, frames, prompts, levels, rng, mask_id, schedule, span, name)
    if visible_prob == random_prob == 0:
        return masked_codes
    own = codes.gather(2, levels[:, None, None].expand(-1, codes.shape[1], 1))[..., 0]
    seen = corrupt(rng, own, masked_codes.where, mask_id, visible_prob, random_prob, name)
    return replace(masked_codes, tokens=masked_codes.filled(seen[masked_codes.where]))


def mask_level(
    codes: Tensor,
    frames: Tensor,
    prompts: Tensor,
    levels: Tensor,
    rng: ItemRNG,
    mask_id: int,
    schedule: Schedule = cosine,
    span: int = 1,
    name: str = "hide",
) -> MaskedCodes:
    """Mask codes as `mask_codes` does, but with fixed prompt lengths (batch,) in frames and levels (batch,)."""
    _check(codes, frames, mask_id)
    maskable = frames & (torch.arange(codes.shape[1], device=codes.device) >= prompts[:, None])
    where = training_mask(rng, maskable, schedule, name, span)
    indices = torch.arange(codes.shape[2], device=codes.device)
    own, finer = indices == levels[:, None], indices > levels[:, None]
    masked = (own[:, None] & where[..., None]) | (finer[:, None] & maskable[..., None])
    targets = codes.gather(2, levels[:, None, None].expand(-1, codes.shape[1], 1))[..., 0]
    return MaskedCodes(codes.masked_fill(masked, mask_id), levels, where, targets[where])


def _levels(rng: ItemRNG, num_quantizers: int, coarse_bias: float, name: str) -> Tensor:
    """A random level (batch,) for each row; uniform, or coarse ones more often."""
    fraction = 1 - (1 - rng.uniform(name).double()) ** (1 / coarse_bias)
    return (fraction * num_quantizers).long().clamp(max=num_quantizers - 1)


def _check(codes: Tensor, frames: Tensor, mask_id: int) -> None:
    """Raise if codes do not fit the valid mask or the vocabulary."""
    if codes.dim() != 3 or codes.shape[:2] != frames.shape:
        raise UsageError(
            f"codes of shape {tuple(codes.shape)} are not (batch, frames, quantizers) of {tuple(frames.shape)} frames"
        )
    valid = codes[frames]
    if valid.numel() and not 0 <= int(valid.min()) <= int(valid.max()) < mask_id:
        raise UsageError(f"codes from {int(valid.min())} to {int(valid.max())} are outside the vocabulary of {mask_id}")
