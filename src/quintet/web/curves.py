"""Curves of a run: reads `metrics.jsonl` incrementally and reduces it to as many points as a screen can show."""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from quintet.web.folders import Missing, RunDir, parsed

Row = dict[str, Any]

PIECE = 2**18
"""Bytes read at once: a piece is parsed in a few milliseconds, after which other threads can run."""
MAX_LINE_BYTES = 2**24
SKETCHED_BYTES = 2**22
"""Of a larger file, a sketch from a few parts is shown first, while the complete file is read."""
SKETCH_PARTS = 64
SKETCH_PART_BYTES = 2**14
MAX_NAMES = 1_000
MAX_VALUE = 1e300
"""Larger values count as not finite: their sums would be infinite."""
MAX_NAME_LENGTH = 200
NUMBERS = frozenset({int, float})
NOT_METRICS = frozenset({"step", "time"})


class Column:
    """The steps and values of one metric."""

    def __init__(self) -> None:
        self.steps = array("d")
        self.values = array("d")

    def points(self, start: float, end: float, max_points: int) -> dict[str, list[float]]:
        """At most `max_points` points from step `start` to `end`: means, with their minima and maxima if reduced.

        Includes one point before and after the range, so that the line reaches both edges of the chart.
        """
        steps, values = np.array(self.steps), np.array(self.values)
        if len(steps) > 1 and (np.diff(steps) < 0).any():
            order = np.argsort(steps, kind="stable")
            steps, values = steps[order], values[order]
        first = max(int(np.searchsorted(steps, start)) - 1, 0)
        last = int(np.searchsorted(steps, end, side="right")) + 1
        steps, values = steps[first:last], values[first:last]
        if len(steps) <= max_points:
            return {"steps": steps.tolist(), "mean": _short(values)}
        bounds = np.linspace(0, len(steps), max_points, endpoint=False).astype(np.int64)
        counts = np.diff(np.append(bounds, len(steps)))
        return {
            "steps": np.round(np.add.reduceat(steps, bounds) / counts, 1).tolist(),
            "mean": _short(np.add.reduceat(values, bounds) / counts),
            "low": _short(np.minimum.reduceat(values, bounds)),
            "high": _short(np.maximum.reduceat(values, bounds)),
        }


