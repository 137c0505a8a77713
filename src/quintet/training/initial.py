"""The weights of `--init` in a new run: those that fit are copied, by name and shape."""

from __future__ import annotations

from typing import Any

from quintet.common.weights.loading import Weights, copy_tensors
from quintet.common.weights.lora import is_adapter
from quintet.errors import UsageError
from quintet.training.finetuning import trains_a_part
from quintet.training.task import Task

SHOWN = 8
"""Number of names in a message."""


def copy_initial(task: Task[Any], init: Weights, origin: str) -> list[str]:
    """Copy the tensors that have a namesake of the same shape; returns the names of those without one.

    Raises CheckpointError if no matrix of the trained model fits: then it is another model, such as a wider one."""
    new: list[str] = []
    for name, module in task.modules.items():
        if name not in init:
            continue
        tensors = init[name]
        own = {key: value for key, value in module.state_dict().items() if not is_adapter(key)}
        fitting = [key for key in own if key in tensors and own[key].shape == tensors[key].shape]
        if not any(own[key].ndim >= 2 for key in fitting):
            if name == task.pipeline_class.exported:
                copy_tensors(module, tensors, origin)  # raises for the first difference
            fitting = []
        copy_tensors(module, {**module.state_dict(), **{key: tensors[key] for key in fitting}}, origin)
        new += [f"{name}.{key}" for key in own if key not in fitting]
    return new


def refuse_untrained(task: Task[Any], new: list[str], origin: str) -> None:
    """Raise UsageError if a parameter that starts anew is one that `train.lora` or `train.freeze` do not train."""
    if not trains_a_part(task.config):
        return
    frozen = {
        f"{name}.{path}"
        for name, module in task.modules.items()
        for path, parameter in module.named_parameters()
        if not parameter.requires_grad
    }
    random = [name for name in new if name in frozen]
    if random:
        raise UsageError(
            f"{origin} has no weights of these shapes, and with train.lora or train.freeze this run would leave them "
            f"at random values: {listed(random)}; set the sizes of that model, or train these parameters"
        )


def listed(names: list[str]) -> str:
    """The first names, for a message."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
