"""GradCache: exact gradients of a contrastive loss over a batch that is processed in micro-batches.

A contrastive loss over single micro-batches would compare every item with fewer others. So each micro-batch passes
through the model twice (GradCache: Gao et al. 2021, 2101.06983). The first pass, without a graph, computes the
embeddings. The loss is computed from the embeddings of all micro-batches and ranks, and its gradient with respect to
the embeddings is cached. The second pass, with a graph, backpropagates the cached gradients into the model. Loss and
gradients equal those of the full batch.
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
    task: Task[Any], micro_batches: Sequence[Batch], modules: Modules, engine: Engine, step: int
) -> Report:
    """Compute the gradients of one step of a task with one phase; call this from its `backward`.

    The output of its `forward` must contain `rows`, named tensors (items, ...), and `shared`, named tensors that belong
    to no item, such as a temperature. The loss must not use anything else.
    """
    (phase,) = task.phases
    if len(micro_batches) == 1:
        return Task.backward(task, micro_batches, modules, engine, step)
    outputs: list[Output] = []
    for number, batch in enumerate(micro_batches):
        # Dropout is the same in both passes, because it is seeded by the micro-batch.
        with engine.micro_batch(modules, step, number, synchronise=False), torch.no_grad(), engine.autocast():
            outputs.append(task.forward(modules, batch, step))
    rows = [_leaves(output["rows"]) for output in outputs]
    shared = _leaves(outputs[-1]["shared"])
    full = {name: torch.cat([part[name] for part in rows]) for name in rows[0]}
    with engine.autocast():
        loss = phase.loss(modules, micro_batches[-1], Output({"rows": full, "shared": shared}), step)
    engine.scaled(loss.value).backward()  # type: ignore[no-untyped-call]
    statistics = loss.statistics
    for number, batch in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        with engine.micro_batch(modules, step, number, synchronise=last):
            with engine.autocast():
                output = task.forward(modules, batch, step)
            pairs = _gradients(output["rows"], rows[number])
            if last:  # once per step
                pairs += _gradients(output["shared"], shared)
            torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
        statistics = statistics + output.statistics
    metrics = {f"{phase.name}/{name}": value.detach() for name, value in {"loss": loss.value, **loss.parts}.items()}
    return Report(metrics, statistics)


def _leaves(tensors: Tensors) -> dict[str, Tensor]:
    """Detached copies that accumulate gradients."""
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def _gradients(tensors: Tensors, leaves: Tensors) -> list[tuple[Tensor, Tensor]]:
    """Pairs of a tensor of the graph and the cached gradient of its leaf; tensors that the loss did not use are left
    out."""
    pairs = [(tensor, leaves[name].grad) for name, tensor in tensors.items() if tensor.requires_grad]
    return [(tensor, gradient) for tensor, gradient in pairs if gradient is not None]
