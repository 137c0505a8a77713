"""`Objective`: the loss of a model outside of a run, for a hand-written training loop.

    objective = Objective(vae)
    loss = objective(images=images)     # then loss.backward(), and a step of any optimizer

It is the loss that the trainers minimise. State that they change after a step, such as an EMA codebook, is changed at
the start of the next training pass: a hand-written loop has no other hook, and nothing may change between a forward and
its backward pass. Random choices (masks, dropped texts) are functions of `seed` and of the number of the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from quintet import registry
from quintet.common.batch import Batch, Item
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.errors import UsageError
from quintet.pipelines.base import Pipeline
from quintet.training.engine import Engine
from quintet.training.phase import Loss, Output
from quintet.training.task import Task


@dataclass
class ForwardPass:
    """One forward pass of a task, for the losses of its phases."""

    batch: Batch
    output: Output
    step: int


class LossPasses:
    """Forward passes and losses of a `task`, call by call."""

    task: Task[Any]
    training: bool
    _calls: int
    """The number of batches so far, for the step of the task."""
    _initialised: bool
    """Whether data-dependent state, such as a codebook, is initialised already."""
    _pending: Statistics | None
    """Statistics of the last training pass, which are not applied yet."""

    @property
    def device(self) -> torch.device:
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        raise NotImplementedError

    def new_rng(self, size: int) -> ItemRNG:
        """The random numbers of one call with `size` items; each call has others."""
        raise NotImplementedError

    def make_batch(self, fields: Mapping[str, Any], size: int) -> Batch:
        """A batch of quintet with these fields, on the device of the model."""
        batch = Batch(dict(fields), tuple(map(str, range(size))), self.new_rng(size))
        self._calls += 1
        return batch.to(self.device, self.dtype)

    def forward_pass(self, fields: Mapping[str, Any], size: int, *, updates: bool = True) -> ForwardPass:
        """Run the task on a batch. In training mode, first apply the statistics of the last training pass.

        `updates` is false for a pass that trains only another module, such as a discriminator: a codebook follows the
        passes that train the encoder.
        """
        step = self._calls
        batch = self.make_batch(fields, size)
        if self.training and updates:
            self.apply_statistics()
            self._init_from_data(batch)
        with torch.set_grad_enabled(updates and torch.is_grad_enabled()):
            output = self.task.forward(self.task.modules, batch, step)
        if updates:
            self.collect(output.statistics)
        return ForwardPass(batch, output, step)

    def phase_loss(self, name: str, forward_pass: ForwardPass) -> Loss:
        """The loss of a phase of the task, such as `generator`."""
        phase = next(phase for phase in self.task.phases if phase.name == name)
        loss = phase.loss(self.task.modules, forward_pass.batch, forward_pass.output, forward_pass.step)
        self.collect(loss.statistics)
        return loss

    def apply_statistics(self) -> None:
        """Apply the statistics of the last training pass, as quintet's trainers do after a step."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.task.after_step(pending, self._calls)

    def collect(self, statistics: Statistics) -> None:
        """Keep the statistics of a training pass for `apply_statistics`."""
        if self.training and (statistics.sums or statistics.rows):
            with torch.no_grad():
                self._pending = statistics if self._pending is None else self._pending + statistics

    def _init_from_data(self, batch: Batch) -> None:
        """Data-dependent initialisation, such as k-means, at the first training pass of a new model."""
        if not self._initialised:
            self._initialised = True
            # No task uses the engine to initialise; it exists only in a run.
            self.task.init_from_data(self.task.modules, [batch], cast(Engine, None))


class Objective(LossPasses):
    """The losses of a model of quintet by the task of its recipe.

    `recipe` is needed for a `MaskGit`, which two recipes train. `keys` are dotted keys of the recipe, such as
    `{"loss.discriminator_start": 0}`; `frozen` are the models that it builds on, such as `tokenizer=` a pipeline.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        recipe: str | None = None,
        keys: Mapping[str, Any] | None = None,
        seed: int = 0,
        trained: bool = False,
        **frozen: Pipeline[Any],
    ) -> None:
        entry = registry.find(recipe or _recipe_of(model))
        self.model = model
        self.task = entry.task_class().from_model(model, frozen=frozen, keys=keys)
        self._seed, self._calls, self._initialised, self._pending = seed, 0, trained, None

    def __call__(self, items: Sequence[Item] | None = None, /, *, phase: str | None = None, **fields: Any) -> Tensor:
        """The loss of a phase, by default the first one, on a batch.

        The batch is given as its `fields`, each with one value per item, or as `items`; both have the names that the
        data sets of the recipe give them."""
        if items is None:
            items = [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]
        names = [each.name for each in self.task.phases]
        if phase is not None and phase not in names:
            raise UsageError(f"{type(self.task).__name__} has no phase '{phase}'; it has {', '.join(names)}")
        chosen = phase or names[0]
        keeps_graph = torch.is_grad_enabled()
        with torch.enable_grad():  # adaptive weights and gradient penalties need gradients, also without a graph
            made = self.forward_pass(self.task.collate(items), len(items), updates=chosen == names[0])
            loss = self.phase_loss(chosen, made).value
        return loss if keeps_graph else loss.detach()

    def new_rng(self, size: int) -> ItemRNG:
        return ItemRNG(self._seed, [self._calls] * size, range(size))

    @property
    def training(self) -> bool:  # type: ignore[override]
        return self.model.training

    @property
    def device(self) -> torch.device:
        return next(chain(self.model.parameters(), self.model.buffers())).device

    @property
    def dtype(self) -> torch.dtype:
        return next(parameter.dtype for parameter in self.model.parameters())


def _recipe_of(model: nn.Module) -> str:
    """The recipe that trains a model, by the name of its class."""
    name = type(model).__name__
    found = [recipe for recipe, entry in registry.entries() if name in entry.models]
    if len(found) != 1:
        known = f"one of {', '.join(found)}" if found else "the recipe that trains it"
        raise UsageError(f"Objective({name}) needs recipe=, {known}")
    return found[0]
