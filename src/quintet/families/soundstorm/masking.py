"""Masking of training: which codes a step hides (Borsos et al. 2023, 2305.09636, section 3.3).

A row's prompt, of 0 to all but one of its frames, stays whole. Behind it a share of the codes of one level is hidden,
all those of finer levels are, and none of coarser ones. The model guesses the hidden ones of that level. Prompt, level
and share are drawn for each row by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.sampling.masked import Schedule, cosine, training_mask


@dataclass(frozen=True)
class MaskedCodes:
    """Codes as training shows them; the codes they were made of are not written to."""

    tokens: Tensor
    """(batch, frames, levels), the mask where a code is hidden."""
    levels: Tensor
    """(batch,), the level that each row is asked for, the coarsest is 0."""
    where: Tensor
    """(batch, frames), the hidden places of that level: the only ones that are guessed."""
    targets: Tensor
    """(places,), the codes that stood there, row by row."""

    def filled(self, guesses: Tensor) -> Tensor:
        """The tokens with guesses in these places, for a critic; finer levels stay hidden, as they are in decoding."""
        own = torch.arange(self.tokens.shape[2], device=self.tokens.device) == self.levels[:, None]
        return self.tokens.masked_scatter(self.where[..., None] & own[:, None], guesses.to(self.tokens.dtype))


def mask_codes(
    codes: Tensor,
    frames: Tensor,
    rng: ItemRNG,
    mask_id: int,
    schedule: Schedule = cosine,
    span: int = 1,
    coarse_bias: float = 1.0,
    name: str = "hide",
) -> MaskedCodes:
    """Hide a part of codes (batch, frames, levels), of which those are there that `frames` (batch, frames) says.

    `coarse_bias` above 1 asks for coarse levels more often: the lowest of so many even draws, if it is a whole number.
    """
    lengths = frames.sum(1)
    prompts = (rng.uniform(f"{name}-prompt").to(codes.device) * lengths).long().minimum(lengths - 1)
    levels = _levels(rng, codes.shape[-1], coarse_bias, f"{name}-level").to(codes.device)
    return mask_level(codes, frames, prompts, levels, rng, mask_id, schedule, span, name)


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
    """The same for prompts (batch,) of so many frames and levels (batch,) that are given, as validation does."""
    _check(codes, frames, mask_id)
    behind = frames & (torch.arange(codes.shape[1], device=codes.device) >= prompts[:, None])
    where = training_mask(rng, behind, schedule, name, span)
    numbers = torch.arange(codes.shape[2], device=codes.device)
    own, finer = numbers == levels[:, None], numbers > levels[:, None]
    hidden = (own[:, None] & where[..., None]) | (finer[:, None] & behind[..., None])
    targets = codes.gather(2, levels[:, None, None].expand(-1, codes.shape[1], 1))[..., 0]
    return MaskedCodes(codes.masked_fill(hidden, mask_id), levels, where, targets[where])


def _levels(rng: ItemRNG, levels: int, coarse_bias: float, name: str) -> Tensor:
    """A level for each row, (rows,); evenly, or coarse ones more often."""
    share = 1 - (1 - rng.uniform(name).double()) ** (1 / coarse_bias)
    return (share * levels).long().clamp(max=levels - 1)


def _check(codes: Tensor, frames: Tensor, mask_id: int) -> None:
    """Refuse codes and a mask of frames that do not fit each other or the vocabulary."""
    if codes.dim() != 3 or codes.shape[:2] != frames.shape:
        raise UsageError(
            f"codes of shape {tuple(codes.shape)} are not (batch, frames, levels) of {tuple(frames.shape)} frames"
        )
    # Not on a GPU: reading from it would hold up every step.
    if codes.device.type == "cpu":
        there = codes[frames]
        if there.numel() and not 0 <= int(there.min()) <= int(there.max()) < mask_id:
            raise UsageError(
                f"codes from {int(there.min())} to {int(there.max())} are not all in the vocabulary of {mask_id}"
            )
