"""Regional compilation, with a backend that notes the graphs that it gets and runs them as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from quintet.common.regions import Regions, blocks, compilable

pytestmark = pytest.mark.filterwarnings("ignore")  # torch hides its own warnings while it compiles, unless errors


class Block(nn.Module):
    recomputable = True

    def __init__(self, dim: int, doubled: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.doubled = doubled

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.linear(x).tanh()
        return x + (2 * update if self.doubled else update)


class Graphs(list[fx.GraphModule]):
    """A backend of `torch.compile`."""

    def __call__(self, graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.append(graph)
        return graph.forward


@pytest.fixture
def graphs() -> Graphs:
    torch._dynamo.reset()
    return Graphs()


def regions(graphs: Graphs, varying_shapes: bool = False) -> Regions:
    return Regions(varying_shapes, backend=graphs)


def test_blocks_of_one_structure_are_compiled_once(graphs: Graphs) -> None:
    stack = nn.Sequential(Block(4), Block(4), nn.Linear(4, 8), Block(8), Block(8, doubled=True), Block(8))
    x = torch.randn(3, 4, requires_grad=True)
    expected = stack(x)
    compiled = regions(graphs)
    assert compiled.compile_module(stack) is stack
    with compiled.active():
        found = stack(x)
    assert torch.equal(found, expected)
    assert len(graphs) == 3


def test_names_of_parameters_stay(graphs: Graphs) -> None:
    stack = nn.Sequential(Block(4), nn.Linear(4, 4))
    names = list(stack.state_dict())
    regions(graphs).compile_module(stack)
    assert list(stack.state_dict()) == names


def test_only_training_is_compiled_and_copies_have_their_own_weights(graphs: Graphs) -> None:
    stack = nn.Sequential(Block(4))
    compiled = regions(graphs)
    compiled.compile_module(stack)
    average = copy.deepcopy(stack)
    with torch.no_grad():
        average[0].linear.weight.zero_()  # type: ignore[union-attr, operator]
        average[0].linear.bias.zero_()  # type: ignore[union-attr, operator]
    x = torch.randn(3, 4)
    assert torch.equal(average(x), x)
    assert not torch.equal(stack(x), x)
    assert graphs == []
    with compiled.active():
        assert torch.equal(average(x), x)
        assert not torch.equal(stack(x), x)
    assert len(graphs) == 1


def test_sizes_that_vary_are_compiled_once(graphs: Graphs) -> None:
    stack = nn.Sequential(Block(4))
    compiled = regions(graphs, varying_shapes=True)
    compiled.compile_module(stack)
    with compiled.active():
        for rows in (3, 5, 8):
            assert stack(torch.randn(rows, 4)).shape == (rows, 4)
    assert len(graphs) == 1


def test_a_size_that_is_forgotten_leaves_no_trace(graphs: Graphs) -> None:
    """Otherwise a run whose larger micro-batches were only tried would round unlike one that is resumed."""
    stack = nn.Sequential(Block(4))
    compiled = regions(graphs)
    compiled.compile_module(stack)
    with compiled.active():
        stack(torch.ones(8, 4))
        compiled.forget()
        stack(torch.ones(3, 4))
    values = [node.meta.get("example_value") for graph in graphs for node in graph.graph.nodes]
    assert len(graphs) == 2
    assert not any(isinstance(value, torch.SymInt) for value in values)


def test_a_block_stays_checkpointed(graphs: Graphs) -> None:
    stack = nn.Sequential(Block(4))
    stack(torch.ones(3, 4)).sum().backward()
    expected = stack[0].linear.weight.grad.clone()  # type: ignore[union-attr, operator]
    stack.zero_grad()
    kept: list[int] = []
    stack[0].forward = partial(checkpoint, stack[0].forward, use_reentrant=False)
    compiled = regions(graphs)
    compiled.compile_module(stack)

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with compiled.active(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        found = stack(torch.ones(3, 4))
    assert kept == [12]  # the input of the block; it computes the rest anew
    found.sum().backward()
    torch.testing.assert_close(stack[0].linear.weight.grad, expected)  # type: ignore[union-attr]
    assert len(graphs) == 1


def test_a_module_without_blocks_is_compiled_as_a_whole(graphs: Graphs) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = torch.randn(3, 4)
    compiled = regions(graphs).compile_module(module)
    assert torch.equal(compiled(x), module(x))
    assert len(graphs) == 1


def test_a_block_in_a_block_belongs_to_it() -> None:
    inner, outer = Block(4), Block(4)
    outer.add_module("inner", inner)
    assert list(blocks(nn.Sequential(outer, nn.Linear(4, 4)))) == [outer]


@compilable
def squared(x: Tensor, scale: float) -> Tensor:
    return scale * x.square()


def test_a_loss_is_compiled_in_training_alone(graphs: Graphs) -> None:
    x = torch.randn(3)
    expected = squared(x, 2.0)
    assert graphs == []
    compiled = regions(graphs)
    for _ in range(2):
        with compiled.active():
            assert torch.equal(squared(x, 2.0), expected)
    assert len(graphs) == 1
