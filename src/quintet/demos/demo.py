"""What a demo is: its data, its stages and how long each form of it trains; the figures it is measured by, the bars
they are held to, and the table of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quintet.training.display import duration

if TYPE_CHECKING:
    from quintet.demos.script import Show


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
class Form:
    """How much of a demo is asked for: in short, in full, or as far as some minutes of training go."""

    full: bool = False
    minutes: float | None = None

    def __str__(self) -> str:
        """As it is asked for on the command line."""
        return " --full" if self.full else "" if self.minutes is None else f" --minutes {self.minutes:g}"


@dataclass(frozen=True)
class Length:
    """How far a stage goes."""

    steps: int
    every: int
    """Steps between two looks at itself."""


def _no_keys(steps: int, judged: int) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Stage:
    """One training; its run is a folder of its name."""

    name: str
    recipe: str
    quick: Length
    full: Length
    share: float
    """Of given minutes."""
    pace: float
    """Steps a second, roughly, of two CPU cores; given minutes are planned with it."""
    figures: tuple[Figure, ...]
    keys: Callable[[int, int], Sequence[str]] = _no_keys
    """Of the steps and of how many samples are judged."""
    links: tuple[tuple[str, str], ...] = ()
    """What it stands on: --tokenizer and the like, and a stage before."""
    interrupted: bool = False
    """Whether it is stopped after two thirds of its steps and resumed, to show that this works."""

    def first_steps(self, steps: int) -> int:
        return -(-steps * 2 // 3) if self.interrupted else steps


def _nothing(show: Show) -> list[Row]:
    return []


@dataclass(frozen=True)
class Demo:
    """All of a medium."""

    medium: str
    data: str
    quick_num: int
    full_num: int
    quick_judged: int
    full_judged: int
    minutes: int
    """In which the whole of it should be done in full, on two CPU cores."""
    stages: tuple[Stage, ...]
    """The last of them makes samples."""
    texts: tuple[str, ...]
    each: int
    """Samples of each text."""
    made: str
    """The folder that they go to."""
    look: str
    """What there is to look at in OUT, the folder of the demo."""
    then: tuple[str, ...]
    """Commands to go on with."""
    data_words: tuple[str, ...] = ()
    besides: Callable[[Show], list[Row]] = _nothing
    """What else is shown once all is trained."""
    preset: str = "small"

    def num(self, form: Form) -> int:
        """Items of data. With minutes: between those of the other forms, as they are between in time."""
        if form.minutes is None:
            return self.full_num if form.full else self.quick_num
        return int(min(max(self.full_num * form.minutes / self.minutes, self.quick_num), self.full_num))

    def judged(self, form: Form) -> int:
        return self.full_judged if form.full else self.quick_judged


# --- the summary ----------------------------------------------------------------------------------------------


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
