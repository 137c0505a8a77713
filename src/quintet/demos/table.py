"""Owns the summary of a demo: one table of what was measured, the bar it was held to, and the time it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintet.training.display import duration


@dataclass(frozen=True)
class Figure:
    """One figure of `eval.json`."""

    name: str
    what: str
    bar: float | None = None
    unit: str = "%"
    """`%`: a share. Anything else is written behind the number."""
    digits: int = 1
    below: bool = False
    """Whether the bar is the most it may be, not the least."""
    of: str | None = None
    """The bar is that share of another figure."""
    why: str = ""
    """Where the bar comes from, if that is not plain."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    stage: str = ""
    figure: str = ""
    measured: str = ""
    bar: str = ""
    verdict: str = ""
    seconds: float | None = None

    def cells(self) -> tuple[str, ...]:
        time = "" if self.seconds is None else duration(self.seconds)
        return (self.stage, self.figure, self.measured, self.bar, self.verdict, time)


HEAD = ("stage", "figure", "measured", "bar", "", "time")
RIGHT = (2, 5)
"""Columns of numbers."""


def row_of(figure: Figure, found: Mapping[str, Any]) -> Row:
    value = found.get(figure.name)
    bar = figure.bar
    if bar is not None and figure.of is not None:
        bar = bar * found[figure.of] if isinstance(found.get(figure.of), float) else None
    sign = "<=" if figure.below else ">="
    words = "" if bar is None else f"{sign} {_number(bar, figure)}{figure.why and f' ({figure.why})'}"
    if not isinstance(value, float):
        return Row("", figure.what, "not measured", words, "not reached" if words else "")
    reached = bar is not None and (value <= bar if figure.below else value >= bar)
    verdict = "" if bar is None else "reached" if reached else "not reached"
    return Row("", figure.what, _number(value, figure), words, verdict)


def _number(value: float, figure: Figure) -> str:
    if figure.unit == "%":
        return f"{100 * value:.{figure.digits}f} %"
    return f"{value:.{figure.digits}f} {figure.unit}".rstrip()


def lines(rows: Sequence[Row]) -> list[str]:
    cells = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    laid = [
        "  ".join(f"{cell:>{width}}" if column in RIGHT else f"{cell:<{width}}" for column, (cell, width) in pairs)
        for pairs in (enumerate(zip(line, widths, strict=True)) for line in cells)
    ]
    return [laid[0].rstrip(), "  ".join("-" * width for width in widths), *(line.rstrip() for line in laid[1:])]
