"""Summary of a run for the list of runs: state, progress, rate, time left and best metric.

Reads only `state.json` and the end of `metrics.jsonl`, so that a thousand runs are listed quickly.
"""

from __future__ import annotations

import math
import os
import re
import socket
import statistics
import time
from itertools import pairwise
from typing import Any

from quintet.common.files import one_line
from quintet.common.processes import is_alive
from quintet.web.curves import tail_rows
from quintet.web.folders import RunDir

SILENT_SECONDS = 900.0
"""A process on another machine counts as dead after this time, and ten times the interval between two rows, without a
heartbeat."""
ESTIMATING_STEPS = 100
"""Number of steps before which the rate of a run is an estimate: the first steps are slower than the others."""
CLOCK_SECONDS = 60.0
"""Tolerance between the start time of a process and its heartbeat."""
STATES = ("running", "finished", "stopped", "failed")


def summarise(run_dir: RunDir, label: str) -> dict[str, Any]:
    """The summary of a run. A run that cannot be read gets one that says so: the other runs must stay visible."""
    try:
        return _summarise(run_dir, label)
    except Exception as error:
        note = f"this run cannot be read ({type(error).__name__}: {one_line(error)})"
        return {**_UNREADABLE, "id": label, "state": "failed", "note": note}


_UNREADABLE: dict[str, Any] = {
    **dict.fromkeys(("recipe", "device", "host"), ""),
    **dict.fromkeys(("steps", "rate", "left", "best", "heartbeat")),
    "rates": {},
    "step": 0,
    "estimating": False,
}


def _summarise(run_dir: RunDir, label: str) -> dict[str, Any]:
    state = run_dir.json("state.json")
    rows = [
        {**row, "time": moment, "step": float(row["step"])}
        for row in tail_rows(run_dir)
        if (moment := _number(row.get("time"))) is not None
    ]
    training = [row for row in rows if any(name.startswith("train/") for name in row)]
    rate = _rate(training)
    step = to_int(state.get("step")) or (to_int(rows[-1]["step"]) if rows else None) or 0
    steps = to_int(state.get("steps"))
    status, note = _status(state, rows)
    left = (steps - step) / rate if status == "running" and rate and steps and steps > step else None
    return {
        "id": label,
        "recipe": text(state.get("recipe")) or _recipe(run_dir),
        "state": status,
        "note": note,
        "step": step,
        "steps": steps,
        "rate": _number(rate),
        "rates": _rates(training[-1]) if training else {},
        "left": _number(left),
        "estimating": status == "running" and step < ESTIMATING_STEPS,
        "best": _best(state.get("best")),
        "device": text(state.get("device")) or "",
        "host": text(state.get("host")) or "",
        "heartbeat": _number(state.get("heartbeat")) or (_number(rows[-1]["time"]) if rows else None),
    }


def to_int(value: Any) -> int | None:
    """The number truncated to an integer; None if it is not a finite number."""
    number = _number(value)
    return int(number) if number is not None and abs(number) < 2**53 else None


def text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _best(found: Any) -> dict[str, Any] | None:
    if not isinstance(found, dict) or _number(found.get("value")) is None:
        return None
    return {"metric": text(found.get("metric")), "value": _number(found["value"]), "step": to_int(found.get("step"))}


def _rate(rows: list[dict[str, Any]]) -> float | None:
    """Steps per second: the median over the last rows, so that a validation between two rows has no effect."""
    rates = [
        (after["step"] - before["step"]) / (after["time"] - before["time"])
        for before, after in pairwise(rows)
        if after["time"] > before["time"] and after["step"] > before["step"]
    ]
    return statistics.median(rates) if rates else None


def _rates(row: dict[str, Any]) -> dict[str, float]:
    """Items, tokens and FLOPs per second and the fraction of the peak (`mfu`), as far as a row has them."""
    names = ("items_per_second", "tokens_per_second", "flops_per_second", "mfu")
    found = {name: _number(row.get(f"train/rate/{name}")) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _status(state: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, str]:
    """The state and a note. A process that was killed leaves the state `running`."""
    status = state.get("status")
    if status not in STATES:
        return "stopped", "not started yet" if not rows else "state.json cannot be read"
    if status == "failed":
        return "failed", (text(state.get("error")) or "")[:500]
    if status != "running":
        return str(status), ""
    problem = _find_death(state, rows)
    return ("failed", problem) if problem else ("running", "")


def _find_death(state: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Why a run in the state `running` is dead, or an empty text. On this machine its process decides, on another
    machine the age of its heartbeat."""
    process = to_int(state.get("pid"))
    beat = _number(state.get("heartbeat")) or 0.0
    if state.get("host") == socket.gethostname() and process is not None:
        gone = "its process was killed; `quintet resume` continues from the last checkpoint"
        # After a reboot, its pid may belong to a process that started after the heartbeat.
        return "" if is_alive(process) and _start_time(process) <= beat + CLOCK_SECONDS else gone
    intervals = [after["time"] - before["time"] for before, after in pairwise(rows)]
    patience = max(SILENT_SECONDS, 10 * max(intervals, default=0.0))
    silent = time.time() - beat
    return f"no heartbeat for {silent / 3600:.1f} hours" if silent > patience else ""


def _start_time(process: int) -> float:
    """Start time of a process; -inf if the system does not report it."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return -math.inf


def _recipe(run_dir: RunDir) -> str:
    """Recipe of a run without `state.json`, from its configuration, without the cost of parsing YAML."""
    found = re.search(r"^recipe: *([\w-]{1,40})", run_dir.text("config.yaml", max_bytes=2**20), re.MULTILINE | re.ASCII)
    return found[1] if found else ""
