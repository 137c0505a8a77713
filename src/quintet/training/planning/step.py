"""One training step in a `Simulation`: memory by part, FLOPs, bytes moved and kernels, for a number of samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quintet.common.batch import Batch
from quintet.common.precision import autocast_dtype
from quintet.common.rng import ItemRNG
from quintet.training import optim
from quintet.training.engine import recompute_activations
from quintet.training.finetuning import trains_a_part
from quintet.training.planning.autocast import clear_cache
from quintet.training.planning.simulation import Simulation
from quintet.training.task import Task

ORDINARY_STEP = 10**9 + 1
"""A step in which every phase is active, and in which nothing happens that happens only in every N-th step."""
NUM_ITEMS = 32
"""Number of different items in a simulated batch: enough that the fraction of masked tokens is close to its mean."""
HEAVY_STEP = 10**9
"""A step in which that happens too, such as a gradient penalty or the revival of codes: it has many divisors."""


@dataclass(frozen=True)
class State:
    """Bytes of what one process holds between two steps, and of gradients."""

    weights: int
    gradients: int
    optimizer: int
    ema: int
    frozen: int
    """Frozen models, such as a tokenizer."""
    parameters: int
    """Number of parameters."""
    trained: int
    """Number of those that an optimizer trains."""
    largest_block: int
    """Bytes of the weights of the largest block that FSDP gathers."""
    checkpoint: int
    """Bytes of a checkpoint: weights, moving average, and the state of the optimizers."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.ema + self.frozen


@dataclass(frozen=True)
class Measured:
    """One simulated step of some samples."""

    samples: int
    """Of each micro-batch."""
    micro_batches: int
    activations: int
    """Peak of the bytes above the state with gradients, in forward and backward pass."""
    flops: dict[torch.dtype, int]
    bytes_moved: int
    kernels: int


class PlannedEngine:
    """The part of `Engine` that `Task.backward` uses, on the planned device."""

    rank, world_size, seed = 0, 1, 0
    is_main = True
    is_distributed = False

    def __init__(self, simulation: Simulation, precision: str) -> None:
        self.device = simulation.device
        self.dtype = torch.float64 if precision == "fp64" else torch.float32
        self.precision = precision

    @contextmanager
    def micro_batch(self, modules: Any, step: int, number: int, synchronise: bool) -> Iterator[None]:
        yield

    def scaled(self, loss: Tensor) -> Tensor:
        return loss

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """As `torch.autocast`, which refuses a device that this machine does not have."""
        dtype, kind = autocast_dtype(self.precision), self.device.type
        if dtype is None:
            yield
            return
        before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        torch.set_autocast_enabled(kind, True)
        torch.set_autocast_dtype(kind, dtype)
        torch.autocast_increment_nesting()
        try:
            yield
        finally:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
                clear_cache()
            torch.set_autocast_enabled(kind, before[0])
            torch.set_autocast_dtype(kind, before[1])


