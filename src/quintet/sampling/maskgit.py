"""Decoding of a `MaskGit`: fills masked positions of a token grid, with guidance and an optional critic."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.sampling import masked
from quintet.sampling.guidance import Conditioning, concat_conditioning, split
from quintet.sampling.masked import Critic, Sampling


@torch.no_grad()
def fill(
    maskgit: MaskGit,
    tokens: Tensor,
    hole: Tensor,
    *,
    rng: ItemRNG,
    settings: Sampling,
    cond: Conditioning,
    uncond: Conditioning,
    critic: TokenCritic | None = None,
    use_critic: bool = True,
    name: str = "decode",
) -> Tensor:
    """Fill `tokens` (batch, positions) where `hole` (batch, positions) is True; guidance steers away from `uncond`.

    `critic` decides which tokens to mask again; without it, a model with `model.self_critic` uses its own head.
    Without `use_critic`, the probabilities of the tokens decide.
    """
    # Encode texts once, not in every step.
    guided = settings.guidance_scale != 1 and bool(uncond)
    precomputed = maskgit.precompute_conditioning(concat_conditioning(cond, uncond) if guided else cond)
    own, other = split(precomputed, len(tokens)) if guided else (precomputed, {})
    return masked.decode(
        partial(_logits, maskgit),
        tokens,
        hole,
        mask_id=maskgit.mask_id,
        rng=rng,
        settings=settings,
        cond=own,
        uncond=other,
        valid=cond.get("valid_mask"),
        critic=_critic(maskgit, critic, cond) if use_critic else None,
        name=name,
    )


def encode_vectors(
    maskgit: MaskGit, vectors: Tensor, mask: Tensor | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """As `encode_prompts`, for precomputed text embeddings `vectors` (batch, tokens, vector_dim)."""
    mask = torch.ones(vectors.shape[:2], dtype=torch.bool) if mask is None else mask
    dropped = torch.zeros(len(vectors), dtype=torch.bool)
    return maskgit.text_vectors(vectors, mask), maskgit.text_vectors(vectors, mask, dropped)


def _logits(
    maskgit: MaskGit, tokens: Tensor, conditioning: Conditioning, where: Tensor, previous: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if not maskgit.config.self_conditioning:
        return maskgit(tokens, conditioning, where=where), None
    # Self-conditioning needs the logits of all positions.
    logits: Tensor = maskgit(tokens, conditioning, previous=previous)
    return logits.flatten(0, 1).index_select(0, where), logits


def _critic(maskgit: MaskGit, critic: TokenCritic | None, cond: Conditioning) -> Critic | None:
    if critic is not None:
        # The critic has its own text encoder.
        conditioning = critic.precompute_conditioning(cond)
        return lambda tokens, _: critic(tokens, conditioning)
    return maskgit.score if maskgit.config.self_critic else None
