"""Codebook smoothing: targets spread over similar codes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from quintet.errors import UsageError
from quintet.nn.codebook import MAX_NEIGHBOURS, codebook_smoothing
from quintet.nn.quantize import make_quantizer
from quintet.training.maskgit_task import token_loss

# Two pairs of neighbours, far from each other, and one isolated code.
LINE = torch.tensor([[0.0], [1.0], [50.0], [51.0], [200.0]])


def test_a_target_is_spread_over_similar_codes() -> None:
    found = codebook_smoothing([LINE], spread=1.0)
    (codes,), (weights,) = found.codes, found.weights
    assert codes[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert codes[:, 1].tolist() == [1, 0, 3, 2, 3]
    torch.testing.assert_close(weights.sum(1), torch.ones(5))
    torch.testing.assert_close(weights[0, 1] / weights[0, 0], torch.tensor(1 / torch.e))
    assert weights[4, 0] > 0.999, "the last code has no similar code"


def test_the_loss_is_the_cross_entropy_with_smoothed_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    codebook = torch.randn(40, 3, generator=generator)
    logits = torch.randn(7, 40, generator=generator, dtype=torch.float64)
    target = torch.randint(40, (7,), generator=generator)
    found = codebook_smoothing([codebook], spread=2.0)
    assert found.codes.shape == (1, 40, MAX_NEIGHBOURS)
    full = torch.zeros(40, 40, dtype=torch.float64).scatter(1, found.codes[0], found.weights[0].double())
    expected = F.cross_entropy(logits, full[target])
    torch.testing.assert_close(token_loss(logits, target, 0.0, found).value, expected)
    sharp = codebook_smoothing([codebook], spread=1e-6)
    torch.testing.assert_close(token_loss(logits, target, 0.0, sharp).value, F.cross_entropy(logits, target))


def test_identical_codes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"loss.codebook_smoothing: half of the tokenizer's codes are identical"):
        codebook_smoothing([torch.zeros(8, 3)], 1.0)


def test_codes_are_similar_only_within_their_quantizer() -> None:
    generator = torch.Generator().manual_seed(0)
    codebooks = [torch.randn(40, 3, generator=generator) for _ in range(2)]
    logits, target = torch.randn(6, 40, generator=generator), torch.randint(40, (6,), generator=generator)
    both = codebook_smoothing(codebooks, spread=2.0)
    levels = torch.tensor([0, 1, 0, 1, 0, 1])
    found = both.loss(logits.log_softmax(-1), target, levels)
    for level in (0, 1):
        alone = codebook_smoothing([codebooks[level]], spread=2.0)
        expected = alone.loss(logits[level::2].log_softmax(-1), target[level::2])
        torch.testing.assert_close(found[level::2], expected)


def test_the_vectors_of_all_levels_add_up_to_the_reconstruction() -> None:
    quantizer = make_quantizer("vq", 6, 8, levels=3)
    codes = torch.randint(8, (1, 5, 3), generator=torch.Generator().manual_seed(0))
    parts = [quantizer.all_vectors(level)[codes[..., level]] for level in range(3)]
    torch.testing.assert_close(parts[0] + parts[1] + parts[2], quantizer.codes_to_vectors(codes))
