"""Tokens that stay visible or become random in training, decoding that reconsiders, and projected guidance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.config import build
from quintet.errors import UsageError
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.task import MuseTask
from quintet.families.soundstorm.masking import mask_codes
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.model import VQGanVAE
from quintet.families.vqgan.pipeline import VQGanPipeline
from quintet.sampling.guidance import Conditioning, apply_guidance
from quintet.sampling.masked import Sampling, corrupt, decode

CODES = 50
MASK = CODES


def items(count: int) -> ItemRNG:
    return ItemRNG(3, [0] * count, range(count))


def test_the_given_fractions_of_predicted_tokens_stay_visible_or_become_random() -> None:
    codes = torch.arange(64 * 200).view(64, 200) % CODES
    hidden = torch.arange(200).expand(64, -1) % 2 == 0
    tokens = corrupt(items(64), codes, hidden, MASK, visible_prob=0.2, random_prob=0.3)
    assert torch.equal(tokens[~hidden], codes[~hidden])
    masked = (tokens[hidden] == MASK).float().mean().item()
    same = (tokens[hidden] == codes[hidden]).float().mean().item()
    assert masked == pytest.approx(0.5, abs=0.02)
    assert same == pytest.approx(0.2 + 0.3 / CODES, abs=0.02)
    assert len(tokens[hidden].unique()) == CODES + 1


def test_without_fractions_every_predicted_token_is_masked() -> None:
    codes = torch.zeros(2, 9, dtype=torch.long)
    hidden = torch.tensor([[True] * 4 + [False] * 5] * 2)
    assert torch.equal(corrupt(items(2), codes, hidden, MASK), codes.masked_fill(hidden, MASK))


def test_soundstorm_corrupts_only_the_predicted_codes_of_the_level() -> None:
    codes = torch.randint(0, CODES, (32, 60, 3), generator=torch.Generator().manual_seed(0))
    frames = torch.ones(32, 60, dtype=torch.bool)
    plain = mask_codes(codes, frames, items(32), MASK)
    changed = mask_codes(codes, frames, items(32), MASK, visible_prob=0.3, random_prob=0.3)
    assert torch.equal(plain.where, changed.where)
    assert torch.equal(plain.targets, changed.targets)
    differs = plain.tokens != changed.tokens
    own = torch.arange(3) == plain.levels[:, None]
    assert differs.any()
    assert not (differs & ~(plain.where[..., None] & own[:, None])).any()


def muse_task(**keys: object) -> MuseTask:
    vae = VQGanVAE(image_size=16, dim=16, layers=2, codebook_size=CODES)
    tokenizer = VQGanPipeline(
        build(VQGanConfig, overrides={"data.path": None, "model": vae.config.model_dump(mode="json")}), {"vae": vae}
    ).freeze()
    model = {"dim": 16, "depth": 1, "heads": 2, "text": "none"}
    overrides = {"data.path": None, "model": model, "tokenizer": tokenizer.reference, **keys}
    return MuseTask(build(MuseConfig, overrides=overrides), {"tokenizer": tokenizer})


def test_only_the_chosen_tokens_enter_the_loss_whether_masked_visible_or_random() -> None:
    batch = Batch({"codes": torch.randint(0, CODES, (4, 4, 4)), "texts": [""] * 4}, ("a",) * 4, items(4))
    plain = muse_task().forward
    task = muse_task(**{"loss.visible_token_prob": 0.4, "loss.random_token_prob": 0.2})
    output = task.forward(task.modules, batch, 0)
    expected = plain(muse_task().modules, batch, 0)["hidden"]
    assert torch.equal(output["hidden"], expected)
    assert len(output["logits"]) == int(expected.sum())


def test_fractions_that_leave_nothing_masked_are_refused() -> None:
    with pytest.raises(UsageError, match="add up to less than 1"):
        build(MuseConfig, overrides={"loss.visible_token_prob": 0.6, "loss.random_token_prob": 0.4})


def fickle_logits(tokens: Tensor, cond: Conditioning, where: Tensor, previous: Tensor | None) -> tuple[Tensor, None]:
    """Favours code 0 everywhere while all is masked; after that position 0 must be 1, and others are uncertain."""
    logits = torch.zeros(*tokens.shape, CODES)
    start = (tokens == MASK).all(1)
    logits[start, :, 0] = 4.0
    logits[start, 0, 0] = 20.0
    logits[~start, 0, 1] = 30.0
    logits[~start, 1:, 0] = 10.0
    return logits.flatten(0, 1)[where], None


@pytest.mark.parametrize(("remask", "first"), [(False, 0), (True, 1)])
def test_decoding_can_change_a_kept_token_only_with_remask_kept(remask: bool, first: int) -> None:
    tokens = torch.full((2, 12), MASK)
    settings = Sampling(steps=6, temperature=0.0, choice_temperature=0.0, remask_kept=remask)
    decoded = decode(fickle_logits, tokens, tokens == MASK, mask_id=MASK, rng=items(2), settings=settings, cond={})
    assert decoded[:, 0].tolist() == [first] * 2
    assert not (decoded == MASK).any()


def test_remask_kept_leaves_the_prompt_alone() -> None:
    tokens = torch.full((1, 12), 7)
    generate = torch.arange(12)[None] >= 6
    settings = Sampling(steps=5, remask_kept=True)
    decoded = decode(fickle_logits, tokens, generate, mask_id=MASK, rng=items(1), settings=settings, cond={})
    assert (decoded[:, :6] == 7).all()
    assert not (decoded == MASK).any()


def test_projected_guidance_adds_nothing_parallel_to_the_conditional_logits() -> None:
    cond, uncond = torch.randn(2, 5, CODES, dtype=torch.float64)
    guided = apply_guidance(cond, uncond, 3.0, projected=True)
    direction = cond - cond.mean(-1, keepdim=True)
    assert ((guided - cond) * direction).sum(-1).abs().max() < 1e-9
    plain = apply_guidance(cond, uncond, 3.0)
    assert ((plain - cond) * direction).sum(-1).abs().max() > 1
    shifted = apply_guidance(cond, uncond + 5, 3.0, projected=True)
    torch.testing.assert_close(guided, shifted)


def test_projected_guidance_keeps_impossible_codes_impossible() -> None:
    cond, uncond = torch.randn(2, 3, CODES)
    cond[:, 4] = -torch.inf
    guided = apply_guidance(cond, uncond, 2.0, projected=True)
    assert (guided[:, 4] == -torch.inf).all()
    assert guided[:, :4].isfinite().all()
