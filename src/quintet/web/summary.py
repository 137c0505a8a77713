"""Owns one line of the list of runs: what state a run is in, how far it is, how fast, and what was best.

Made from `state.json` and the end of `metrics.jsonl`, so that a thousand runs are listed in a moment.
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

from quintet.common.processes import is_alive
from quintet.web.figures import tail_rows
from quintet.web.folders import Place

SILENT_SECONDS = 900.0
"""Without a sign of life for so long, and for ten times as long as between two rows, a process of another machine is
taken for dead."""
CLOCK_SECONDS = 60.0
"""How far the times of a process's start and of its heartbeat may be off."""
STATES = ("running", "finished", "stopped", "failed")


def summarise(place: Place, label: str) -> dict[str, Any]:
    state = place.json("state.json")
    rows = [row for row in tail_rows(place) if isinstance(row.get("time"), (int, float))]
    pace = [row for row in rows if any(name.startswith("train/") for name in row)]
    rate = _rate(pace)
    step = whole(state.get("step")) or (whole(rows[-1]["step"]) if rows else None) or 0
    steps = whole(state.get("steps"))
    status, note = _status(state, rows)
    left = (steps - step) / rate if status == "running" and rate and steps and steps > step else None
    items = pace[-1].get("train/rate/items_per_second") if pace else None
    return {
        "id": label,
        "recipe": text(state.get("recipe")) or _recipe(place),
        "state": status,
        "note": note,
        "step": step,
        "steps": steps,
        "rate": rate,
        "items_rate": items if isinstance(items, float) and math.isfinite(items) else None,
        "left": left,
        "best": _best(state.get("best")),
        "device": text(state.get("device")) or "",
        "host": text(state.get("host")) or "",
        "heartbeat": _number(state.get("heartbeat")) or (_number(rows[-1]["time"]) if rows else None),
    }


def whole(value: Any) -> int | None:
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
    return {"metric": text(found.get("metric")), "value": _number(found["value"]), "step": whole(found.get("step"))}


def _rate(rows: list[dict[str, Any]]) -> float | None:
    """Steps a second: the median between the last rows, so that a validation between two of them does not count."""
    rates = [
        (after["step"] - before["step"]) / (after["time"] - before["time"])
        for before, after in pairwise(rows)
        if after["time"] > before["time"] and after["step"] > before["step"]
    ]
    return statistics.median(rates) if rates else None


def _status(state: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, str]:
    """The state, and a word about it. A process that was killed leaves `running` behind it."""
    status = state.get("status")
    if status not in STATES:
        return "stopped", "it has not begun" if not rows else "state.json cannot be read"
    if status == "failed":
        return "failed", (text(state.get("error")) or "")[:500]
    if status != "running":
        return str(status), ""
    death = _death(state, rows)
    return ("failed", death) if death else ("running", "")


def _death(state: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """What says that a run which calls itself running is dead, or nothing. On this machine its process decides, on
    another how long it has been silent."""
    process = whole(state.get("pid"))
    beat = _number(state.get("heartbeat")) or 0.0
    if state.get("host") == socket.gethostname() and process is not None:
        gone = "its process is gone without a word; `quintet resume` goes on from the last checkpoint"
        # After a restart its number may be that of a younger process, which did not give the heartbeat.
        return "" if is_alive(process) and _began(process) <= beat + CLOCK_SECONDS else gone
    between = [after["time"] - before["time"] for before, after in pairwise(rows)]
    patience = max(SILENT_SECONDS, 10 * max(between, default=0.0))
    silent = time.time() - beat
    return f"no sign of life for {silent / 3600:.1f} hours" if silent > patience else ""


def _began(process: int) -> float:
    """When a process was started; long ago, where the system does not say."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return -math.inf


def _recipe(place: Place) -> str:
    """From the configuration of a run that has not begun, without the time that reading YAML takes."""
    found = re.search(r"^recipe: *([\w-]{1,40})", place.text("config.yaml", most=2**20), re.MULTILINE | re.ASCII)
    return found[1] if found else ""
