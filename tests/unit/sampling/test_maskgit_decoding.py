"""Decoding of a MaskGit: conditioning is encoded once, and every step equals a plain call of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.common.rng import ItemRNG
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.sampling import masked
from quintet.sampling.guidance import Conditioning, encode_prompts
from quintet.sampling.masked import Sampling
from quintet.sampling.maskgit import encode_vectors, fill

SMALL: dict[str, Any] = {
    "grid": (2, 4, 4), "num_codes": 11, "dim": 32, "depth": 2, "heads": 4,
    "text_dim": 16, "text_depth": 1, "text_heads": 2, "text_length": 24,
}  # fmt: skip
LOW: dict[str, Any] = {"grid": (4, 6), "low_res_grid": (2, 3), "low_res_num_codes": 7}
TEXTS = ["a red circle", "", "two blue squares"]


def make(kind: type[MaskGit] | type[TokenCritic] = MaskGit, **keys: Any) -> Any:
    torch.manual_seed(0)
    model = kind(**{**SMALL, **keys}).eval()
    for name in ("to_score", "from_previous"):
        # They are initialised with zeros, which would hide the conditioning.
        if getattr(model, name, None) is not None:
            nn.init.normal_(getattr(model, name).weight)
    return model


def encoded(model: MaskGit, negative: str | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    cond, uncond = encode_prompts(model, TEXTS if model.text_encoder is not None else [""] * 3, negative)
    if model.low is not None:
        cond["low"] = torch.randint(0, 7, (3, 6), generator=torch.Generator().manual_seed(2))
    return cond, uncond


def filled(
    model: MaskGit,
    both: tuple[Conditioning, Conditioning],
    guidance_scale: float = 3.0,
    critic: TokenCritic | None = None,
) -> Tensor:
    tokens = torch.full((3, model.length), model.mask_id)
    hole = both[0].get("valid_mask", torch.ones_like(tokens, dtype=torch.bool))
    return fill(
        model, tokens, hole, rng=rng(), settings=settings(guidance_scale), cond=both[0], uncond=both[1], critic=critic
    )


def plain_decode(
    model: MaskGit,
    both: tuple[Conditioning, Conditioning],
    guidance_scale: float = 3.0,
    critic: TokenCritic | None = None,
) -> Tensor:
    """The same with the conditioning encoded in every step, and logits of all positions."""

    def logits(
        tokens: Tensor, conditioning: Conditioning, where: Tensor, previous: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        scores = model(tokens, conditioning, previous=previous)
        return scores.flatten(0, 1)[where], scores

    tokens = torch.full((3, model.length), model.mask_id)
    return masked.decode(
        logits,
        tokens,
        both[0].get("valid_mask", torch.ones_like(tokens, dtype=torch.bool)),
        mask_id=model.mask_id,
        rng=rng(),
        settings=settings(guidance_scale),
        cond=both[0],
        uncond=both[1],
        critic=critic or (model.score if model.to_score is not None else None),
    )


def rng() -> ItemRNG:
    return ItemRNG(3, [0] * 3, range(3))


def settings(guidance_scale: float) -> Sampling:
    return Sampling(steps=5, guidance_scale=guidance_scale)


@pytest.mark.parametrize("use_critic", [False, True], ids=["alone", "critic"])
@pytest.mark.parametrize("negative", [None, "a green star"])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        LOW,
        {**LOW, "text": "none"},
        {"text": "none"},
        {"self_conditioning": True},
        {"self_critic": True},
        {"code_patch_size": (1, 2, 2)},
    ],
    ids=str,
)
def test_precomputed_conditioning_decodes_the_same_tokens(
    keys: dict[str, Any], negative: str | None, use_critic: bool
) -> None:
    model, critic = make(**keys), make(TokenCritic, **keys) if use_critic else None
    both = encoded(model, negative if model.text_encoder is not None else None)
    for guidance_scale in (1.0, 3.0):
        assert torch.equal(
            filled(model, both, guidance_scale, critic), plain_decode(model, both, guidance_scale, critic)
        )


def test_precomputed_conditioning_with_shorter_rows() -> None:
    model = make()
    cond, uncond = encoded(model)
    both = {**cond, "valid_mask": torch.arange(32) < torch.tensor([32, 16, 32])[:, None]}, uncond
    assert torch.equal(filled(model, both), plain_decode(model, both))


def test_texts_and_low_resolution_codes_are_encoded_once() -> None:
    model, critic = make(**LOW), make(TokenCritic, **LOW)
    read: list[nn.Module] = []
    encoders = [encoder for one in (model, critic) for encoder in (one.text_encoder, one.low)]
    passes: list[int] = []
    for encoder in encoders:
        encoder.register_forward_hook(lambda encoder, _, __: read.append(encoder))
    model.transformer.register_forward_hook(lambda *_: passes.append(1))
    filled(model, encoded(model), critic=critic)
    assert len(passes) == 5
    assert sorted(map(id, read)) == sorted(map(id, encoders))


def test_text_embeddings_condition_the_decoding() -> None:
    model = make(text="vectors", vector_dim=8)
    vectors = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(4))
    both = encode_vectors(model, vectors)
    assert torch.equal(filled(model, both), plain_decode(model, both))
    assert not torch.equal(filled(model, both), filled(model, encode_vectors(model, vectors.flip(1) * -1)))


def test_precomputed_conditioning_has_no_gradient() -> None:
    model = make()
    once = model.precompute_conditioning(encoded(model)[0])
    assert {name: tensor.requires_grad for name, tensor in once.items()} == dict.fromkeys(once, False)
