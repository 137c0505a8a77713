"""The side of a comparison that lives in a process of its own: takes a step when told to, and says what it cost.

Reads one line a step from standard input and answers with one line of JSON. Imported by workers in several
environments, so it needs nothing but torch.
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
    """All of them, trained or not."""
    return sum(parameter.numel() for parameter in module.parameters())


def serve(step: Callable[[], dict[str, float] | None], about: dict[str, Any], packages: tuple[str, ...]) -> None:
    """Answer with `about` first, then with the cost of each step asked for and what the step itself has to say."""
    torch.set_num_threads(1)
    versions = {name: metadata.version(name) for name in ("torch", *packages)}
    _say({**about, "versions": versions, "threads": torch.get_num_threads()})
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        found = step()
        costs = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        _say({**costs, "peak_megabytes": peak, **(found or {})})


class TimedTraining:
    """A training in slices of CPU seconds, with a measurement after each that is not counted.

    `prepare` makes what a step needs, outside the time; `step` is what is timed.
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
        """The first one trains nothing: it is where the curve begins."""
        while self.trained < self.slices * self.seconds:
            prepared = self.prepare()
            began = time.process_time()
            self.step(prepared)
            self.trained += time.process_time() - began
            self.steps += 1
        self.slices += 1
        return {"trained": self.trained, "steps": self.steps, **self.measure()}


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write("\n@" + json.dumps(value) + "\n")
    sys.stdout.flush()
