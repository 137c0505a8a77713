"""Worker process of a comparison: takes one step per line of standard input and answers with its cost as JSON.

Imported by workers in several environments, so it depends only on torch.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from torch import nn


def count_parameters(module: nn.Module) -> int:
    """Number of parameters, trained or not."""
    return sum(parameter.numel() for parameter in module.parameters())


def serve(step: Callable[[], dict[str, float] | None], about: dict[str, Any], packages: tuple[str, ...]) -> None:
    """Answer with `about` first, then with the cost of each requested step and the results of the step."""
    torch.set_num_threads(1)
    versions = {name: metadata.version(name) for name in ("torch", *packages)}
    _answer({**about, "versions": versions, "threads": torch.get_num_threads()})
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        results = step()
        costs = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        _answer({**costs, "peak_megabytes": peak, **(results or {})})


class TimedTraining:
    """Training in slices of CPU seconds, with a measurement after each slice that is not timed.

    `prepare` creates the input of a step and is not timed; `step` is timed.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        measure: Callable[[], dict[str, float]],
        seconds: float,
        prepare: Callable[[], Any] = lambda: None,
    ) -> None:
        self.step, self.measure, self.seconds, self.prepare = step, measure, seconds, prepare
        self.trained = 0.0
        self.steps = 0
        self.slices = 0

    def next_slice(self) -> dict[str, float]:
        """Train and measure one slice; the first slice only measures the untrained model."""
        while self.trained < self.slices * self.seconds:
            prepared = self.prepare()
            start_time = time.process_time()
            self.step(prepared)
            self.trained += time.process_time() - start_time
            self.steps += 1
        self.slices += 1
        return {"trained": self.trained, "steps": self.steps, **self.measure()}


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.write("\n@" + json.dumps(value) + "\n")
    sys.stdout.flush()
