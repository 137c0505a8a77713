"""What scripts read from the trainers of the original packages: accelerator, average, optimizer and schedule.

They show the state of quintet's own trainer. Each raises an error of one sentence for what it does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from quintet.common import collectives
from quintet.errors import UsageError
from quintet.training.trainer import Trainer

PAGE = "docs/migration.md"


class NoAttributeError(AttributeError):
    """A name of an original object that its counterpart does not have; says what to use instead."""


def refuse_attribute(owner: str, name: str, instead: str) -> NoReturn:
    raise NoAttributeError(f"{owner} has no '{name}': {instead} (see {PAGE})")


class AcceleratorView:
    """The `accelerator` of a trainer: what scripts use of accelerate's `Accelerator`, from quintet's engine."""

    scaler = None
    sync_gradients = True

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._own: Trainer = trainer.own

    def __getattr__(self, name: str) -> NoReturn:
        refuse_attribute("accelerator", name, "it has what scripts use of accelerate; quintet's engine is `own.engine`")

    # --- processes ----------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self._own.device

    @property
    def is_main_process(self) -> bool:
        return self._own.is_main

    @property
    def is_local_main_process(self) -> bool:
        return self._own.is_local_main

    @property
    def num_processes(self) -> int:
        return self._own.engine.world_size

    @property
    def process_index(self) -> int:
        return self._own.engine.rank

    @property
    def local_process_index(self) -> int:
        return self._own.engine.local_rank

    @property
    def distributed_type(self) -> str:
        """`NO`, `MULTI_GPU` or `MULTI_CPU`, as in accelerate."""
        if not self._own.is_distributed:
            return "NO"
        return "MULTI_GPU" if self.device.type == "cuda" else "MULTI_CPU"

    @property
    def mixed_precision(self) -> str:
        precision: str = self._own.config.engine.precision
        return precision if precision in ("bf16", "fp16") else "no"

    @property
    def native_amp(self) -> bool:
        return self.mixed_precision != "no"

    @property
    def use_distributed(self) -> bool:
        return self._own.is_distributed

    @property
    def trackers(self) -> list[Any]:
        return list(self._own.trackers)

    def wait_for_everyone(self) -> None:
        self._own.wait()

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, one after the other."""
        return collectives.gather_rows(tensor) if self._own.is_distributed else tensor

    # --- a hand-written step ------------------------------------------------------------------------------------

    def prepare(self, *objects: Any) -> Any:
        """The objects themselves, modules moved to the device: quintet's trainer wraps its own modules."""
        moved = [each.to(self.device) if isinstance(each, nn.Module) else each for each in objects]
        return moved[0] if len(moved) == 1 else tuple(moved)

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        inner = getattr(model, "module", model)
        return inner if isinstance(inner, nn.Module) else model

    def get_state_dict(self, model: nn.Module) -> dict[str, Any]:
        return self.unwrap_model(model).state_dict()

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def autocast(self) -> Any:
        return self._own.engine.autocast()

    def no_sync(self, model: Any) -> Any:
        return model.no_sync() if hasattr(model, "no_sync") else nullcontext()

    def accumulate(self, *models: nn.Module) -> Any:
        return nullcontext()

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Tensor:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        nn.utils.clip_grad_value_(parameters, clip_value)

    def free_memory(self, *objects: Any) -> tuple[None, ...]:
        return tuple(None for _ in objects)

    # --- output -------------------------------------------------------------------------------------------------

    def print(self, *values: Any) -> None:
        self._own.print(" ".join(map(str, values)))

    def init_trackers(self, project_name: str, config: Any = None, init_kwargs: Any = None) -> None:
        """Name the project of the trackers; quintet's configuration is logged with it."""
        self._trainer.name_project(project_name)

    def log(self, values: Mapping[str, Any], step: int | None = None, log_kwargs: Any = None) -> None:
        self._own.log(**as_floats(values))

    def end_training(self) -> None:
        self._trainer.close_outputs()

    def save(self, obj: Any, f: Any, **options: Any) -> NoReturn:
        raise UsageError("accelerator.save writes a pickle, which quintet never does; use save(path) of the trainer")

    def save_state(self, output_dir: str | Path) -> None:
        self._trainer.save(output_dir)

    def load_state(self, input_dir: str | Path) -> None:
        self._trainer.load(input_dir)


def as_floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


class AverageView:
    """The average of the weights as an `EMA` object: calling it calls the averaged model."""

    def __init__(self, averaged: nn.Module, online: nn.Module) -> None:
        self.ema_model = averaged
        self.online_model = self.model = online

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.ema_model(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.ema_model, name)

    def update(self) -> NoReturn:
        raise UsageError("the trainer updates the average of the weights itself after each step; remove the call")


class OptimizerView:
    """`optimizer` of the mesh trainers: the optimizer with its schedule."""

    def __init__(self, own: Trainer, optimizer: torch.optim.Optimizer, max_grad_norm: float | None) -> None:
        self.optimizer = optimizer
        self.scheduler = SchedulerView(own)
        self.max_grad_norm = max_grad_norm

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def step(self) -> NoReturn:
        raise UsageError("the optimizer of a trainer is advanced by train_step(); use it, or an optimizer of your own")

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


class SchedulerView:
    """The schedule of the learning rate; the trainer advances it."""

    def __init__(self, own: Trainer) -> None:
        self._own = own

    def get_last_lr(self) -> list[float]:
        return [self._own.lr_schedule(max(0, self._own.step - 1))]

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self._own.step, "_last_lr": self.get_last_lr()}

    def step(self) -> NoReturn:
        raise UsageError("the learning rate is a function of the step, which train_step() advances; remove the call")

    def __getattr__(self, name: str) -> NoReturn:
        refuse_attribute("scheduler", name, "it has get_last_lr() and state_dict(); warmup(step) is any step's rate")


@contextmanager
def named_project(trainer: Any, project: str, run: str | None) -> Iterator[None]:
    """Trackers with these names, for the steps inside; they are closed at the end."""
    trainer.name_project(project, run)
    yield
    trainer.close_outputs()
