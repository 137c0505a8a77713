"""FSQ against vector-quantize-pytorch, and its grids."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from vector_quantize_pytorch import FSQ

from fakegpu import device
from fakegpu.commands import run_check
from helpers import forked
from quintet.nn.quantize import FiniteScalarQuantizer
from quintet.nn.quantize.codebook_free import LEVEL_SIZES, grid_for

GRIDS = pytest.mark.parametrize("sizes", [(8, 6, 5), (8, 5, 5, 5), (3, 4), (7, 5, 5, 5, 5)])


@GRIDS
@pytest.mark.parametrize("projected", [False, True])
def test_equals_the_library(sizes: tuple[int, ...], projected: bool) -> None:
    torch.manual_seed(0)
    dim = 12 if projected else len(sizes)
    ours, library = FiniteScalarQuantizer(dim, sizes), FSQ(list(sizes), dim)
    if projected:
        library.project_in.load_state_dict(ours.project_in.state_dict())
        library.project_out.load_state_dict(ours.project_out.state_dict())
    x = torch.randn(4, 200, dim) * 2
    left, right = x.clone().requires_grad_(), x.clone().requires_grad_()
    result = ours(left)
    vectors, codes = library(right)
    assert torch.equal(result.codes, codes.long())
    torch.testing.assert_close(result.vectors, vectors)
    torch.testing.assert_close(
        torch.autograd.grad(result.vectors.pow(3).sum(), left), torch.autograd.grad(vectors.pow(3).sum(), right)
    )
    assert result.loss == 0


@GRIDS
def test_every_code_is_reached_and_round_trips(sizes: tuple[int, ...]) -> None:
    quantizer = FiniteScalarQuantizer(len(sizes), sizes)
    codes = torch.arange(quantizer.num_codes)
    values = quantizer.look_up(codes)
    assert torch.equal(quantizer.nearest(values), codes)
    assert values.abs().max() <= 1
    line = torch.linspace(-6, 6, 1000)[None, :, None].expand(1, 1000, len(sizes))
    reached = [len(numbers.unique()) for numbers in quantizer(line).vectors.unbind(-1)]
    assert reached == list(sizes)


@GRIDS
def test_zero_is_zero(sizes: tuple[int, ...]) -> None:
    assert (FiniteScalarQuantizer(len(sizes), sizes)(torch.zeros(1, 1, len(sizes))).vectors == 0).all()


@pytest.mark.parametrize(("num_codes", "true_number"), [(256, 240), (1024, 1000), (4096, 4375), (16384, 15360)])
def test_grids_of_the_paper(num_codes: int, true_number: int) -> None:
    quantizer = FiniteScalarQuantizer(32, grid_for(num_codes))
    assert quantizer.num_codes == true_number == math.prod(quantizer.level_sizes)
    assert quantizer.code_dim == len(LEVEL_SIZES[num_codes])


def test_far_out_values_stay_on_the_grid() -> None:
    quantizer = FiniteScalarQuantizer(3, (8, 6, 5))
    x = torch.tensor([-torch.inf, -1e30, 1e30, torch.inf])[None, :, None].expand(1, 4, 3)
    codes = quantizer.encode(x)
    assert codes.tolist() == [[0, 0, 239, 239]]


def quantize_on_the_device() -> None:
    quantizer = FiniteScalarQuantizer(12, (8, 6, 5), depth=1).to(device.NAME)
    x = torch.randn(2, 5, 12).to(device.NAME)
    device.MODE.waits.clear()
    quantized = quantizer(x)
    quantizer.codes_to_vectors(quantized.codes)
    assert device.MODE.waits == []


def test_a_forward_pass_copies_no_constant_to_the_gpu(tmp_path: Path) -> None:
    with forked([], tmp_path / "said", partial(run_check, quantize_on_the_device)) as process:
        assert process.end() == 0, process.seen


@pytest.mark.parametrize("depth", range(4))
def test_the_grid_is_exact_in_fp64(depth: int) -> None:
    sizes = (8, 5, 3)
    vectors = FiniteScalarQuantizer(3, sizes, depth=depth).double().all_vectors()
    steps = torch.tensor([[float(size // 2) for size in sizes]], dtype=torch.float64)
    scales = torch.tensor([float(size - 1) ** -depth for size in sizes], dtype=torch.float64)
    digits = vectors / (scales / steps)
    assert torch.equal(digits.round() * (scales / steps), vectors)
