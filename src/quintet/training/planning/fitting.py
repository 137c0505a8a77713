"""Compares, before a training reads its data, what it needs with the memory of its device: refuses what certainly does
not fit, and proposes the number of micro-batches."""

from __future__ import annotations

from typing import Any

import torch

from quintet.common import collectives, rank
from quintet.common.device import own_device
from quintet.common.memory import available_memory
from quintet.errors import UsageError
from quintet.training.planning.building import task_on_meta
from quintet.training.planning.devices import DeviceSpec
from quintet.training.planning.plan import Plan, measure_costs
from quintet.training.task import Task

CERTAIN = 0.8
"""Fraction of the planned activations that is certainly needed; those of compiled modules are not certain."""


def check_memory(task: Task[Any]) -> Plan | None:
    """Raise UsageError if the training certainly does not fit on the CUDA device of this process; return its plan.

    Never on other devices, whose memory is shared with everything else. They have a plan only if
    `train.grad_accum_steps=auto` needs it; None if there is none."""
    device = own_device(task.config.engine)
    world_size = max(rank.RankInfo.from_environment().world_size, collectives.world_size())
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return refuse_too_large(task, properties.name, properties.total_memory, world_size)
    if device.type == "cpu" and task.config.train.grad_accum_steps == "auto":
        memory = available_memory() // rank.local_world_size()
        return _plan(task, DeviceSpec("this machine", "cpu", memory, bf16=1, fp32=1, bandwidth=1, link=1), world_size)
    return None


def refuse_too_large(task: Task[Any], device: str, memory: int, world_size: int) -> Plan | None:
    """Raise UsageError if a task certainly needs more bytes than each of `world_size` devices has; return its plan."""
    plan = _plan(task, DeviceSpec(device, "cuda", memory, bf16=1, fp32=1, bandwidth=1, link=1), world_size)
    if plan is None:
        return None
    train = task.config.train
    samples = 1 if train.grad_accum_steps == "auto" else train.batch_size // (world_size * train.grad_accum_steps)
    state = sum(plan.parts.values()) - plan.parts["fixed"]
    certain = state + (0 if task.config.engine.compile else CERTAIN) * (plan.memory(samples) - state)
    if certain <= memory:
        return plan
    if plan.grad_accum_steps is None:
        raise UsageError(plan.too_large())
    raise UsageError(
        f"micro-batches of {samples} samples need about {plan.memory(samples) / 1e9:,.0f} GB, and {device} has "
        f"{memory / 1e9:,.1f} GB: use train.grad_accum_steps={plan.grad_accum_steps} (now {train.grad_accum_steps}), "
        "which makes micro-batches smaller and leaves the batch size"
    )


def _plan(task: Task[Any], device: DeviceSpec, world_size: int) -> Plan | None:
    """The plan of a task; None if it cannot be made, such as that of a family without `example_item`."""
    precision = task.config.engine.precision
    try:
        # Modules are built again: the random numbers of the training must not depend on it.
        with torch.random.fork_rng(devices=[]):
            costs = measure_costs(task_on_meta(task.config, task.frozen), device.kind, precision)
    except Exception:  # a plan is advice: whatever a family does, it must not keep it from training
        return None
    return Plan(task.config, device, world_size, precision, costs)
