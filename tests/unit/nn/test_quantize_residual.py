"""Residual quantization against vector-quantize-pytorch, quantizer dropout, shared codebooks, finer grids."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from vector_quantize_pytorch import ResidualLFQ, ResidualVQ

from quintet.nn.quantize import (
    FiniteScalarQuantizer,
    LookupFreeQuantizer,
    ResidualQuantizer,
    VectorQuantizer,
    make_quantizer,
)
from quintet.nn.quantize.codebook_free import grid_for


def residual_vq(shared: bool = False, levels: int = 4, **options: Any) -> ResidualQuantizer:
    torch.manual_seed(0)
    return ResidualQuantizer(16, levels, lambda level: VectorQuantizer(16, 64, **options), shared=shared)


def library_like(ours: ResidualQuantizer) -> ResidualVQ:
    first = ours.level(0)
    assert isinstance(first, VectorQuantizer)
    library = ResidualVQ(
        dim=16,
        codebook_size=64,
        num_quantizers=ours.levels,
        shared_codebook=ours.shared,
        decay=first.decay,
        commitment_weight=first.commitment_weight,
        rotation_trick=False,
    )
    for level, layer in enumerate(library.layers):
        quantizer = ours.level(level)
        assert isinstance(quantizer, VectorQuantizer)
        layer.codebook = quantizer.codebook
        layer._codebook.embed_avg.copy_(quantizer.vector_sums[None])
    return library


def test_equals_the_library() -> None:
    """Codes, values, loss, its gradient, and all codebooks after two steps."""
    ours = residual_vq()
    library = library_like(ours)
    for step in range(2):
        x = torch.randn(3, 40, 16, generator=torch.Generator().manual_seed(step))
        left, right = x.clone().requires_grad_(), x.clone().requires_grad_()
        result = ours(left)
        vectors, codes, losses = library(right)
        assert torch.equal(result.codes, codes)
        torch.testing.assert_close(result.vectors, vectors)
        torch.testing.assert_close(result.loss, losses.mean())
        torch.testing.assert_close(torch.autograd.grad(result.loss, left), torch.autograd.grad(losses.mean(), right))
        ours.update(result.statistics, seed=0)
        for level, layer in enumerate(library.layers):
            torch.testing.assert_close(ours.level(level).codebook, layer.codebook)


def test_equals_the_library_with_a_shared_codebook() -> None:
    """Only the codes: the library applies the decay once per level, we once per step."""
    ours = residual_vq(shared=True)
    library = library_like(ours).eval()
    x = torch.randn(3, 40, 16)
    assert torch.equal(ours(x).codes, library(x)[1])


def test_equals_the_librarys_residual_lfq() -> None:
    torch.manual_seed(0)
    ours = make_quantizer("lfq", 12, 64, levels=3, commitment_weight=0.25)
    library = ResidualLFQ(
        dim=12,
        codebook_size=64,
        num_quantizers=3,
        entropy_loss_weight=0.1,
        diversity_gamma=4.0,
        commitment_loss_weight=0.25,
    )
    library.project_in.load_state_dict(ours.project_in.state_dict())
    library.project_out.load_state_dict(ours.project_out.state_dict())
    x = torch.randn(4, 100, 12)
    result = ours(x)
    vectors, codes, losses = library(x)
    assert torch.equal(result.codes, codes.long())
    torch.testing.assert_close(result.vectors, vectors)
    torch.testing.assert_close(result.loss, losses.mean(), rtol=1e-3, atol=1e-4)


def test_the_gradient_passes_once() -> None:
    x = torch.randn(2, 10, 16, requires_grad=True)
    weights = torch.randn(2, 10, 16)
    (gradient,) = torch.autograd.grad((residual_vq()(x).vectors * weights).sum(), x)
    assert torch.equal(gradient, weights)


@pytest.mark.parametrize("kind", ["vq", "lfq", "fsq"])
def test_one_level_equals_the_single_quantizer(kind: Any) -> None:
    torch.manual_seed(0)
    single = make_quantizer(kind, 12, 256)
    residual = ResidualQuantizer(12, 1, lambda level: _without_projection(kind))
    residual.project_in, residual.project_out = single.project_in, single.project_out
    if kind == "vq":
        residual.level(0).load_state_dict(single.state_dict())
    x = torch.randn(2, 30, 12)
    left, right = single(x), residual(x)
    assert torch.equal(left.codes, right.codes[..., 0])
    assert torch.equal(left.vectors, right.vectors)
    assert torch.equal(left.loss, right.loss)


def _without_projection(kind: str) -> Any:
    if kind == "vq":
        return VectorQuantizer(12, 256)
    return LookupFreeQuantizer(8, 256) if kind == "lfq" else FiniteScalarQuantizer(3, grid_for(256))


def test_items_use_only_their_active_levels() -> None:
    ours = residual_vq()
    x = torch.randn(4, 10, 16)
    active = torch.tensor([1, 4, 0, 2])
    result = ours(x, active_levels=active, return_candidates=True)
    full = ours(x)
    levels = torch.arange(4)
    used = (levels < active[:, None])[:, None].expand(4, 10, 4)
    assert torch.equal(result.codes, full.codes.masked_fill(~used, -1))
    assert torch.equal(ours.codes_to_vectors(result.codes), result.vectors)
    assert torch.equal(result.vectors[1], full.vectors[1])
    assert (result.vectors[2] == 0).all()
    for level in range(4):
        statistics = result.statistics.strip_prefix(str(level))
        assert statistics.sums["count"].sum() == 10 * (active > level).sum()
        assert statistics.rows["real"].sum() == 10 * (active > level).sum()
    alone = ours(x[3:], mask=torch.ones(1, 10, dtype=torch.bool), active_levels=active[3:])
    assert torch.equal(alone.vectors[0], result.vectors[3])


def test_coarse_codes_can_be_decoded() -> None:
    ours = residual_vq()
    ours.init_from_data(torch.randn(1000, 16), seed=0)
    x = torch.randn(2, 50, 16)
    codes = ours(x).codes
    errors = [(ours.codes_to_vectors(codes[..., :n]) - x).square().mean().item() for n in (1, 2, 3, 4)]
    assert errors == sorted(errors, reverse=True)
    assert errors[3] < 0.5 * errors[0]


def distortion(quantizer: ResidualQuantizer, vectors: Tensor) -> float:
    return (quantizer(vectors[None]).vectors[0] - vectors).square().mean().item()


@pytest.mark.parametrize("shared", [False, True])
def test_kmeans_initialisation_beats_a_random_one(shared: bool) -> None:
    vectors = torch.randn(2000, 16) * 3
    quantizer = residual_vq(shared=shared)
    random = distortion(quantizer, vectors)
    quantizer.init_from_data(vectors, seed=0)
    assert distortion(quantizer, vectors) < 0.5 * random


def test_a_shared_codebook_learns_from_all_levels() -> None:
    ours = residual_vq(shared=True, decay=0.0, revive_below=0)
    x = torch.randn(2, 50, 16)
    result = ours(x)
    ours.update(result.statistics, seed=0)
    counts = torch.bincount(result.codes.flatten(), minlength=64).float()
    first = ours.level(0)
    assert isinstance(first, VectorQuantizer)
    assert torch.equal(first.cluster_size, counts)


@pytest.mark.parametrize("sizes", [(8, 6, 5), (3, 4), (7, 5, 5)])
def test_each_fsq_level_refines_the_grid(sizes: tuple[int, ...]) -> None:
    """After level k every number is within half a step of the k-th grid, so later levels reach all residuals."""
    torch.manual_seed(0)
    quantizer = make_quantizer("fsq", len(sizes), math.prod(sizes), levels=4, level_sizes=sizes).double()
    x = torch.randn(1, 5000, len(sizes), dtype=torch.float64) * 2
    bounded = quantizer.to_latents(x, None)
    result = quantizer(x)
    widths = torch.tensor([size // 2 for size in sizes], dtype=torch.float64)
    scales = torch.tensor([size - 1.0 for size in sizes], dtype=torch.float64)
    for levels in range(1, 5):
        error = (quantizer.codes_to_vectors(result.codes[..., :levels]) - bounded).abs()
        # Bounded values extend a thousandth beyond the first grid.
        limit = 0.5 / widths * scales ** (1.0 - levels) + 1e-3 * scales / 2 / widths
        assert (error <= limit).all()
        inside = error.quantile(0.9, dim=1)
        assert (inside <= 0.5 / widths * scales ** (1.0 - levels) * 1.001).all()


def test_lfq_levels_halve_their_scale() -> None:
    torch.manual_seed(0)
    quantizer = make_quantizer("lfq", 4, 16, levels=6)
    x = torch.rand(1, 500, 4) * 4 - 2
    codes = quantizer(x).codes
    for levels in range(1, 7):
        error = (quantizer.codes_to_vectors(codes[..., :levels]) - x).abs()
        assert error.max() <= 2.0 ** (1 - levels) + 1e-6
