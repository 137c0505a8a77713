"""Learning-rate schedules: pure functions of the step, which do not depend on the number of processes.

A scheduler of torch changes the learning rate of an optimizer from step to step. It is run once on an optimizer without
parameters, and its rates are kept, so that a resumed run has the same rate at every step.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import lr_scheduler

from quintet.config import OptimConfig
from quintet.errors import UsageError

Schedule = Callable[[int], float]
"""Maps a step to a learning rate."""


def schedule_of(config: OptimConfig) -> Schedule:
    """The schedule of the keys `optim.*`."""
    if config.scheduler is None:
        return lambda step: learning_rate(config, step)
    kind, options = parse_scheduler(config.scheduler)
    return TorchSchedule(config, kind, options)


def learning_rate(config: OptimConfig, step: int) -> float:
    """Linear warm-up from `initial_lr` to `lr` over `warmup_steps`, then the schedule from `lr` to `final_lr`."""
    if step < config.warmup_steps:
        return config.initial_lr + (config.lr - config.initial_lr) * _warmup(config, step)
    end = config.decay_end(step)
    if config.schedule == "constant" or end is None:
        return config.lr
    progress = min(1.0, (step - config.warmup_steps) / max(1, end - config.warmup_steps))
    if config.schedule == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return config.lr + (config.final_lr - config.lr) * progress


def _warmup(config: OptimConfig, step: int) -> float:
    """The fraction of the warm-up that is done; 1 after it."""
    return min(1.0, (step + 1) / (config.warmup_steps + 1))


class TorchSchedule:
    """The learning rates of a scheduler class of torch, or of a subclass of `LRScheduler`, scaled by the warm-up."""

    def __init__(self, config: OptimConfig, kind: type[Any], options: dict[str, Any]) -> None:
        self.config = config
        self.name = kind.__name__
        if issubclass(kind, lr_scheduler.ReduceLROnPlateau):
            raise UsageError(
                "optim.scheduler: ReduceLROnPlateau depends on the metrics, and a learning rate that is not a function "
                "of the step cannot be resumed exactly; use another scheduler"
            )
        if issubclass(kind, (lr_scheduler.OneCycleLR, lr_scheduler.CyclicLR)) and options.get("cycle_momentum", True):
            raise UsageError(
                f"optim.scheduler: {self.name} would also change the betas of the optimizer, and only the learning "
                "rate follows a scheduler; set cycle_momentum=False"
            )
        parameter = torch.nn.Parameter(torch.zeros(()))
        self._optimizer = torch.optim.AdamW([parameter], lr=config.lr, betas=config.betas)
        try:
            self._scheduler = kind(self._optimizer, **options)
        except (TypeError, ValueError) as error:
            raise UsageError(f"optim.scheduler: {self.name} cannot be created: {error}") from None
        self._rates = [self._rate()]

    def __call__(self, step: int) -> float:
        while len(self._rates) <= step:
            self._optimizer.step()  # torch warns if a scheduler advances before its optimizer
            try:
                self._scheduler.step()
            except ValueError as error:
                raise UsageError(f"optim.scheduler: {self.name} ends at step {len(self._rates)}: {error}") from None
            self._rates.append(self._rate())
        return self._rates[step] * _warmup(self.config, step)

    def _rate(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])


def parse_scheduler(text: str) -> tuple[type[Any], dict[str, Any]]:
    """The class and the arguments of `optim.scheduler`, such as `StepLR(step_size=1000)`. Nothing is executed."""
    problem = UsageError(
        f"optim.scheduler={text!r} is not a scheduler of torch with its arguments, such as "
        "StepLR(step_size=1000, gamma=0.5)"
    )
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            call = ast.Call(call, [], [])
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise problem
        options = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise problem from None
    kind = getattr(lr_scheduler, call.func.id, None)
    if not (isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler)):
        raise problem
    return kind, options


def describe_scheduler(kind: type[Any], options: dict[str, Any]) -> str | None:
    """The text of `optim.scheduler` for a class and its arguments; None if they cannot be written as text."""
    if getattr(lr_scheduler, kind.__name__, None) is not kind:
        return None
    text = f"{kind.__name__}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
    try:
        known = parse_scheduler(text)
    except UsageError:
        return None
    return text if known == (kind, options) else None
