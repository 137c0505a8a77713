"""The fake GPU refuses what a GPU refuses, and computes what the CPU computes; each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from fakegpu import device
from fakegpu.commands import run_check
from helpers import forked


def gpu(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape).to(device.NAME)


def mixed_operands() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        gpu(3) + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([gpu(1), torch.ones(1)])
    with pytest.raises(RuntimeError, match="same device"):
        torch.nn.functional.embedding(torch.tensor([0]), gpu(2, 2))
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3)[gpu(1).long()]


def operands_that_cuda_accepts() -> None:
    assert (gpu(3) + torch.tensor(1.0)).tolist() == [1, 2, 3]
    assert gpu(3)[torch.tensor([2, 0])].tolist() == [2, 0]
    filled = torch.zeros(2, 3, device=device.NAME)
    filled[:, 1] = 7  # a view of the same memory
    filled.add_(1)
    assert filled.cpu().tolist() == [[1, 8, 1]] * 2


def reading_without_copying() -> None:
    with pytest.raises(TypeError, match="use Tensor"):
        gpu(3).numpy()
    with pytest.raises(RuntimeError, match="pin"):
        gpu(3).pin_memory()
    assert gpu(3).cpu().numpy().tolist() == [0, 1, 2]


def float64() -> None:
    with pytest.raises(TypeError, match="float64"):
        gpu(3).double()
    with pytest.raises(TypeError, match="float64"):
        torch.zeros(3, dtype=torch.float64, device=device.NAME)
    assert gpu(3).cpu().double().tolist() == [0, 1, 2]


def gradients() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
    layer(x).square().sum().backward()
    expected = layer.weight.grad
    torch.manual_seed(0)
    moved = torch.nn.Linear(4, 2).to(device.NAME)
    moved(x.to(device.NAME)).square().sum().backward()
    assert expected is not None
    assert moved.weight.grad is not None
    assert moved.weight.grad.device.type == device.NAME
    assert torch.equal(moved.weight.grad.cpu(), expected)


def copies_to_the_device() -> None:
    layer, x = torch.nn.Linear(2, 2).to(device.NAME), gpu(3, 2)
    before = device.MODE.copies
    y = layer(x).to(torch.float16).float()
    assert device.MODE.copies == before
    assert torch.equal((y + y.new_tensor([1.0, 1.0]) - 1).cpu(), y.cpu())
    assert device.MODE.copies == before + 1


CHECKS = (mixed_operands, operands_that_cuda_accepts, reading_without_copying, float64, gradients, copies_to_the_device)


@pytest.mark.parametrize("check", CHECKS)
def test_the_rules_of_a_gpu(check: Callable[[], None], tmp_path: Path) -> None:
    with forked([], tmp_path / "said", partial(run_check, check)) as process:
        assert process.end() == 0, process.seen
