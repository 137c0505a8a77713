"""Classifier-free guidance (Ho & Salimans 2022, 2207.12598), with conditional and unconditional rows in one batch.

A guided batch has twice as many rows: first the conditional rows, then the same rows with the negative prompt, or
without conditioning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from quintet.errors import UsageError

Conditioning = Mapping[str, Tensor]
"""Named tensors, batch first."""


class TextConditioned(Protocol):
    """A model that encodes texts to conditioning; texts are dropped where `keep` is False."""

    def texts(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]: ...


def encode_prompts(
    model: TextConditioned, prompts: Sequence[str], negative: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Conditioning of the prompts, and of the negative prompt (or of no text), which guidance steers away from.

    An empty prompt counts as no text.
    """
    count = len(prompts)
    negatives = [negative] * count if negative else list(prompts)
    keep = torch.tensor([bool(prompt) for prompt in prompts] + [bool(negative)] * count, dtype=torch.bool)
    # In one call, so that both are padded to the same length.
    return split(model.texts([*prompts, *negatives], keep), count)


def check_guidance(scale: float, uncond: Conditioning | None) -> None:
    if scale != 1 and uncond is None:
        raise UsageError(
            f"sample.guidance_scale is {scale}, but there is no unconditional model; set sample.guidance_scale=1."
        )


def concat_conditioning(cond: Conditioning, uncond: Conditioning) -> dict[str, Tensor]:
    """Concatenate both to one batch; `uncond` contains only the tensors that differ."""
    if unknown := uncond.keys() - cond.keys():
        raise ValueError(f"uncond has {sorted(unknown)}, which cond does not have")
    return {name: torch.cat([value, uncond.get(name, value)]) for name, value in cond.items()}


def split(both: Conditioning, count: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The inverse of `concat_conditioning`: the first `count` rows, and the remaining rows."""
    return {name: value[:count] for name, value in both.items()}, {name: value[count:] for name, value in both.items()}


def repeat_batch(rows: Tensor) -> Tensor:
    """Repeat the rows in both halves of a batch."""
    return torch.cat([rows, rows])


def apply_guidance(cond: Tensor, uncond: Tensor, scale: float, projected: bool = False) -> Tensor:
    """Guided logits, `uncond + scale * (cond - uncond)`.

    A code with conditional logit -inf stays at -inf. With `projected`, the part of `cond - uncond` that is parallel to
    `cond` is removed (adaptive projected guidance, Sadat et al. 2024, 2410.02416).
    """
    if scale == 1:
        return cond
    if projected:
        return cond + (scale - 1) * _orthogonal(cond, uncond)
    mixed = uncond + scale * (cond - uncond)
    return mixed.masked_fill(cond == -math.inf, -math.inf)


def _orthogonal(cond: Tensor, uncond: Tensor) -> Tensor:
    """The part of `cond - uncond` that is orthogonal to `cond`, over the codes (last axis); 0 where one is -inf.

    Both are centred first: a constant added to all logits of a position must not matter.
    """
    finite = cond.isfinite() & uncond.isfinite()
    count = finite.sum(-1, keepdim=True).clamp(min=1)

    def centred(logits: Tensor) -> Tensor:
        kept = logits.masked_fill(~finite, 0)
        return (kept - kept.sum(-1, keepdim=True) / count).masked_fill(~finite, 0)

    direction = centred(cond)
    update = direction - centred(uncond)
    squared = direction.square().sum(-1, keepdim=True).clamp(min=torch.finfo(direction.dtype).tiny)
    return update - (update * direction).sum(-1, keepdim=True) / squared * direction


def guide_halves(logits: Tensor, scale: float, projected: bool = False) -> Tensor:
    """Guided logits of a batch whose second half is unconditional."""
    cond, uncond = logits.chunk(2)
    return apply_guidance(cond, uncond, scale, projected)
