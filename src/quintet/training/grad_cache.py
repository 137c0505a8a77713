"""Owns gradients of a loss that compares all items of a batch, when the batch does not go through the model at once.

A contrastive loss over micro-batches is another loss: every item is held against fewer others. So each micro-batch
goes through the model twice (GradCache: Gao et al. 2021, 2101.06983). First without a graph, for what the loss needs
of each item. The loss is taken over all of it, of all micro-batches and ranks, and its gradient there is kept. Then
with a graph, and the kept gradient goes on into the model. Loss and gradients are those of the whole batch at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.common.batch import Batch
from quintet.training.engine import Engine
from quintet.training.phase import Modules, Output
from quintet.training.task import Report, Task

Tensors = Mapping[str, Tensor]


def grad_cache_backward(
    recipe: Task[Any], micro_batches: Sequence[Batch], modules: Modules, engine: Engine, step: int
) -> Report:
    """Gradients of one step of a recipe with one phase, for its `backward`.

    Its `forward` puts out `rows`, tensors by name with a row for each item, and `shared`, tensors by name that belong
    to no item, such as a temperature; its loss looks at nothing else.
    """
    (phase,) = recipe.phases
    if len(micro_batches) == 1:
        return Task.backward(recipe, micro_batches, modules, engine, step)
    seen: list[Output] = []
    for number, batch in enumerate(micro_batches):
        # Dropout is the same in both passes: its stream belongs to the micro-batch.
        with engine.micro_batch(modules, step, number, synchronise=False), torch.no_grad(), engine.autocast():
            seen.append(recipe.forward(modules, batch, step))
    rows = [_leaves(output["rows"]) for output in seen]
    shared = _leaves(seen[-1]["shared"])
    whole = {name: torch.cat([part[name] for part in rows]) for name in rows[0]}
    with engine.autocast():
        loss = phase.loss(modules, micro_batches[-1], Output({"rows": whole, "shared": shared}), step)
    loss.value.backward()  # type: ignore[no-untyped-call]
    statistics = loss.statistics
    for number, batch in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        with engine.micro_batch(modules, step, number, synchronise=last):
            with engine.autocast():
                output = recipe.forward(modules, batch, step)
            pairs = _gradients(output["rows"], rows[number])
            if last:  # once a step
                pairs += _gradients(output["shared"], shared)
            torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
        statistics = statistics + output.statistics
    metrics = {f"{phase.name}/{name}": value.detach() for name, value in {"loss": loss.value, **loss.parts}.items()}
    return Report(metrics, statistics)


def _leaves(tensors: Tensors) -> dict[str, Tensor]:
    """Where a gradient stops."""
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def _gradients(tensors: Tensors, leaves: Tensors) -> list[tuple[Tensor, Tensor]]:
    """Each tensor of the graph with the gradient that arrived where it was cut off; what the loss did not need is
    left out."""
    pairs = [(tensor, leaves[name].grad) for name, tensor in tensors.items() if tensor.requires_grad]
    return [(tensor, gradient) for tensor, gradient in pairs if gradient is not None]
