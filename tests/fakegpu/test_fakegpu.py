"""The fake GPU refuses what a GPU refuses, and computes what the CPU computes; each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from fakegpu import device
from fakegpu.commands import run_check
from fakegpu.waits import Wait
from helpers import forked
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG


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


def blocking_copies() -> None:
    layer, x = torch.nn.Linear(2, 2).to(device.NAME), gpu(3, 2)
    with waiting() as waits:
        y = layer(x).to(torch.float16).float()
        assert (y + torch.tensor(1.0)).shape == torch.full((3, 2), 1.0, device=device.NAME).shape
    assert not waits
    for copy in (lambda: y.new_tensor([1.0]), lambda: torch.ones(2).to(device.NAME, non_blocking=True), lambda: y[[0]]):
        with waiting() as waits:
            copy()
        assert [wait.kind for wait in waits] == ["blocking copy"]


def batches_are_copied_without_waiting() -> None:
    with waiting() as waits:
        Batch({"x": torch.ones(2)}, ("a", "b"), ItemRNG(0, [0, 0], [0, 1])).to(torch.device(device.NAME), torch.float32)
    assert not waits


def reads() -> None:
    x = gpu(3)
    for read in (
        *(x.cpu, x.tolist, x.nonzero, lambda: float(x[0]), lambda: bool(x.isfinite().all())),
        *(lambda: x[x > 1], lambda: x.masked_select(x > 1)),
    ):
        with waiting() as waits:
            read()
        assert [wait.kind for wait in waits] == ["read"]
    with waiting() as waits:
        x.masked_fill(x > 1, 0).index_select(0, x.argsort())
    assert not waits


@contextmanager
def waiting() -> Iterator[list[Wait]]:
    """The waits of the body."""
    waits: list[Wait] = []
    before = len(device.MODE.waits)
    yield waits
    waits += device.MODE.waits[before:]


CHECKS = (
    *(mixed_operands, operands_that_cuda_accepts, reading_without_copying, float64, gradients),
    *(blocking_copies, batches_are_copied_without_waiting, reads),
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_rules_of_a_gpu(check: Callable[[], None], tmp_path: Path) -> None:
    with forked([], tmp_path / "said", partial(run_check, check)) as process:
        assert process.end() == 0, process.seen