class MetricsLog:
    """All columns of one `metrics.jsonl`. `advance` reads new rows, and starts again if a resumed run has shortened or
    replaced the file."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._reset(0)

    def _reset(self, inode: int) -> None:
        self._inode = inode
        self._offset = 0
        self.rows = 0
        self.columns: dict[str, Column] = {}
        self.last: Row = {}

    @property
    def num_values(self) -> int:
        """Number of values in memory. Counted over a copy, because the reader may add columns at the same time."""
        return sum(len(column.values) for column in list(self.columns.values()))

    def advance(self) -> tuple[bool, list[Row]]:
        """Whether the file was read again from its start, and the last thousand new rows. A half-written line waits."""
        fresh: list[Row] = []
        try:
            file = self._run_dir.open("metrics.jsonl")
        except Missing:
            reset = self.rows > 0
            self._reset(0)
            return reset, []
        with file:
            found = os.fstat(file.fileno())
            changed = found.st_ino != self._inode or found.st_size < self._offset
            reset = changed and self.rows > 0
            if changed:
                self._reset(found.st_ino)
            file.seek(self._offset)
            for rows in self._pieces(file):
                self.add(rows)
                fresh = [*fresh, *map(self._shown, rows[-1_000:])][-1_000:]
        return reset, fresh

    def add(self, rows: list[Row]) -> None:
        """Add rows; consecutive rows with the same metrics are added column by column."""
        for names, group in groupby(rows, key=tuple):
            self._add(names, list(group))

    def _pieces(self, file: Any) -> Iterator[list[Row]]:
        rest = b""
        while piece := file.read(PIECE):
            lines, newline, rest = (rest + piece).rpartition(b"\n")
            if newline:
                self._offset += len(lines) + 1
                yield _rows(lines)
            elif len(rest) > MAX_LINE_BYTES:  # not a line that quintet wrote
                self._offset += len(rest)
                rest = b""

    def _add(self, names: tuple[str, ...], rows: list[Row]) -> None:
        self.rows += len(rows)
        steps = [row["step"] for row in rows]
        for name in names:
            column = None if name in NOT_METRICS else self._column(name)
            if column is None:
                continue
            values = [row[name] for row in rows]
            if not _all_finite(values):
                pairs = [
                    (step, number)
                    for step, value in zip(steps, values, strict=True)
                    if (number := _finite(value)) is not None
                ]
                column.steps.extend(step for step, _ in pairs)
                values = [number for _, number in pairs]
            else:
                column.steps.extend(steps)
            column.values.extend(values)
            if values:
                self.last[name] = values[-1]

    def _shown(self, row: Row) -> Row:
        """The numbers of a row that viewers know a column of."""
        return {
            name: number
            for name, value in row.items()
            if (name in NOT_METRICS or name in self.columns) and (number := _finite(value)) is not None
        }

    def _column(self, name: str) -> Column | None:
        known = self.columns.get(name)
        if known is None and len(self.columns) < MAX_NAMES and len(name) <= MAX_NAME_LENGTH:
            known = self.columns[name] = Column()
        return known


def sketch(run_dir: RunDir) -> MetricsLog:
    """Some rows from all parts of a file that is too large to be read while a viewer waits."""
    metrics = MetricsLog(run_dir)
    with run_dir.open("metrics.jsonl") as file:
        last = os.fstat(file.fileno()).st_size - SKETCH_PART_BYTES
        for part in range(SKETCH_PARTS):
            file.seek(last * part // (SKETCH_PARTS - 1))
            lines = file.read(SKETCH_PART_BYTES).split(b"\n")
            metrics.add(_rows(b"\n".join(lines[1 if part else 0 : -1])))
    return metrics


def _rows(lines: bytes) -> list[Row]:
    """Rows of complete lines. Parsed all at once, which is faster, or one by one if a line is invalid."""
    text = lines.decode("utf-8", errors="replace")
    try:
        found = json.loads(f"[{text.replace(chr(10), ',')}]")
    except (ValueError, RecursionError):
        found = [parsed(line) for line in text.split("\n")]
    if {*map(type, found)} == {dict} and _all_finite([row.get("step") for row in found]):
        return list(found)
    return [row for row in found if isinstance(row, dict) and _finite(row.get("step")) is not None]


def _all_finite(values: list[Any]) -> bool:
    try:
        return (
            {*map(type, values)} <= NUMBERS
            and all(map(math.isfinite, values))
            and (not values or -MAX_VALUE <= min(values) <= max(values) <= MAX_VALUE)
        )
    except OverflowError:  # an integer too large for a float
        return False


def _finite(value: Any) -> float | None:
    """The value as a float; None unless it is a finite int or float (a bool is not)."""
    return float(value) if _all_finite([value]) else None


def tail_rows(run_dir: RunDir, max_bytes: int = 2**14) -> list[Row]:
    """The last rows of a file, without reading all of it."""
    try:
        lines = run_dir.tail("metrics.jsonl", max_bytes=max_bytes).split(b"\n")
    except (OSError, Missing):
        return []
    # The first line may be incomplete; it is parsed alone, so that the others are parsed at once.
    return [*_rows(b"\n".join(lines[:-1][:1])), *_rows(b"\n".join(lines[1:-1]))]


def _short(values: Any) -> list[float]:
    """Values rounded to six digits: more than a screen shows, with half as many bytes."""
    with np.errstate(divide="ignore"):
        scale = 10.0 ** (5 - np.clip(np.floor(np.log10(np.abs(values))), -300, 300))
    shortened: list[float] = (np.round(values * scale) / scale).tolist()
    return shortened
