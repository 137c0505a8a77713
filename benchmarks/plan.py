"""Memory and FLOPs of `quintet plan` against those of real steps on this CPU: `make bench-plan`. One thread, fp32.

For each recipe a process of its own runs training steps of an example batch with real weights: forward and backward
pass with existing gradients, as in all micro-batches but the first. The peak is the high-water mark of the kernel for
the process (VmHWM), above its memory before the optimizer exists; the plan has the same: gradients, optimizer state and
activations. `--only RECIPE` measures one recipe and keeps the rows of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from quintet import config, registry
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.runs import make_task
from quintet.training import optim
from quintet.training.engine import Engine
from quintet.training.planning.building import planned_task, untrained_pipeline
from quintet.training.planning.step import NUM_ITEMS, ORDINARY_STEP, SimulatedTraining
from quintet.training.throughput import FlopCounter
from side_by_side import HERE, write_facts

RESULTS = HERE / "results" / "plan.json"
CASES: dict[str, tuple[int, tuple[str, ...]]] = {
    "vqgan": (128, ()),
    "muse": (64, ()),
    "cvivit": (8, ()),
    "phenaki": (8, ()),
    "mulan": (32, ()),
    "audio-codec": (12, ()),
    "soundstorm": (16, ()),
    "mesh-autoencoder": (4, ()),
    "mesh-transformer": (2, ()),
}
"""Samples and keys of each recipe, on top of the preset small: about 300 megabytes each."""
PRESET = "small"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""Freed memory goes back to the kernel at once: otherwise the peak would be that of a heap with holes."""


@dataclass(frozen=True)
class Row:
    recipe: str
    samples: int
    planned_bytes: int
    measured_bytes: int
    planned_flops: int
    counted_flops: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--measure", choices=CASES, help="print what a real step of one recipe needs; write nothing")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    known = {row.recipe: row for row in read()}
    for recipe in [options.only] if options.only else CASES:
        known[recipe] = compare(recipe)
    write_facts(RESULTS, {"rows": [asdict(known[recipe]) for recipe in CASES if recipe in known]})
    print("\n".join(table(read())))


def read() -> list[Row]:
    if not RESULTS.exists():
        return []
    return [Row(**row) for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]]


def compare(recipe: str) -> Row:
    command = [sys.executable, __file__, "--measure", recipe]
    result = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, check=True, text=True)
    measured = json.loads(result.stdout.splitlines()[-1])
    return Row(recipe=recipe, samples=CASES[recipe][0], **plan(recipe), **measured)


def plan(recipe: str) -> dict[str, int]:
    """The planned memory and FLOPs of the same step."""
    settings = settings_of(recipe)
    training = SimulatedTraining(planned_task(settings, PRESET), "cpu", settings.engine.precision)
    planned = training.measure(CASES[recipe][0])
    memory = training.state.gradients + training.state.optimizer + planned.activations
    return {"planned_bytes": memory, "planned_flops": sum(planned.flops.values())}


def settings_of(recipe: str) -> Any:
    _, keys = CASES[recipe]
    changes = {**config.parse_overrides([*keys]), "engine.precision": "fp32", "engine.device": "cpu"}
    return config.build(registry.find(recipe).config_class(), preset=PRESET, overrides=changes)


def measure(recipe: str) -> dict[str, int]:
    """Peak of the memory of real steps in this process, and their FLOPs."""
    samples, _ = CASES[recipe]
    settings = settings_of(recipe)
    frozen = {key: untrained_pipeline(name, PRESET, "cpu") for key, name in registry.find(recipe).frozen.items()}
    task = make_task(settings, frozen)
    engine = Engine(settings.engine)
    engine.to_device(task.modules)
    fields = task.collate([task.example_item()] * samples)

    def batch(number: int) -> Batch:
        rng = ItemRNG(0, [0] * number, [item % NUM_ITEMS for item in range(number)])
        small = fields if number == samples else task.collate([task.example_item()] * number)
        return Batch(small, tuple(map(str, range(number))), rng)

    # Libraries are loaded, and kernels are chosen, before the measurement.
    task.backward([batch(2)], task.modules, engine, ORDINARY_STEP)
    for module in task.modules.values():
        module.zero_grad(set_to_none=True)
    before = memory("VmRSS")
    states = []
    for phase in task.phases:
        parameters = optim.named_parameters(task.modules, phase.modules)
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        states.append(optim.make_optimizer(phase.optim, parameters))
        states[-1].step()
    Path("/proc/self/clear_refs").write_text("5")
    with FlopCounter() as counter:
        task.backward([batch(samples)], task.modules, engine, ORDINARY_STEP)
    return {"measured_bytes": memory("VmHWM") - before, "counted_flops": counter.flops}


def memory(name: str) -> int:
    """A figure of the kernel about this process, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def table(rows: list[Row]) -> Iterator[str]:
    yield "| recipe | samples | memory planned | measured | difference | GFLOP planned | counted | difference |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        planned, measured = row.planned_bytes, row.measured_bytes
        cells = [row.recipe, str(row.samples), f"{planned / 1e6:,.0f} MB", f"{measured / 1e6:,.0f} MB"]
        cells.append(f"{planned / measured - 1:+.1%}")
        cells += [f"{row.planned_flops / 1e9:,.1f}", f"{row.counted_flops / 1e9:,.1f}"]
        cells.append(f"{row.planned_flops / row.counted_flops - 1:+.1%}")
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
