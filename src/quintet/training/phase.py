"""`Phase`: one optimizer's part of a training step, and what passes between a forward pass and the losses of phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from quintet.common.batch import Batch
from quintet.common.statistics import Statistics
from quintet.config import OptimizerConfig

Modules = Mapping[str, nn.Module]
"""A task's modules by name, ready to be called: wrapped for training, or the averaged ones for validation."""


@dataclass
class Output:
    """What a forward pass hands to the phases, and what it would like to change once the step is accepted."""

    values: dict[str, Any]
    statistics: Statistics = field(default_factory=Statistics)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


@dataclass
class Loss:
    """What a phase minimises, the parts worth a curve (the loop detaches them), and statistics of its own."""

    value: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=Statistics)


def always(step: int) -> bool:
    return True


@dataclass(frozen=True)
class Phase:
    """One optimizer's part of a step: the modules it trains, its loss, and the steps at which it is active.

    Phases of one step see the same forward pass and the same batch. Their losses must not share a graph: detach
    what another phase trains. All backward passes come before all optimizer steps.
    """

    name: str
    modules: tuple[str, ...]
    loss: Callable[[Modules, Batch, Output, int], Loss]
    optim: OptimizerConfig
    active: Callable[[int], bool] = always


@contextmanager
def frozen(module: nn.Module) -> Iterator[nn.Module]:
    """The module with its parameters out of the graph: gradients pass through it, none arrive in it.

    For a phase that needs another phase's module. Pass the raw module of `task.modules`, not the wrapped one.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield module
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
