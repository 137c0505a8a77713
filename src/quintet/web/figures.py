"""Owns the curves of a run: `metrics.jsonl` read a piece at a time, and as few points of it as a screen can show."""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from quintet.web.folders import Missing, Place, parsed

Row = dict[str, Any]

PIECE = 2**18
"""Bytes taken at once: a piece is parsed in a few milliseconds, between which other viewers get their turn."""
LONGEST_LINE = 2**24
SKETCHED_BYTES = 2**22
"""Of a larger file there is a sketch first, while all of it is read: a browser waits for a few parts of it only."""
SKETCH_PARTS = 64
SKETCH_PART_BYTES = 2**14
MOST_NAMES = 1_000
LONGEST_NAME = 200
NUMBERS = frozenset({int, float})
NOT_FIGURES = frozenset({"step", "time"})


class Column:
    """One metric: its values and the steps they are of."""

    def __init__(self) -> None:
        self.steps = array("d")
        self.values = array("d")

    def points(self, start: float, end: float, most: int) -> dict[str, list[float]]:
        """At most `most` points of the steps from `start` to `end`: means, and the span that each of them stands for.

        With one neighbour on either side, so that a line enters and leaves the picture.
        """
        steps, values = np.array(self.steps), np.array(self.values)
        if len(steps) > 1 and (np.diff(steps) < 0).any():
            order = np.argsort(steps, kind="stable")
            steps, values = steps[order], values[order]
        first = max(int(np.searchsorted(steps, start)) - 1, 0)
        last = int(np.searchsorted(steps, end, side="right")) + 1
        steps, values = steps[first:last], values[first:last]
        if len(steps) <= most:
            return {"steps": steps.tolist(), "mean": _short(values)}
        bounds = np.linspace(0, len(steps), most, endpoint=False).astype(np.int64)
        counts = np.diff(np.append(bounds, len(steps)))
        return {
            "steps": np.round(np.add.reduceat(steps, bounds) / counts, 1).tolist(),
            "mean": _short(np.add.reduceat(values, bounds) / counts),
            "low": _short(np.minimum.reduceat(values, bounds)),
            "high": _short(np.maximum.reduceat(values, bounds)),
        }


class Figures:
    """All columns of one `metrics.jsonl`. `advance` reads what was added, and starts anew where a resumed run has
    shortened the file or put another in its place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._reset(0)

    def _reset(self, inode: int) -> None:
        self._inode = inode
        self._offset = 0
        self.rows = 0
        self.columns: dict[str, Column] = {}
        self.last: Row = {}

    @property
    def weight(self) -> int:
        """Values held in memory. Counted over a copy: whoever asks does not hold off the reader, which adds columns."""
        return sum(len(column.values) for column in list(self.columns.values()))

    def advance(self) -> tuple[bool, list[Row]]:
        """Whether it started anew, and the new rows; of many only the last thousand. A half-written line waits."""
        fresh: list[Row] = []
        try:
            file = self._place.open("metrics.jsonl")
        except Missing:
            anew = self.rows > 0
            self._reset(0)
            return anew, []
        with file:
            found = os.fstat(file.fileno())
            changed = found.st_ino != self._inode or found.st_size < self._offset
            anew = changed and self.rows > 0
            if changed:
                self._reset(found.st_ino)
            file.seek(self._offset)
            for rows in self._pieces(file):
                self.add(rows)
                fresh = [*fresh, *rows][-1_000:]
        return anew, fresh

    def add(self, rows: list[Row]) -> None:
        """Neighbours mostly have the same metrics, and are then added column by column."""
        for names, codebook_smoothing in groupby(rows, key=tuple):
            self._add(names, list(codebook_smoothing))

    def _pieces(self, file: Any) -> Iterator[list[Row]]:
        rest = b""
        while piece := file.read(PIECE):
            whole, newline, rest = (rest + piece).rpartition(b"\n")
            if newline:
                self._offset += len(whole) + 1
                yield _rows(whole)
            elif len(rest) > LONGEST_LINE:  # no line of ours
                self._offset += len(rest)
                rest = b""

    def _add(self, names: tuple[str, ...], rows: list[Row]) -> None:
        self.rows += len(rows)
        steps = [row["step"] for row in rows]
        for name in names:
            column = None if name in NOT_FIGURES else self._column(name)
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

    def _column(self, name: str) -> Column | None:
        known = self.columns.get(name)
        if known is None and len(self.columns) < MOST_NAMES and len(name) <= LONGEST_NAME:
            known = self.columns[name] = Column()
        return known


def sketch(place: Place) -> Figures:
    """Some rows of all parts of a file that is too large to be read while somebody waits."""
    figures = Figures(place)
    with place.open("metrics.jsonl") as file:
        last = os.fstat(file.fileno()).st_size - SKETCH_PART_BYTES
        for part in range(SKETCH_PARTS):
            file.seek(last * part // (SKETCH_PARTS - 1))
            lines = file.read(SKETCH_PART_BYTES).split(b"\n")
            figures.add(_rows(b"\n".join(lines[1 if part else 0 : -1])))
    return figures


def _rows(lines: bytes) -> list[Row]:
    """The rows of whole lines. All at once, which is quicker; one by one where one of them is broken."""
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
        return {*map(type, values)} <= NUMBERS and all(map(math.isfinite, values))
    except OverflowError:  # an integer beyond all floats
        return False


def _finite(value: Any) -> float | None:
    """The exact types: a bool is an int too, and no figure."""
    return float(value) if _all_finite([value]) else None


def tail_rows(place: Place, most: int = 2**14) -> list[Row]:
    """The last rows of a file that is not read whole."""
    try:
        lines = place.tail("metrics.jsonl", most=most).split(b"\n")
    except (OSError, Missing):
        return []
    # The first line is cut through unless it is the first of all: by itself, so that the others are read at once.
    return [*_rows(b"\n".join(lines[:-1][:1])), *_rows(b"\n".join(lines[1:-1]))]


def _short(values: Any) -> list[float]:
    """Six digits: more than a screen shows, and half as many bytes."""
    with np.errstate(divide="ignore"):
        scale = 10.0 ** (5 - np.clip(np.floor(np.log10(np.abs(values))), -300, 300))
    shortened: list[float] = (np.round(values * scale) / scale).tolist()
    return shortened
