"""`Plan`: what a training needs on a number of devices: memory by part, micro-batch, FLOPs, time and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from quintet.common.precision import choose_precision, has_bf16
from quintet.config import RunConfig
from quintet.errors import UsageError
from quintet.training import prepare
from quintet.training.peak import peak_flops
from quintet.training.planning.devices import DeviceSpec, size
from quintet.training.planning.step import HEAVY_STEP, NUM_ITEMS, SimulatedTraining, State
from quintet.training.task import Task

FEW, MANY = NUM_ITEMS, 2 * NUM_ITEMS
"""Numbers of samples of the simulated steps. Memory and work are straight lines through both."""
CPU_BANDWIDTH = 10e9
"""Bytes per second of one CPU core; assumed."""


@dataclass(frozen=True)
class Efficiency:
    """Fractions of the peak rates that a training reaches, and whether computation and traffic overlap."""

    compute: float
    traffic: float
    kernel: float
    """Seconds to launch a kernel."""
    overlap: bool

    def seconds(self, compute: float, traffic: float, kernels: float, network: float) -> float:
        parts = (compute / self.compute, traffic / self.traffic, kernels * self.kernel, network)
        return max(parts) if self.overlap else sum(parts)


EFFICIENCIES: Mapping[str, tuple[Efficiency, Efficiency]] = {
    "cuda": (Efficiency(0.6, 0.9, 4e-6, overlap=True), Efficiency(0.35, 0.6, 10e-6, overlap=False)),
    # Measured: 16 to 58 % (benchmarks/results/mfu.json), whatever else limits the steps.
    "cpu": (Efficiency(0.6, 1e9, 0, overlap=True), Efficiency(0.15, 1e9, 0, overlap=True)),
}
"""The best and the worst case, by kind of device. Those of GPUs are assumed, not measured."""


@dataclass(frozen=True)
class Line:
    """A quantity that is a constant and a rate per sample."""

    constant: float
    per_sample: float

    @classmethod
    def through(cls, few: tuple[int, float], many: tuple[int, float]) -> Line:
        rate = (many[1] - few[1]) / (many[0] - few[0])
        return cls(max(0.0, few[1] - rate * few[0]), rate)

    def at(self, samples: float) -> float:
        return self.constant + self.per_sample * samples


@dataclass(frozen=True)
class Costs:
    """What a step costs on a device, for any number of samples."""

    state: State
    activations: Line
    """Bytes above weights, gradients, optimizer state and EMA, by the samples of a micro-batch."""
    temporaries: int
    """Bytes that the optimizers need in their step, in the place of activations."""
    flops: Mapping[torch.dtype, float]
    """Per sample."""
    bytes_moved: Line
    """By the samples of a micro-batch."""
    kernels: int
    """Of a micro-batch."""
    optimizer_bytes_moved: int


def measure_costs(task: Task[Any], kind: str, precision: str, accumulates: bool = False) -> Costs:
    """Simulate steps of a task without contents. `accumulates`: with several micro-batches, as for a contrastive loss
    over all of them."""
    training = SimulatedTraining(task, kind, precision)
    few, many = training.measure(FEW), training.measure(MANY)
    line = Line.through((FEW, few.activations), (MANY, many.activations))
    if len(task.phases) > 1:
        heavy = training.measure(MANY, step=HEAVY_STEP).activations / max(1, many.activations)
        line = Line(line.constant * max(1.0, heavy), line.per_sample * max(1.0, heavy))
    flops = many.flops
    if accumulates and type(task).backward is not Task.backward:
        twice = training.measure(MANY, micro_batches=2)
        flops = {dtype: number // 2 for dtype, number in twice.flops.items()}
    return Costs(
        state=training.state,
        activations=line,
        temporaries=training.temporaries,
        flops={dtype: number / MANY for dtype, number in flops.items()},
        bytes_moved=Line.through((FEW, few.bytes_moved), (MANY, many.bytes_moved)),
        kernels=many.kernels,
        optimizer_bytes_moved=training.optimizer_bytes_moved,
    )


@dataclass(frozen=True)
class Plan:
    """A training of a configuration on several devices of one kind."""

    config: RunConfig
    device: DeviceSpec
    devices: int
    precision: str
    costs: Costs

    # --- memory of a device -----------------------------------------------------------------------------------

    @cached_property
    def parts(self) -> dict[str, int]:
        """Bytes on each device that do not depend on the micro-batch, by name."""
        state, shards = self.costs.state, self.devices if self.config.engine.fsdp else 1
        parts = {
            "weights": state.weights // shards,
            "gradients": state.gradients // shards,
            "optimizer state": state.optimizer // shards,
            "EMA": state.ema // shards,
        }
        if state.frozen:
            parts["frozen models"] = state.frozen
        if self.devices > 1:
            # DDP copies gradients into buckets; FSDP gathers the weights of a block.
            name = "gathered block" if shards > 1 else "gradient buckets"
            parts[name] = state.largest_block if shards > 1 else state.gradients
        parts["fixed"] = int(self.costs.activations.constant)
        return parts

    def memory(self, samples: int) -> float:
        """Peak of the bytes on a device with micro-batches of some samples."""
        activations = self.costs.activations
        return sum(self.parts.values()) + max(
            activations.per_sample * samples, self.costs.temporaries - activations.constant
        )

    @cached_property
    def largest_micro_batch(self) -> int:
        """The largest number of samples that fits; 0 if not even one does."""
        if self.memory(1) > self.device.usable:
            return 0
        room = self.device.usable - sum(self.parts.values())
        return max(1, int(room / self.costs.activations.per_sample))

    @cached_property
    def grad_accum_steps(self) -> int | None:
        """The smallest number of micro-batches, not below that of the configuration, with which a batch fits."""
        batch = self.config.train.batch_size // self.devices
        for steps in range(self.config.train.micro_batches, batch + 1):
            if batch % steps == 0 and batch // steps <= self.largest_micro_batch:
                return steps
        return None

    def too_large(self) -> str:
        """One sentence about a training that does not fit with any micro-batch, with the keys that help."""
        engine, keys = self.config.engine, ["smaller sizes in model.*"]
        if not engine.activation_checkpointing:
            keys.append("engine.activation_checkpointing=true")
        if self.config.ema.enabled:
            keys.append("ema.enabled=false")
        return (
            f"recipe '{self.config.recipe}' does not fit on {self.device.name}: a micro-batch of one sample needs "
            f"{size(self.memory(1))}, and {size(self.device.usable)} of {size(self.device.memory)} can be used; use a "
            f"larger device, {', '.join(keys[:-1])}{' or ' if keys[:-1] else ''}{keys[-1]}"
        )

    # --- work and time ----------------------------------------------------------------------------------------

    @property
    def flops_per_step(self) -> float:
        """Of all devices."""
        return sum(self.costs.flops.values()) * self.config.train.batch_size

    def seconds_per_step(self) -> tuple[float, float]:
        """Time of a step in the best and in the worst case."""
        batch, micro_batches = self.config.train.batch_size / self.devices, self.grad_accum_steps or 1
        rates = {torch.bfloat16: self.device.bf16, torch.float16: self.device.fp16}
        compute = sum(number * batch / rates.get(dtype, self.device.fp32) for dtype, number in self.costs.flops.items())
        moved = self.costs.bytes_moved
        traffic = moved.constant * micro_batches + moved.per_sample * batch + self.costs.optimizer_bytes_moved
        network = self._network_bytes(micro_batches) / self.device.link
        kernels = self.costs.kernels * micro_batches
        best, worst = (
            each.seconds(compute, traffic / self.device.bandwidth, kernels, network)
            for each in EFFICIENCIES[self.device.kind]
        )
        return best, worst

    def _network_bytes(self, micro_batches: int) -> float:
        """Bytes that each device sends in a step: gradients; with FSDP also weights, for every micro-batch."""
        if self.devices == 1:
            return 0
        share = (self.devices - 1) / self.devices
        gradients, weights = self.costs.state.gradients, self.costs.state.weights
        if self.config.engine.fsdp:
            return share * (gradients + 2 * weights * micro_batches)
        return share * 2 * gradients


def make_plan(config: RunConfig, task: Task[Any], device: DeviceSpec, devices: int) -> Plan:
    """The plan of a task without contents; UsageError if it could not be trained like this."""
    prepare.check_task(task)
    prepare.check_sharding(task)
    prepare.check_processes(task, devices)
    if not task.phases:
        raise UsageError(f"recipe '{config.recipe}' has no weights to train with these keys; use the model as it is")
    precision = planned_precision(task, device)
    try:
        costs = measure_costs(task, device.kind, precision)
    except NotImplementedError as problem:
        raise UsageError(f"recipe '{config.recipe}' cannot be planned with these keys: {problem}") from None
    plan = Plan(config, here(device, precision), devices, precision, costs)
    if (plan.grad_accum_steps or 1) > 1 and type(task).backward is not Task.backward:
        plan = replace(plan, costs=measure_costs(task, device.kind, precision, accumulates=True))
    return plan


def planned_precision(task: Task[Any], device: DeviceSpec) -> str:
    """`engine.precision` on the planned device."""
    name = task.config.engine.precision
    if name != "auto" or device.kind == "cpu":
        return choose_precision(name, device.kind)
    if device.has_bf16:
        return "bf16"
    return "fp32" if task.traits.takes_gradients else "fp16"


def here(device: DeviceSpec, precision: str) -> DeviceSpec:
    """The device with the memory and the rates of this machine, if it is a CPU."""
    if device.kind != "cpu":
        return device
    cpu = torch.device("cpu")
    fp32 = peak_flops(cpu, torch.float32) or 1e10
    bf16 = (peak_flops(cpu, torch.bfloat16) if precision == "bf16" else None) or fp32
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return replace(device, memory=memory, fp32=fp32, bf16=bf16, bandwidth=CPU_BANDWIDTH, has_bf16=has_bf16("cpu"))
