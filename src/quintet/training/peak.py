"""`peak_flops`: the FLOP/s that this machine reaches in a large matrix product, which MFU is a fraction of.

It is measured in less than a second and kept in the cache folder of the user. A machine that was busy during one
measurement has a better one later: the best of all counts.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from quintet.common.caches import default_folder
from quintet.common.files import atomic_write
from quintet.errors import RunError

SECONDS = 0.1
"""Time for the products of one size; at least one is measured."""
SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096), "mps": (1024, 2048)}
"""Rows of the square matrices, by kind of device. Many threads need large ones; on a busy machine, only a product that
takes a few milliseconds is likely to run without interruption. They must fit beside a training."""


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s of one process: the best that was ever measured with this machine, precision, torch and threads.

    None if the device has no memory left for a measurement.
    """
    try:
        return _peak_flops(device, dtype)
    except RuntimeError:  # of which torch's out-of-memory error is a kind
        return None


def _peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    key = " | ".join((_device_name(device), str(dtype), f"{torch.get_num_threads()} threads", torch.__version__))
    try:
        path = default_folder() / "peak_flops.json"
    except RunError:  # no home folder
        return measure_peak(device, dtype)
    known = _read(path)
    best = max(measure_peak(device, dtype), known.get(key, 0.0))
    if best != known.get(key):
        _write(path, {**known, key: best})
    return best


def measure_peak(device: torch.device, dtype: torch.dtype, clock: Callable[[], float] = time.perf_counter) -> float:
    """The FLOP/s of the fastest of several products of square matrices, by a clock in seconds."""
    best = 0.0
    for size in SIZES.get(device.type, SIZES["cpu"]):
        if best and 2 * size**3 / best > SECONDS:
            break
        matrix = torch.full((size, size), 0.5, device=device, dtype=dtype)
        result = matrix @ matrix  # warm-up
        seconds: list[float] = []
        began = clock()
        while not seconds or clock() - began < SECONDS:
            _synchronize(device)
            before = clock()
            torch.mm(matrix, matrix, out=result)
            _synchronize(device)
            seconds.append(clock() - before)
        best = max(best, 2 * size**3 / max(min(seconds), 1e-9))
    return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{device.type} {models[0] if models else platform.processor()} of {platform.node()}"


def _read(path: Path) -> dict[str, float]:
    """The measurements of the cache; none if it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: float(value) for key, value in found.items() if isinstance(value, (int, float))}


def _write(path: Path, measured: dict[str, float]) -> None:
    """A cache that cannot be written is no reason to end a run: the next one measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, durable=False, concurrent=True) as temporary:
            temporary.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    except OSError:
        pass
