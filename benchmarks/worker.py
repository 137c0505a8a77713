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


def serve(step: Callable[[], Any], about: dict[str, Any], packages: tuple[str, ...]) -> None:
    """Answer with `about` first, then with the cost of each step asked for."""
    torch.set_num_threads(1)
    versions = {name: metadata.version(name) for name in ("torch", *packages)}
    _say({**about, "versions": versions, "threads": torch.get_num_threads()})
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        costs = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        _say({**costs, "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write("\n@" + json.dumps(value) + "\n")
    sys.stdout.flush()
