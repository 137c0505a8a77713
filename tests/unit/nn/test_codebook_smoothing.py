"""Codebook smoothing: targets spread over similar codes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from quintet.errors import UsageError
from quintet.nn.codebook import MAX_NEIGHBOURS, codebook_smoothing
from quintet.training.maskgit_task import token_loss

# Two pairs of neighbours, far from each other, and one isolated code.
LINE = torch.tensor([[0.0], [1.0], [50.0], [51.0], [200.0]])


def test_a_target_is_spread_over_similar_codes() -> None:
    found = codebook_smoothing(LINE, spread=1.0)
    assert found.codes[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.codes[:, 1].tolist() == [1, 0, 3, 2, 3]
    torch.testing.assert_close(found.weights.sum(1), torch.ones(5))
    torch.testing.assert_close(found.weights[0, 1] / found.weights[0, 0], torch.tensor(1 / torch.e))
    assert found.weights[4, 0] > 0.999, "the last code has no similar code"


def test_the_loss_is_the_cross_entropy_with_smoothed_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    codebook = torch.randn(40, 3, generator=generator)
    logits = torch.randn(7, 40, generator=generator, dtype=torch.float64)
    target = torch.randint(40, (7,), generator=generator)
    found = codebook_smoothing(codebook, spread=2.0)
    assert found.codes.shape == (40, MAX_NEIGHBOURS)
    full = torch.zeros(40, 40, dtype=torch.float64).scatter(1, found.codes, found.weights.double())
    expected = F.cross_entropy(logits, full[target])
    torch.testing.assert_close(token_loss(logits, target, 0.0, found).value, expected)
    sharp = codebook_smoothing(codebook, spread=1e-6)
    torch.testing.assert_close(token_loss(logits, target, 0.0, sharp).value, F.cross_entropy(logits, target))


def test_identical_codes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"loss.codebook_smoothing: half of the tokenizer's codes are identical"):
        codebook_smoothing(torch.zeros(8, 3), 1.0)
