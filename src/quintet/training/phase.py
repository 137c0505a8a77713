"""`Phase`: the part of a training step that belongs to one optimizer; `Output` and `Loss` of its passes."""

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
"""Modules of a task by name: wrapped (DDP, compiled) in training, the EMA modules in validation."""


@dataclass
class Output:
    """The output of a forward pass: values for the losses, and statistics for `after_step`."""

    values: dict[str, Any]
    statistics: Statistics = field(default_factory=Statistics)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


@dataclass
class Loss:
    """The loss of a phase, its logged parts (the loop detaches them), and statistics for `after_step`."""

    value: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=Statistics)


def always(step: int) -> bool:
    return True


@dataclass(frozen=True)
class Phase:
    """The modules that one optimizer trains, their loss, and the steps at which the phase is active.

    All phases of a step use the same batch and the same forward pass. Their losses must not share a graph: detach
    tensors that another phase trains. All backward passes come before all optimizer steps.
    """

    name: str
    modules: tuple[str, ...]
    loss: Callable[[Modules, Batch, Output, int], Loss]
    optim: OptimizerConfig
    active: Callable[[int], bool] = always


@contextmanager
def frozen(module: nn.Module) -> Iterator[nn.Module]:
    """Freeze the parameters of a module temporarily: gradients pass through it but do not accumulate in it.

    For a phase that uses a module of another phase. Pass the raw module of `task.modules`, not the wrapped one.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield module
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