class SimulatedTraining:
    """A task on `meta` whose steps can be simulated on a kind of device (`cuda` or `cpu`)."""

    def __init__(self, task: Task[Any], device: str, precision: str) -> None:
        self.task = task
        self.simulation = Simulation(torch.device(device, 0) if device == "cuda" else torch.device(device))
        self.engine = PlannedEngine(self.simulation, precision)
        self.item = task.example_item()
        for module in task.modules.values():
            module.to(self.engine.dtype)
        untrained = [each for pipeline in task.frozen.values() for each in pipeline.modules.values() if _is_meta(each)]
        for module in (*_modules_of(task), *untrained):
            self.simulation.place(module)
        if task.config.engine.activation_checkpointing:
            for module in task.modules.values():
                # Torch would compare devices, which it sees or not, depending on where it looks.
                recompute_activations(module, context_fn=self._contexts, determinism_check="none")
        self.temporaries = 0
        """Peak of the bytes that the optimizers need in their step, above their state."""
        self.optimizer_bytes_moved = 0
        with self.simulation, _quiet():
            self.state = self._make_state()
        # What is computed once, such as the distances of all codes, is not a part of every step.
        self.measure(task.traits.minimum_batch)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), self._recomputing()

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """Recomputation of a block, in a backward pass, in which tensors cannot override functions."""
        with torch._C._EnableTorchFunction(), self.engine.autocast():
            yield

    def _make_state(self) -> State:
        """Run one optimizer step, after which the optimizers have their state."""
        task, modules = self.task, self.task.modules
        optimizers = []
        for phase in task.phases:
            parameters = optim.named_parameters(modules, phase.modules)
            product = torch.bfloat16 if self.engine.precision == "bf16" else None
            optimizers.append((parameters, optim.make_optimizer(phase.optim, parameters, product)))
        trained: list[Tensor] = [each for parameters, _ in optimizers for each in parameters.values()]
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        for _, optimizer in optimizers:
            optimizer.step()
        before = self.simulation.bytes_moved
        with self.simulation.peak_since_now() as peak:
            for _, optimizer in optimizers:
                optimizer.step()
            self.temporaries = peak()
        self.optimizer_bytes_moved = self.simulation.bytes_moved - before
        for parameter in trained:
            parameter.grad = None
        moments = sum(_size(value) for _, optimizer in optimizers for value in _tensors_of(optimizer))
        ema = sum(_bytes(modules[name]) for name in task.averaged) if task.config.ema.enabled else 0
        # Averaged weights that are not trained are those of the model itself.
        shares = trains_a_part(task.config) and not task.config.engine.fsdp
        averaged = [each for name in task.averaged for each in modules[name].parameters()]
        shared = sum(_size(each) for each in averaged if not each.requires_grad) if shares and ema else 0
        weights = sum(map(_bytes, modules.values()))
        self._optimizers = optimizers
        return State(
            weights=weights,
            gradients=sum(map(_size, trained)),
            optimizer=moments,
            ema=ema - shared,
            frozen=sum(_bytes(module) for pipeline in task.frozen.values() for module in pipeline.modules.values()),
            parameters=sum(each.numel() for module in modules.values() for each in module.parameters()),
            trained=sum(each.numel() for each in trained),
            largest_block=max(map(_bytes, _blocks(modules.values())), default=0),
            checkpoint=weights + ema + moments,
        )

    def measure(self, samples: int, micro_batches: int = 1, step: int = ORDINARY_STEP) -> Measured:
        """Simulate the forward and backward passes of micro-batches of some samples.

        Gradients exist before, as in all micro-batches of a step but the first."""
        simulation, task = self.simulation, self.task
        before = simulation.flops.copy(), simulation.bytes_moved, simulation.kernels
        trained = [each for parameters, _ in self._optimizers for each in parameters.values()]
        loaded = self._loaded(samples)
        with simulation, _quiet(), torch.autograd.set_multithreading_enabled(False):
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter)
            with simulation.peak_since_now() as peak:
                batches = [self._on_device(loaded) for _ in range(micro_batches)]
                report = task.backward(batches, task.modules, self.engine, step)  # type: ignore[arg-type]
                above = peak()
            del batches, report
            for parameter in trained:
                parameter.grad = None
        return Measured(
            samples=samples,
            micro_batches=micro_batches,
            activations=above,
            flops=dict(simulation.flops - before[0]),
            bytes_moved=simulation.bytes_moved - before[1],
            kernels=simulation.kernels - before[2],
        )

    def _loaded(self, samples: int) -> Batch:
        """A batch on the CPU, as from a data worker."""
        # The same random numbers again and again: otherwise the fraction of masked tokens would depend on the number.
        rng = ItemRNG(0, [0] * samples, [number % NUM_ITEMS for number in range(samples)])
        collated = self.task.collate([self.item] * samples)
        return Batch(collated, tuple(map(str, range(samples))), rng).prepared(self.task.prepare)

    def _on_device(self, loaded: Batch) -> Batch:
        fields = {name: self._field(value) for name, value in loaded.fields.items()}
        return replace(loaded, fields=fields, precision=self.engine.dtype)

    def _field(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.is_floating_point():
            value = value.to(self.engine.dtype)
        # The shapes of a step depend on codes and lengths, never on pixels and waves.
        return self.simulation.planned(value, keep=not value.is_floating_point() and value.dtype != torch.uint8)


def _modules_of(task: Task[Any]) -> list[nn.Module]:
    """The modules of a task, and those that its losses use and that are neither trained nor saved."""
    own = [value for value in vars(task).values() if isinstance(value, nn.Module)]
    return list(dict.fromkeys([*task.modules.values(), *own]))


def _is_meta(module: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def _blocks(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    return (part for module in modules for part in module.modules() if getattr(type(part), "recomputable", False))


def _bytes(module: nn.Module) -> int:
    return sum(map(_size, (*module.parameters(), *module.buffers())))


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that this machine lacks the planned device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
