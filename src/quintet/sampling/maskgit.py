"""Owns how a `MaskGit` fills masked places of a tokenizer's grid: with guidance, and with a critic if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.sampling import masked
from quintet.sampling.masked import Conditioning, Critic, Sampling

Told = dict[str, Tensor]
"""The conditioning of a `MaskGit`."""


@torch.no_grad()
def fill(
    maskgit: MaskGit,
    tokens: Tensor,
    hole: Tensor,
    *,
    draw: ItemRNG,
    settings: Sampling,
    given: Told,
    against: Told,
    critic: TokenCritic | None = None,
    name: str = "decode",
) -> Tensor:
    """The tokens (batch, places) with codes where the hole is; `against` is what guidance leads away from.

    `critic` decides what is masked again: a `TokenCritic`, or nothing; a model with a critic of its own uses that.
    """
    told, told_against = _told_once(maskgit, given, against if settings.guidance != 1 else {}, len(tokens))
    return masked.decode(
        partial(_logits, maskgit),
        tokens,
        hole,
        mask_id=maskgit.mask_id,
        draw=draw,
        settings=settings,
        conditioning=told,
        against=told_against,
        valid=given.get("there"),
        critic=_critic(maskgit, critic, given),
        name=name,
    )


def _logits(
    maskgit: MaskGit, tokens: Tensor, told: Conditioning, where: Tensor, previous: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if not maskgit.config.self_conditioning:
        return maskgit(tokens, told, where=where), None
    # What a model says of every place is what it will listen to.
    logits: Tensor = maskgit(tokens, told, previous=previous)
    return logits[where], logits


def _told_once(maskgit: MaskGit, given: Told, against: Told, count: int) -> tuple[Told, Told]:
    """Both as they are in every step: what is read of texts does not change between them."""
    if not against:
        return maskgit.told_once(given), {}
    both = maskgit.told_once({name: torch.cat([own, against.get(name, own)]) for name, own in given.items()})
    return {name: made[:count] for name, made in both.items()}, {name: made[count:] for name, made in both.items()}


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


def _critic(maskgit: MaskGit, critic: TokenCritic | None, given: Told) -> Critic | None:
    if critic is not None:
        # It reads texts in its own way.
        told = critic.told_once(given)
        return lambda tokens, _: critic(tokens, told)
    return maskgit.score if maskgit.config.self_critic else None
