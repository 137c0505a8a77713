from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.nn.contrastive import ContrastiveKind, contrastive_loss, similarities

NO_BIAS = torch.zeros((), dtype=torch.float64)


def directions(rows: int, dim: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64), dim=-1)


def test_softmax_is_the_cross_entropy_in_both_directions() -> None:
    left, right, scale = directions(7), directions(7, seed=1), torch.tensor(5.0, dtype=torch.float64)
    scores, answers = scale * left @ right.T, torch.arange(7)
    expected = (F.cross_entropy(scores, answers) + F.cross_entropy(scores.T, answers)) / 2
    assert contrastive_loss("softmax", left, right, scale, NO_BIAS).item() == pytest.approx(expected.item(), rel=1e-12)


def test_decoupled_excludes_the_positive_from_the_denominator() -> None:
    left, right, scale = directions(5), directions(5, seed=1), torch.tensor(3.0, dtype=torch.float64)
    powers = (scale * left @ right.T).exp()
    wrong = powers - powers.diag().diag()
    expected = -(powers.diag() / wrong.sum(1)).log().mean() / 2 - (powers.diag() / wrong.sum(0)).log().mean() / 2
    assert contrastive_loss("decoupled", left, right, scale, NO_BIAS).item() == pytest.approx(expected.item())


def test_sigmoid_classifies_every_pair() -> None:
    left, right = directions(4), directions(4, seed=1)
    scale, bias = torch.tensor(3.0, dtype=torch.float64), torch.tensor(-2.0, dtype=torch.float64)
    yes = (scale * left @ right.T + bias).sigmoid()
    answers = torch.eye(4, dtype=torch.float64)
    expected = F.binary_cross_entropy(yes, answers, reduction="sum") / 4
    assert contrastive_loss("sigmoid", left, right, scale, bias).item() == pytest.approx(expected.item())


@pytest.mark.parametrize("kind", ["softmax", "decoupled", "sigmoid"])
@pytest.mark.parametrize("scale", [99.5, 1e4])
def test_no_temperature_overflows(kind: ContrastiveKind, scale: float) -> None:
    left, right = directions(32).float().requires_grad_(), directions(32, seed=1).float()
    loss = contrastive_loss(kind, left, right, torch.tensor(scale), torch.tensor(-10.0))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite()
    assert left.grad is not None
    assert left.grad.isfinite().all()


def test_identical_vectors_give_the_loss_of_chance() -> None:
    same = F.normalize(torch.ones(9, 4), dim=-1)
    assert contrastive_loss("softmax", same, same, torch.tensor(10.0), NO_BIAS).item() == pytest.approx(math.log(9))


def test_a_hard_negative_is_one_more_logit_of_its_own_row() -> None:
    left, right, negatives = (directions(5, seed=seed) for seed in (0, 1, 2))
    scale, bias = torch.tensor(3.0), torch.tensor(-1.0)
    negatives[3] = 0  # has none
    scores, hard = scale * left @ right.T, scale * (left * negatives).sum(1)
    rows = torch.cat([scores, hard[:, None].masked_fill(torch.arange(5)[:, None] == 3, -torch.inf)], dim=1)
    numbers = torch.arange(5)
    expected = (F.cross_entropy(rows, numbers) + F.cross_entropy(scores.T, numbers)) / 2
    torch.testing.assert_close(contrastive_loss("softmax", left, right, scale, bias, negatives), expected)
    diagonal = torch.eye(5, dtype=torch.bool)
    outside = rows.masked_fill(F.pad(diagonal, (0, 1)), -torch.inf).logsumexp(1)
    both = outside + scores.masked_fill(diagonal, -torch.inf).logsumexp(0)
    expected = (both / 2 - scores.diagonal()).mean()
    torch.testing.assert_close(contrastive_loss("decoupled", left, right, scale, bias, negatives), expected)
    plain = contrastive_loss("sigmoid", left, right, scale, bias)
    expected = plain - F.logsigmoid(-(hard + bias))[[0, 1, 2, 4]].sum() / 5
    torch.testing.assert_close(contrastive_loss("sigmoid", left, right, scale, bias, negatives), expected)
    for kind in ("softmax", "decoupled", "sigmoid"):
        none = contrastive_loss(kind, left, right, scale, bias, torch.zeros_like(negatives))  # type: ignore[arg-type]
        torch.testing.assert_close(none, contrastive_loss(kind, left, right, scale, bias))  # type: ignore[arg-type]
        given = left.clone().requires_grad_()
        contrastive_loss(kind, given, right, scale, bias, negatives).backward()  # type: ignore[arg-type]
        assert given.grad is not None
        assert given.grad.isfinite().all()


def test_similarities_ignore_autocast() -> None:
    left, right = directions(8).float(), directions(8, seed=1).float()
    with torch.autocast("cpu", torch.bfloat16):
        blunt, sharp = left @ right.T, similarities(left, right)
    assert blunt.dtype == torch.bfloat16
    torch.testing.assert_close(sharp, left @ right.T)
