"""Deferred initialisation: which constructors can be recorded, and what a replay computes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.training.distributed.deferred import build_deferred

CPU = torch.device("cpu")
SEED = 5
Build = Callable[[], nn.Module]


def built(build: Build, then: Callable[[nn.Module], object] = lambda module: None) -> nn.Module:
    """The module as it is built at once."""
    torch.manual_seed(SEED)
    module = build()
    then(module)
    return module


def deferred(build: Build, then: Callable[[nn.Module], object] = lambda module: None) -> tuple[nn.Module, bool]:
    """The module after a replay, and whether there was one."""
    torch.manual_seed(SEED)
    make: Any = lambda: SimpleNamespace(modules={"net": build()}, deferred=None)  # noqa: E731
    task = build_deferred(make, SEED)
    module = task.modules["net"]
    if task.deferred is None:
        return module, False
    with task.deferred:
        then(module)
    task.deferred.shard([module], CPU, lambda: None)
    return module, True


class Parts(nn.Module):
    """Linear layers; their weights are scaled when all are built."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(17, 17) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(17))
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("table", torch.arange(4) / 2)
        for part in self.parts:
            part.weight.data.mul_(0.5)


class Tied(nn.Module):
    """Two modules share a weight, one of whose rows is set apart."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 8, padding_idx=0)
        nn.init.normal_(self.embedding.weight[1:], std=0.1)
        self.output = nn.Linear(8, 40, bias=False)
        self.output.weight = self.embedding.weight
        nn.init.orthogonal_(self.embedding.weight[3:9])


class Entangled(nn.Module):
    """A weight that is read after a later draw has changed another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.zeros(5, 5))
        with torch.no_grad():
            self.second.copy_(self.first)
            self.first.normal_().add_(self.second.std())
            self.second += self.first.T


class Small(nn.Module):
    """Fewer numbers than the generator draws at a time, of which it keeps one for the next draw."""

    def __init__(self) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(1)
        self.parts = nn.ParameterList(torch.randn(3) for _ in range(3))
        self.own = nn.Parameter(torch.randn(3, generator=own).to(self.parts[0]))


@pytest.mark.parametrize("build", [Parts, Tied, Entangled, Small])
def test_a_replay_computes_what_the_constructor_does(build: Build) -> None:
    expected, (found, was_deferred) = built(build), deferred(build)
    assert was_deferred
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_a_conversion_is_recorded() -> None:
    def convert(module: nn.Module) -> None:
        module.to(CPU, torch.float64)

    expected, (found, _) = built(Parts, convert), deferred(Parts, convert)
    assert {tensor.dtype for tensor in found.state_dict().values()} == {torch.float64}
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_a_replay_leaves_the_global_generator() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(SEED)
    make: Any = lambda: SimpleNamespace(modules={"net": Parts()}, deferred=None)  # noqa: E731
    task: Any = build_deferred(make, SEED)
    torch.manual_seed(1)
    task.deferred.shard(task.modules.values(), CPU, lambda: None)
    assert torch.equal(torch.rand(3), expected)


class Truncated(nn.Module):
    """torch's truncated normal distribution draws again until all values are inside: it reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(9, 9)))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.order = torch.rand(4).tolist()
        self.weight = nn.Parameter(torch.randn(4))


class Overwritten(nn.Module):
    """Random numbers in a table that was computed before."""

    def __init__(self) -> None:
        super().__init__()
        table: Tensor = torch.arange(4.0)
        self.weight = nn.Parameter(table.normal_())


@pytest.mark.parametrize("build", [Truncated, Listed, Overwritten])
def test_a_constructor_that_needs_values_builds_as_in_one_process(build: Build) -> None:
    expected, (found, was_deferred) = built(build), deferred(build)
    assert not was_deferred
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_errors_of_a_constructor_are_its_own() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            raise ValueError("a size is wrong")

    with pytest.raises(ValueError, match="a size is wrong"):
        deferred(Broken)


class Reseeded(nn.Module):
    """A generator is seeded between two draws."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator()
        draws = [torch.randn(4, generator=generator.manual_seed(100 + number)) for number in range(3)]
        self.parts = nn.ParameterList(map(nn.Parameter, draws))


class OtherSeed(nn.Module):
    """The global generator is seeded for one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.second = nn.Parameter(torch.randn(4, 4))


class ChangedTable(nn.Module):
    """A table is changed after a weight was copied from it."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.arange(4.0)
        self.first, self.second = nn.Parameter(torch.empty(4)), nn.Parameter(torch.empty(4))
        with torch.no_grad():
            for part in (self.first, self.second):
                part.copy_(table)
                table.mul_(2)


class PlainTensor(nn.Module):
    """A tensor is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.scale = torch.ones(4)


@pytest.mark.parametrize("build", [Reseeded, OtherSeed, ChangedTable, PlainTensor])
def test_what_a_replay_would_compute_differently_is_built_at_once(
    build: type[nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    module, replayed = deferred(build)
    assert not replayed
    assert "each process builds the full model first" in capsys.readouterr().err
    expected = built(build).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in module.state_dict().items())
    assert not any(value.is_meta for value in vars(module).values() if isinstance(value, Tensor))


def test_a_replay_has_the_threads_of_the_record() -> None:
    threads = torch.get_num_threads()
    seen: list[int] = []

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))

    torch.set_num_threads(1)
    try:
        make: Any = lambda: SimpleNamespace(modules={"net": Counted()}, deferred=None)  # noqa: E731
        task = build_deferred(make, SEED)
        torch.set_num_threads(2)
        replay = task.deferred._replay
        finish = lambda memory, number: seen.append(torch.get_num_threads())  # noqa: E731
        replay(finish)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
