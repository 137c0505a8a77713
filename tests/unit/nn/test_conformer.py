"""Conformer: what frames see of each other, and that padding is nothing to any of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from quintet.errors import UsageError
from quintet.nn.conformer import Conformer, ConformerBlock, Convolution

DIM = 16


def make(**keys: Any) -> Conformer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"dim": DIM, "depth": 2, "heads": 2, "head_dim": 8, "max_frames": 64, **keys}
    return Conformer(**settings).double().eval()


def frames(rows: int = 3, length: int = 12, seed: int = 1) -> Tensor:
    return torch.randn(rows, length, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mask_of(lengths: list[int], longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("kernel", [1, 5, 31])
def test_a_row_is_the_same_alone_and_beside_longer_ones(kernel: int) -> None:
    model, x, lengths = make(kernel=kernel, expansion=2), frames(), [12, 7, 1]
    together = model(x, mask_of(lengths, 12))
    for row, length in enumerate(lengths):
        alone = model(x[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, :length], alone, rtol=1e-11, atol=1e-11)


def test_padding_that_is_not_a_number_reaches_no_frame_and_no_gradient() -> None:
    model, x = make(), frames()
    mask = mask_of([12, 7, 1], 12)
    spoiled = x.masked_fill(~mask[..., None], math.nan)
    made = model(spoiled, mask)[mask]
    torch.testing.assert_close(made, model(x, mask)[mask], rtol=0, atol=0)
    made.square().sum().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in model.parameters())


def test_a_convolution_without_its_mask_would_leak() -> None:
    """What the mask is for: without it the frames at the end of a short row feel what lies behind them."""
    torch.manual_seed(0)
    layer, x = Convolution(DIM).double(), frames(rows=1)
    mask = mask_of([7], 12)
    alone = layer(x[:, :7])
    assert torch.allclose(layer(x, mask)[:, :7], alone, atol=1e-12)
    assert not torch.allclose(layer(x)[:, :7], alone, atol=1e-3)
    assert torch.allclose(layer(x)[:, :5], alone[:, :5], atol=1e-12)


def test_a_convolution_sees_as_far_as_its_kernel_says() -> None:
    torch.manual_seed(0)
    layer, x = Convolution(DIM, kernel=5).double(), frames(rows=1)
    other = x.clone()
    other[:, 6] += 1
    changed = (layer(x) - layer(other)).abs().amax(-1)[0] > 1e-9
    assert changed.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]


def test_attention_reaches_every_frame_and_knows_their_order() -> None:
    model, x = make(kernel=1), frames(rows=1)
    made = model(x)
    other = x.clone()
    other[:, 11, 0] += 1
    assert ((model(other) - made).abs().amax(-1) > 1e-9).all()
    # With a kernel of one frame nothing but the turned queries and keys tells where a frame is.
    assert (model(x.flip(1)).flip(1) - made).abs().max() > 1e-4


def test_a_block_ends_in_a_norm_and_weighs_its_feed_forwards_by_half() -> None:
    torch.manual_seed(0)
    block, x = ConformerBlock(DIM, 2, 8).double(), frames()
    made = block(x)
    assert made.mean(-1).abs().max() < 1e-9
    for silent in (block.attention.to_out, block.convolution.to_out, block.last.to_out):
        torch.nn.init.zeros_(silent.weight)
    expected = block.norm(x + 0.5 * block.first(block.first_norm(x)))
    torch.testing.assert_close(block(x), expected)


def test_dropout_is_of_the_branches_and_in_training_alone() -> None:
    model, x = make(dropout=0.5), frames()
    torch.testing.assert_close(model(x), make()(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="odd"):
        make(kernel=4)
    with pytest.raises(UsageError, match="65 frames"):
        make()(frames(length=65))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_convolution_over_frames_is_that_of_a_line(rows: int) -> None:
    torch.manual_seed(0)
    convolution = Convolution(16, kernel=5).double()
    x = torch.randn(rows, 9, 16, dtype=torch.float64, requires_grad=True)

    line = convolution.over_frames(x.transpose(1, 2)).transpose(1, 2)
    mixed = convolution._mixed(x)

    assert torch.allclose(mixed, line)
    towards = torch.randn_like(line)
    wanted = torch.autograd.grad((line * towards).sum(), (x, convolution.over_frames.weight))
    found = torch.autograd.grad((mixed * towards).sum(), (x, convolution.over_frames.weight))
    assert all(torch.allclose(one, other) for one, other in zip(found, wanted, strict=True))
