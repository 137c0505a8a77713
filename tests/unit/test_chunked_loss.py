"""Losses of a large vocabulary computed in chunks of positions are those of all logits at the same time."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from quintet.nn.chunked_loss import CHUNK_LOGITS, ChunkedLoss, chunk_size
from quintet.nn.codebook import CodebookSmoothing, codebook_smoothing
from quintet.training.maskgit_task import code_losses, mean_loss

POSITIONS, PADDED, DIM, CODES, LEVELS = 150, 192, 16, 40, 2


def smoothing() -> CodebookSmoothing:
    torch.manual_seed(1)
    return codebook_smoothing([torch.randn(CODES, 3) for _ in range(LEVELS)], 1.0)


LOSSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "label smoothing": {"label_smoothing": 0.1},
    "codebook smoothing": {"codebook_smoothing": smoothing()},
}


def results(dtype: torch.dtype, chunk: int | None, autocast: bool, **options: Any) -> list[Tensor]:
    """Loss, accuracy and gradients of one pass."""
    torch.manual_seed(0)
    head = nn.Linear(DIM, CODES).to(dtype)
    hidden = torch.randn(PADDED, DIM, dtype=dtype, requires_grad=True)
    targets, levels = torch.randint(CODES, (POSITIONS,)), torch.randint(LEVELS, (POSITIONS,))
    losses = partial(code_losses, **options)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        if chunk is None:
            logits = head(hidden)[:POSITIONS]
            logits = logits if dtype == torch.float64 else logits.float()
            loss = mean_loss(losses(logits, targets, levels), logits.argmax(-1) == targets)
        else:
            loss = mean_loss(*ChunkedLoss(losses, (targets, levels), chunk)(hidden, head))
    (loss.value * 3).backward()
    assert hidden.grad is not None
    assert head.weight.grad is not None
    assert head.bias.grad is not None
    return [loss.value, loss.parts["accuracy"], hidden.grad, head.weight.grad, head.bias.grad]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("chunk", [64, 128])
def test_loss_accuracy_and_gradients_are_exact(name: str, chunk: int) -> None:
    whole = results(torch.float64, None, autocast=False, **LOSSES[name])
    chunked = results(torch.float64, chunk, autocast=False, **LOSSES[name])
    for ours, expected in zip(chunked, whole, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    assert not chunked[2][POSITIONS:].any()


@pytest.mark.parametrize("name", LOSSES)
def test_products_run_in_bf16_under_autocast_and_gradients_are_added_in_fp32(name: str) -> None:
    whole = results(torch.float32, None, autocast=True, **LOSSES[name])
    chunked = results(torch.float32, 64, autocast=True, **LOSSES[name])
    for ours, expected in zip(chunked, whole, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, expected, rtol=0.02, atol=1e-3)
    exact = results(torch.float32, 64, autocast=False, **LOSSES[name])
    assert not torch.equal(chunked[0], exact[0])


def test_auto_takes_as_many_positions_as_have_some_logits() -> None:
    assert chunk_size(None, 65_536, 10**6) is None
    assert chunk_size("auto", 65_536, 10**6) == CHUNK_LOGITS // 65_536
    assert chunk_size("auto", 2**30, 10**6) == 64
    assert chunk_size("auto", 5000, 10**6) % 64 == 0
    # Nothing is gained with one chunk.
    assert chunk_size("auto", 1024, 2**15) is None
    assert chunk_size(64, 1024, 64) is None


def test_no_more_logits_than_those_of_a_chunk_are_alive() -> None:
    sizes: list[int] = []

    def losses(logits: Tensor, targets: Tensor) -> Tensor:
        sizes.append(len(logits))
        return code_losses(logits, targets)

    head, hidden = nn.Linear(DIM, CODES), torch.randn(PADDED, DIM, requires_grad=True)
    made = ChunkedLoss(losses, (torch.zeros(POSITIONS, dtype=torch.long),), 64)(hidden, head)
    assert not made.right.requires_grad
    made.values.sum().backward()
    assert sizes == [64, 64, 22] * 2


@pytest.mark.parametrize(("frozen", "products"), [((), 3), (("weight",), 3), (("weight", "bias"), 2)])
def test_the_gradient_of_an_output_layer_that_is_not_trained_is_not_computed(
    frozen: tuple[str, ...], products: int
) -> None:
    head, hidden = nn.Linear(DIM, CODES), torch.randn(POSITIONS, DIM, requires_grad=True)
    for name in frozen:
        getattr(head, name).requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        made = ChunkedLoss(code_losses, (torch.zeros(POSITIONS, dtype=torch.long),), 64)(hidden, head)
    with FlopCounterMode(display=False) as counter:
        made.values.sum().backward()
    assert counter.get_total_flops() == products * 2 * POSITIONS * DIM * CODES
    assert (head.bias.grad is not None) == ("bias" not in frozen)
    assert hidden.grad is not None
