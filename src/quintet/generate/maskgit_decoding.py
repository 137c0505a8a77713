"""Owns how a `MaskGit` fills masked places of a tokenizer's grid: with guidance, and with a critic if there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quintet.core.draw import Draw
from quintet.generate import masked
from quintet.generate.masked import Critic, Sampling
from quintet.nn.maskgit import MaskGit, TokenCritic

Told = dict[str, Tensor]
"""The conditioning of a `MaskGit`."""


def fill(
    maskgit: MaskGit,
    tokens: Tensor,
    hole: Tensor,
    *,
    draw: Draw,
    settings: Sampling,
    given: Told,
    against: Told,
    critic: TokenCritic | None = None,
    name: str = "decode",
) -> Tensor:
    """The tokens (batch, places) with codes where the hole is; `against` is what guidance leads away from.

    `critic` decides what is masked again: a `TokenCritic`, or nothing; a model with a critic of its own uses that.
    """

    def predict(tokens: Tensor, conditioning: Mapping[str, Tensor], previous: Tensor | None) -> tuple[Tensor, Tensor]:
        logits = maskgit(tokens, conditioning, previous=previous)
        return logits, logits

    return masked.decode(
        predict,
        tokens,
        hole,
        mask_id=maskgit.mask_id,
        draw=draw,
        settings=settings,
        conditioning=given,
        against=against,
        valid=given.get("there"),
        critic=_critic(maskgit, critic),
        name=name,
    )


def told_both_ways(maskgit: MaskGit, texts: Sequence[str], negative: str | None) -> tuple[Told, Told]:
    """What the texts become, and what guidance leads away from: the negative text, or none at all."""
    count = len(texts)
    opposite = [negative] * count if negative else list(texts)
    # An empty text is none.
    keep = torch.tensor([bool(text) for text in texts] + [bool(negative)] * count)
    # In one call, so that both are padded alike.
    both = maskgit.texts([*texts, *opposite], keep)
    halves = [{name: tensor[part] for name, tensor in both.items()} for part in (slice(count), slice(count, None))]
    return halves[0], halves[1]


def told_by_vectors(maskgit: MaskGit, vectors: Tensor, mask: Tensor | None = None) -> tuple[Told, Told]:
    """The same of texts that somebody else has embedded, (batch, words, width)."""
    mask = torch.ones(vectors.shape[:2], dtype=torch.bool) if mask is None else mask
    nothing = torch.zeros(len(vectors), dtype=torch.bool)
    return maskgit.text_vectors(vectors, mask), maskgit.text_vectors(vectors, mask, nothing)


def _critic(maskgit: MaskGit, critic: TokenCritic | None) -> Critic | None:
    if critic is not None:
        return critic
    return maskgit.score if maskgit.config.self_critic else None
