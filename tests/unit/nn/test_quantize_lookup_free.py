"""LFQ against vector-quantize-pytorch and against its definition, written out over all codes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from vector_quantize_pytorch import LFQ

from quintet.nn.quantize import LookupFreeQuantizer


def brute_force_loss(quantizer: LookupFreeQuantizer, latents: Tensor) -> Tensor:
    """The paper's loss with the softmax over all codes of all vectors."""
    codebook = quantizer.look_up(torch.arange(quantizer.num_codes)).to(latents.dtype)
    logs = (2 * quantizer.inverse_temperature * latents @ codebook.t()).log_softmax(-1)
    of_each = -(logs.exp() * logs).sum(-1).mean()
    average = logs.exp().mean(0)
    of_all = -(average * average.log()).sum()
    values = quantizer.look_up(quantizer.nearest(latents)).to(latents.dtype)
    entropy_loss = of_each - quantizer.diversity_gamma * of_all
    distance = (latents - values).square().mean()
    return quantizer.entropy_weight * entropy_loss + quantizer.commitment_weight * distance


@pytest.mark.parametrize("bits", [1, 2, 7, 8])
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("spread", [0.003, 0.03])
def test_factorised_entropy_is_exact(bits: int, depth: int, spread: float) -> None:
    torch.manual_seed(0)
    quantizer = LookupFreeQuantizer(bits, 2**bits, depth=depth).double()
    x = (torch.randn(2, 40, bits, dtype=torch.float64) * spread).requires_grad_()
    loss = quantizer(x).loss
    (gradient,) = torch.autograd.grad(loss, x)
    expected = brute_force_loss(quantizer, x.flatten(0, 1))
    (expected_gradient,) = torch.autograd.grad(expected, x)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


def test_gradient_by_finite_differences() -> None:
    torch.manual_seed(0)
    quantizer = LookupFreeQuantizer(6, 8).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64).mul(0.02).requires_grad_()
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    assert torch.autograd.gradcheck(lambda value: quantizer(value, mask).loss, x)


@pytest.mark.parametrize("dim", [8, 20])
@pytest.mark.parametrize("spread", [0.003, 1.0])
def test_equals_the_library(dim: int, spread: float) -> None:
    torch.manual_seed(0)
    ours = LookupFreeQuantizer(dim, 256)
    library = LFQ(
        dim=dim,
        codebook_size=256,
        entropy_loss_weight=0.1,
        diversity_gamma=4.0,
        commitment_loss_weight=0.25,
        frac_per_sample_entropy=1.0,
    )
    if dim != 8:
        torch.nn.init.zeros_(ours.project_in.bias)
        library.project_in.load_state_dict(ours.project_in.state_dict())
        library.project_out.load_state_dict(ours.project_out.state_dict())
    x = torch.randn(4, 300, dim) * spread
    left, right = x.clone().requires_grad_(), x.clone().requires_grad_()
    result = ours(left)
    vectors, codes, loss = library(right)
    assert torch.equal(result.codes, codes.long())
    torch.testing.assert_close(result.vectors, vectors)
    # The library clamps probabilities to 1e-5 before the logarithm.
    torch.testing.assert_close(result.loss, loss, rtol=1e-3, atol=1e-4)
    (gradient,) = torch.autograd.grad(result.loss, left, retain_graph=True)
    (expected,) = torch.autograd.grad(loss, right, retain_graph=True)
    assert (gradient - expected).norm() < 0.01 * expected.norm()
    torch.testing.assert_close(
        torch.autograd.grad(result.vectors.pow(3).sum(), left), torch.autograd.grad(vectors.pow(3).sum(), right)
    )


def test_certain_vectors_have_no_infinite_gradient() -> None:
    quantizer = LookupFreeQuantizer(4, 16)
    x = (torch.randn(1, 3, 4) * 1000).requires_grad_()
    quantizer(x).loss.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_many_codes_need_little_memory() -> None:
    """2^18 codes for 2048 positions: the table of all probabilities would have 2 GB."""
    quantizer = LookupFreeQuantizer(18, 2**18)
    x = torch.randn(2, 1024, 18).mul(0.001).requires_grad_()
    result = quantizer(x)
    result.loss.backward()
    assert result.loss.isfinite()


def test_diversity_brings_codes_into_use() -> None:
    """Vectors that all start with the same code spread out under this loss."""
    torch.manual_seed(0)
    quantizer = LookupFreeQuantizer(6, 64)
    x = (torch.randn(1, 256, 6) * 0.002 + 0.006).requires_grad_()
    optimizer = torch.optim.Adam([x], 1e-3)
    before = quantizer(x).statistics.sums["count"]
    for _ in range(50):
        optimizer.zero_grad()
        quantizer(x).loss.backward()
        optimizer.step()
    after = quantizer(x).statistics.sums["count"]
    assert (before > 0).sum() < 16
    assert (after > 0).sum() > 48
