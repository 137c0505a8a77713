"""Conformer: dependence between frames, and independence of padding."""

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
def test_a_row_does_not_depend_on_longer_rows(kernel: int) -> None:
    model, x, lengths = make(kernel=kernel, expansion=2), frames(), [12, 7, 1]
    together = model(x, mask_of(lengths, 12))
    for row, length in enumerate(lengths):
        single = model(x[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, :length], single, rtol=1e-11, atol=1e-11)


def test_nan_in_padding_reaches_no_frame_and_no_gradient() -> None:
    model, x = make(), frames()
    mask = mask_of([12, 7, 1], 12)
    spoiled = x.masked_fill(~mask[..., None], math.nan)
    result = model(spoiled, mask)[mask]
    torch.testing.assert_close(result, model(x, mask)[mask], rtol=0, atol=0)
    result.square().sum().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in model.parameters())


def test_a_convolution_without_its_mask_would_leak() -> None:
    """Without the mask, the last frames of a short row depend on the padding."""
    torch.manual_seed(0)
    layer, x = Convolution(DIM).double(), frames(rows=1)
    mask = mask_of([7], 12)
    single = layer(x[:, :7])
    assert torch.allclose(layer(x, mask)[:, :7], single, atol=1e-12)
    assert not torch.allclose(layer(x)[:, :7], single, atol=1e-3)
    assert torch.allclose(layer(x)[:, :5], single[:, :5], atol=1e-12)


def test_a_convolution_has_the_receptive_field_of_its_kernel() -> None:
    torch.manual_seed(0)
    layer, x = Convolution(DIM, kernel=5).double(), frames(rows=1)
    other = x.clone()
    other[:, 6] += 1
    changed = (layer(x) - layer(other)).abs().amax(-1)[0] > 1e-9
    assert changed.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]


def test_attention_reaches_every_frame_and_knows_their_order() -> None:
    model, x = make(kernel=1), frames(rows=1)
    result = model(x)
    other = x.clone()
    other[:, 11, 0] += 1
    assert ((model(other) - result).abs().amax(-1) > 1e-9).all()
    # With a kernel of one frame, only rotary embeddings carry positions.
    assert (model(x.flip(1)).flip(1) - result).abs().max() > 1e-4


def test_a_block_ends_with_a_norm_and_halves_its_feed_forwards() -> None:
    torch.manual_seed(0)
    block, x = ConformerBlock(DIM, 2, 8).double(), frames()
    result = block(x)
    assert result.mean(-1).abs().max() < 1e-9
    for silent in (block.attention.to_out, block.convolution.to_out, block.last.to_out):
        torch.nn.init.zeros_(silent.weight)
    expected = block.norm(x + 0.5 * block.first(block.first_norm(x)))
    torch.testing.assert_close(block(x), expected)


def test_dropout_applies_to_branches_and_only_in_training() -> None:
    model, x = make(dropout=0.5), frames()
    torch.testing.assert_close(model(x), make()(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_invalid_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="odd"):
        make(kernel=4)
    with pytest.raises(UsageError, match="65 frames"):
        make()(frames(length=65))


@pytest.mark.parametrize("rows", [1, 3])
def test_the_convolution_equals_a_1d_convolution(rows: int) -> None:
    torch.manual_seed(0)
    convolution = Convolution(16, kernel=5).double()
    x = torch.randn(rows, 9, 16, dtype=torch.float64, requires_grad=True)

    line = convolution.over_frames(x.transpose(1, 2)).transpose(1, 2)
    mixed = convolution._mixed(x)

    assert torch.allclose(mixed, line)
    towards = torch.randn_like(line)
    exact = torch.autograd.grad((line * towards).sum(), (x, convolution.over_frames.weight))
    found = torch.autograd.grad((mixed * towards).sum(), (x, convolution.over_frames.weight))
    assert all(torch.allclose(one, other) for one, other in zip(found, exact, strict=True))
