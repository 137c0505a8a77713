"""Classifier-free guidance (Ho & Salimans 2022, 2207.12598): what to generate and what to lead away from, as one batch.

A batch for guidance is twice as large: the conditional rows first, behind them the same rows unconditionally.
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
    """A model that makes conditioning of texts; where `keep` is False a text is dropped."""

    def texts(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]: ...


def encode_prompts(
    model: TextConditioned, prompts: Sequence[str], negative: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Conditional and unconditional: the prompts, and what guidance leads away from, which is the negative prompt or
    no text at all. An empty prompt is no text."""
    count = len(prompts)
    opposite = [negative] * count if negative else list(prompts)
    keep = torch.tensor([bool(prompt) for prompt in prompts] + [bool(negative)] * count, dtype=torch.bool)
    # In one call, so that both are padded alike.
    return split(model.texts([*prompts, *opposite], keep), count)


def check_guidance(scale: float, uncond: Conditioning | None) -> None:
    if scale != 1 and uncond is None:
        raise UsageError(
            f"sample.guidance_scale is {scale}, but there is nothing to guide away from; set sample.guidance_scale=1."
        )


def joined(cond: Conditioning, uncond: Conditioning) -> dict[str, Tensor]:
    """One batch of both; `uncond` names only the tensors that differ."""
    if unknown := uncond.keys() - cond.keys():
        raise ValueError(f"uncond names {sorted(unknown)}, which cond does not have")
    return {name: torch.cat([value, uncond.get(name, value)]) for name, value in cond.items()}


def split(both: Conditioning, count: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The reverse of `joined`: the first `count` rows, and the others."""
    return {name: value[:count] for name, value in both.items()}, {name: value[count:] for name, value in both.items()}


def twice(rows: Tensor) -> Tensor:
    """The same rows in both halves of a batch."""
    return torch.cat([rows, rows])


def guided(cond: Tensor, uncond: Tensor, scale: float) -> Tensor:
    """Scores that lead away from `uncond`: through `cond` at scale 1, and beyond it.

    A code that the conditional scores rule out (-inf) stays ruled out.
    """
    if scale == 1:
        return cond
    mixed = uncond + scale * (cond - uncond)
    return mixed.masked_fill(cond == -math.inf, -math.inf)


def combined(scores: Tensor, scale: float) -> Tensor:
    """The guided scores of a batch whose second half is unconditional."""
    cond, uncond = scores.chunk(2)
    return guided(cond, uncond, scale)
