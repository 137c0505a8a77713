"""The command `plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quintet import config as configs
from quintet import registry
from quintet.cli.shared import Overrides, print_result
from quintet.common.rank import check_processes
from quintet.errors import UsageError
from quintet.training.planning.devices import DEVICES, find_device, size

if TYPE_CHECKING:
    from quintet.training.planning.plan import Plan


def plan(
    recipe: Annotated[str, typer.Argument(help="Recipe to plan; `quintet recipes` lists them.")],
    overrides: Overrides = None,
    preset: Annotated[str | None, typer.Option(help="Preset of many keys: debug, small or base.")] = None,
    device: Annotated[
        str, typer.Option(help=f"Kind of device: {', '.join(DEVICES)}. cpu is this machine; a100 has 40 GB.")
    ] = "h100",
    devices: Annotated[int, typer.Option(help="Number of devices; train.batch_size is divided by it.")] = 1,
    price_per_hour: Annotated[
        float | None,
        typer.Option(help="Price of one device for an hour, in any currency; prints that of the training."),
    ] = None,
) -> None:
    """Estimate memory, time and price of a training before it starts: needs no data, no GPU and no trained tokenizer.

    A generator whose tokenizer is not named (tokenizer=RUN) is planned with that of the tokenizer's preset of the same
    name. Memory and FLOPs are those of simulated steps; times are ranges, from assumed efficiencies.
    """
    schema = registry.find(recipe).config_class()
    spec = find_device(device)
    if devices < 1:
        raise UsageError(f"--devices {devices} must be at least 1")
    if price_per_hour is not None and not 0 <= price_per_hour < float("inf"):
        raise UsageError(f"--price-per-hour {price_per_hour:g} must be a number of 0 or more")
    settings = configs.build(schema, preset=preset, overrides=configs.parse_overrides(overrides or []))
    check_processes(settings, devices)
    from quintet.training.planning.building import planned_task
    from quintet.training.planning.plan import make_plan

    planned = make_plan(settings, planned_task(settings, preset), spec, devices)
    for line in report(planned, preset, price_per_hour):
        print_result(line)
    if planned.grad_accum_steps is None:
        raise UsageError(planned.too_large())


def report(plan: Plan, preset: str | None, price_per_hour: float | None) -> list[str]:
    """The lines that the command prints."""
    config, costs, device = plan.config, plan.costs, plan.device
    name = f"{config.recipe} --preset {preset}" if preset else config.recipe
    lines = [f"{name} on {plan.devices} x {device.name} ({size(device.memory)}), {plan.precision}"]
    rows: list[tuple[str, str]] = [
        ("parameters", f"{count(costs.state.parameters)} ({count(costs.state.trained)} trained)"),
        ("memory of a device", ""),
        *((f"  {part}", size(value)) for part, value in plan.parts.items()),
        ("  activations", f"{size(costs.activations.per_sample)} per sample"),
        ("  usable", size(device.usable)),
    ]
    batch = config.train.batch_size // plan.devices
    rows.append(("largest micro-batch", f"{plan.largest_micro_batch} samples"))
    steps = plan.grad_accum_steps
    if steps is not None:
        fits = f"train.grad_accum_steps={steps}: {steps} x {batch // steps} samples per device, "
        rows.append(("batch", f"{fits}{size(plan.memory(batch // steps))} of memory"))
    rows.append(("FLOPs of a step", f"{plan.flops_per_step:.3g} (train.batch_size={config.train.batch_size})"))
    if steps is not None:
        rows += _times(plan, price_per_hour)
    rows.append(("checkpoint", size(costs.state.checkpoint)))
    width = max(len(left) for left, _ in rows) + 2
    lines += [f"{left:<{width}}{right}".rstrip() for left, right in rows]
    if plan.precision == "bf16" and not device.has_bf16:
        lines.append(f"note: {device.name} has no bf16 instructions and emulates them: use engine.precision=auto")
    return lines


def _times(plan: Plan, price_per_hour: float | None) -> list[tuple[str, str]]:
    low, high = plan.seconds_per_step()
    total = plan.config.train.steps
    rows = [
        ("time of a step", f"{duration(low)} to {duration(high)}"),
        ("time of the training", f"{duration(low * total)} to {duration(high * total)} (train.steps={total})"),
    ]
    if price_per_hour is not None:
        prices = [seconds * total * plan.devices * price_per_hour / 3600 for seconds in (low, high)]
        rows.append(("price", f"{prices[0]:,.2f} to {prices[1]:,.2f}"))
    return rows


def count(number: float) -> str:
    """A number of parameters."""
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M" if number >= 1e5 else f"{number:,.0f}"


def duration(seconds: float) -> str:
    """A time with a unit."""
    for unit, scale in (("days", 86400), ("hours", 3600), ("minutes", 60), ("s", 1)):
        if seconds >= scale * (2 if scale > 1 else 1):
            return f"{seconds / scale:,.0f} {unit}" if seconds >= 100 * scale else f"{seconds / scale:.2g} {unit}"
    return f"{seconds * 1000:.3g} ms"
