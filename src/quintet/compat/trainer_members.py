"""`TrainerMembers`: the methods and attributes that scripts read from a trainer of the original packages.

They show the state of quintet's own trainer: processes, optimizer, average of the weights, data and trackers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from quintet.compat.items import cycle, items_of, loader_of, stack_shortest
from quintet.compat.model import CompatModel, TrainingParts
from quintet.compat.views import AcceleratorView, AverageView, as_floats, named_project, refuse_attribute
from quintet.errors import UsageError
from quintet.training.metrics import check_trackers
from quintet.training.python_trainer import PythonTrainer


class TrainerMembers(nn.Module):
    """The part of a compat trainer that does not train."""

    model_attribute: ClassVar[str] = "model"
    average_attribute: ClassVar[str] = ""
    """The average of the weights; empty if the original has none."""
    drop_last: ClassVar[bool] = False

    own: PythonTrainer

    def __init__(self) -> None:
        super().__init__()
        self._is_open = False
        self._averaged: tuple[int, nn.Module] | None = None

    # --- state -------------------------------------------------------------------------------------------------

    @property
    def accelerator(self) -> AcceleratorView:
        return AcceleratorView(self)

    @property
    def unwrapped_model(self) -> nn.Module:
        model: nn.Module = getattr(self, self.model_attribute)
        return model

    @property
    def num_train_steps(self) -> int:
        return self.own.config.train.steps

    @property
    def device(self) -> torch.device:
        return self.own.device

    @property
    def is_main(self) -> bool:
        return self.own.is_main

    @property
    def is_local_main(self) -> bool:
        return self.own.is_local_main

    @property
    def is_distributed(self) -> bool:
        return self.own.is_distributed

    @property
    def has_ema(self) -> bool:
        return self.own.state.ema is not None

    def wait(self) -> None:
        self.own.wait()

    def print(self, msg: Any) -> None:
        self.own.print(str(msg))

    def log(self, **values: Any) -> None:
        self.own.log(**as_floats(values))

    def warmup(self, step: int) -> float:
        """The learning rate of a step, also after the warm-up."""
        return self.own.lr_schedule(step)

    def optimizer_of(self, phase: str | None = None) -> torch.optim.Optimizer:
        """The optimizer of a phase; by default of the first one."""
        states = self.own.state.phases
        found = [state.optimizer for state in states if phase in (None, state.phase.name)]
        if not found:
            raise UsageError(f"{type(self).__name__} does not train a {phase}")
        return found[0]

    def _average_view(self) -> AverageView:
        """The average of the weights, as a copy of the model with these weights."""
        if not self.has_ema:
            refuse_attribute(type(self).__name__, self.average_attribute, "this run keeps no average of the weights")
        if self._averaged is None or self._averaged[0] != self.own.step:
            averaged = copy.deepcopy(self.unwrapped_model).eval().requires_grad_(False)
            parts = averaged.training_parts() if isinstance(averaged, CompatModel) else TrainingParts(averaged)
            averages = self.own.state.averaged_modules()
            for name, module in {self.own.exported(): parts.model, **parts.modules}.items():
                if name in averages:
                    module.load_state_dict(averages[name].state_dict())
            self._averaged = (self.own.step, averaged)
        return AverageView(self._averaged[1], self.unwrapped_model)

    # --- data ---------------------------------------------------------------------------------------------------

    @property
    def ds(self) -> Any:
        """The training items, as a data set."""
        return items_of(self.own.splits.train, self.own.config.train.seed)

    @property
    def valid_ds(self) -> Any:
        return items_of(self.own.splits.validation, self.own.config.train.seed)

    @property
    def dl(self) -> Any:
        """Batches of the training items; reading them does not change the training."""
        return loader_of(self.ds, self._micro_batch, self.merge, self.drop_last)

    @property
    def valid_dl(self) -> Any:
        return loader_of(self.valid_ds, self._micro_batch, self.merge, self.drop_last)

    @staticmethod
    def merge(values: list[Tensor]) -> Tensor:
        """Stack the tensors of a batch that have different lengths."""
        return stack_shortest(values)

    @property
    def dl_iter(self) -> Iterator[Any]:
        return cycle(self.dl)

    @property
    def valid_dl_iter(self) -> Iterator[Any]:
        return cycle(self.valid_dl)

    @property
    def _micro_batch(self) -> int:
        train = self.own.config.train
        return max(1, train.batch_size // (train.micro_batches * self.own.engine.world_size))

    # --- trackers -------------------------------------------------------------------------------------------------

    def close_outputs(self) -> None:
        """Stop data workers and trackers; the next step starts them again."""
        self.own.close_outputs()
        self._is_open = False

    def name_project(self, project: str, run: str | None = None) -> None:
        """Set the project and the run name of the trackers, which are started with the next step."""
        keys = {"log.project": project, **({"log.name": run} if run else {})}
        self.own.config = self.own.config.changed(keys)

    def trackers(self, project: str, run: str | None = None) -> AbstractContextManager[None]:
        """Name the trackers of the steps inside of the context."""
        return named_project(self, project, run)

    def wandb_tracking(self, project: str, run: str | None = None, **hps: Any) -> AbstractContextManager[None]:
        """Log the steps inside of the context to wandb."""
        names = tuple(dict.fromkeys((*self.own.config.log.trackers, "wandb")))
        check_trackers(names)
        self.own.config = self.own.config.changed({"log.trackers": names})
        return named_project(self, project, run)

    # --- as a module ------------------------------------------------------------------------------------------------

    def eval(self) -> Self:
        self.unwrapped_model.eval()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`.to()`, `.cuda()`, `.half()` and the like: the trainer has placed model, average and optimizer already."""
        here = torch.zeros(1, device=self.device)
        try:
            there = fn(here)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"{type(self).__name__} cannot be moved to that device: {reason}") from None
        if (there.device.type, there.dtype) != (here.device.type, here.dtype):
            raise UsageError(
                f"{type(self).__name__} trains on {here.device.type} in {str(here.dtype)[6:]}; pass "
                'config={"engine.device": …, "engine.precision": …} to it instead of moving it'
            )
        return self
