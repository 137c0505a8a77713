"""`train.grad_accum_steps=auto`: the largest micro-batch that fits into the memory of every process.

On a GPU it is found by trials before the first step, with all phases active: forward and backward passes of the
longest items, beside as much memory as the optimizers and the EMA will need. A trial changes no state and exchanges
nothing with other processes, so that one that runs out of memory keeps no other waiting; after it, all processes agree.
The plan (`quintet plan`) says where to start. A CPU has no limit that could be tried, and the blocks of FSDP are
gathered from all processes: there the plan decides alone. See docs/decisions/0036-micro-batches-are-found-by-trial.md.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from quintet.common import collectives
from quintet.common.batch import Batch
from quintet.common.memory import is_out_of_memory
from quintet.errors import RunError
from quintet.training import optim
from quintet.training.engine import Engine
from quintet.training.finetuning import trains_a_part
from quintet.training.loader import Loader
from quintet.training.order import Order
from quintet.training.planning.devices import FRAGMENTS
from quintet.training.planning.plan import Plan
from quintet.training.planning.step import HEAVY_STEP
from quintet.training.task import Task


class MicroBatchSearch:
    """Finds the smallest number of micro-batches with which a step of a new run fits."""

    def __init__(self, task: Task[Any], engine: Engine, loader: Loader, order: Order, plan: Plan | None) -> None:
        self.task, self.engine, self.loader, self.order, self.plan = task, engine, loader, order, plan
        self.local_batch = task.config.train.batch_size // engine.world_size
        """Items of a step in one process."""

    def run(self) -> int:
        """The number of micro-batches, the same in every process; RunError if not even one item fits."""
        numbers = self._candidates()
        planned = self._agreed(self._planned(numbers))
        if self.engine.device.type == "cpu" or self.engine.is_sharded:
            return planned
        for number in (each for each in numbers if each >= planned):
            (failed,) = self.engine.any_rank(not self._fits(number))
            if not failed:
                return number
            # A region that has met two sizes is compiled for all, unlike in a run that is resumed.
            self.engine.forget_compiled()
        raise RunError(
            f"out of memory with micro-batches of {count_items(self.local_batch // numbers[-1])} "
            "(train.grad_accum_steps=auto tried larger ones first); use a smaller model or smaller items, or "
            "engine.activation_checkpointing=true"
        )

    def _candidates(self) -> list[int]:
        if self.task.traits.minimum_batch > 1 and type(self.task).backward is Task.backward:
            return [1]  # it compares the items of a micro-batch with each other
        return [number for number in range(1, self.local_batch + 1) if self.local_batch % number == 0]

    def _planned(self, numbers: list[int]) -> int:
        if self.plan is None:
            return 1
        return next((number for number in numbers if number == self.plan.grad_accum_steps), numbers[-1])

    def _agreed(self, number: int) -> int:
        return int(collectives.maximum_over_ranks(torch.tensor(number, device=self.engine.device)).item())

    # --- a trial --------------------------------------------------------------------------------------------------

    def _fits(self, number: int) -> bool:
        batch = self.loader.longest(self.order, self.local_batch // number).batch
        devices = [self.engine.device] if self.engine.device.type == "cuda" else []
        try:
            with collectives.alone(), torch.random.fork_rng(devices=devices):
                self._step(batch, min(number, 2))
            return True
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        finally:
            for parameter in _parameters(self.task.modules.values()):
                parameter.grad = None
            self._release()

    def _step(self, loaded: Batch, micro_batches: int) -> None:
        """Two micro-batches are enough: in the second one, gradients exist already."""
        reserved = self._reserve()
        batches = [loaded.to(self.engine.device, self.engine.dtype) for _ in range(micro_batches)]
        # Not the wrapped modules: DDP would exchange gradients.
        self.task.backward(batches, self.task.modules, self.engine, HEAVY_STEP)
        del reserved

    def _reserve(self) -> list[Tensor]:
        """Memory of what a step will need besides: EMA, state of the optimizers, and what the allocator cannot use."""
        device, sizes = self.engine.device, state_sizes(self.task)
        if device.type == "cuda":
            sizes.append(int(FRAGMENTS * torch.cuda.get_device_properties(device).total_memory))
        return [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]

    def _release(self) -> None:
        gc.collect()  # the failed step may be part of a cycle
        if self.engine.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.engine.device)


def state_sizes(task: Task[Any]) -> list[int]:
    """The bytes of each module of the EMA, and of the moments of each phase, in a run that is not sharded."""
    averaged = [task.modules[name] for name in task.averaged] if task.config.ema.enabled else []
    # Averaged weights that are not trained are those of the model itself.
    shares = trains_a_part(task.config)
    sizes = [_bytes(each for each in _parameters([module]) if each.requires_grad or not shares) for module in averaged]
    for phase in task.phases:
        trained = optim.named_parameters(task.modules, phase.modules).values()
        sizes.append(optim.moments(phase.optim) * _bytes(trained))
    return sizes


def count_items(number: int) -> str:
    return "1 item" if number == 1 else f"{number} items"


def _parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]


def _bytes(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)
