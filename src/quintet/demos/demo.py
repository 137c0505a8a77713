"""Definition of a demo: its data, stages, training lengths, metrics with targets, and the summary table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quintet.training.display import duration

if TYPE_CHECKING:
    from quintet.demos.script import DemoRun


@dataclass(frozen=True)
class Metric:
    """One metric of `eval.json`, with an optional target."""

    name: str
    label: str
    target: float | None = None
    unit: str = "%"
    """`%` for a fraction; any other unit is written after the number."""
    digits: int = 1
    lower_is_better: bool = False
    """Whether the target is a maximum instead of a minimum."""
    relative_to: str | None = None
    """The target is a fraction of this other metric."""
    note: str = ""
    """Origin of the target, if it needs an explanation."""


@dataclass(frozen=True)
class DemoMode:
    """How long a demo trains: short (default), full, or a number of minutes."""

    full: bool = False
    minutes: float | None = None

    def __str__(self) -> str:
        """The command-line options of this mode."""
        return " --full" if self.full else "" if self.minutes is None else f" --minutes {self.minutes:g}"


@dataclass(frozen=True)
class Schedule:
    """Number of steps of a stage, and the interval between evaluations."""

    steps: int
    every: int
    """Steps between two evaluations, samples and checkpoints."""


def _no_keys(steps: int, num_judged: int) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Stage:
    """One training run; its folder has the name of the stage."""

    name: str
    recipe: str
    quick: Schedule
    full: Schedule
    fraction: float
    """Fraction of --minutes."""
    steps_per_second: float
    """Approximate speed on two CPU cores, to plan the steps of --minutes."""
    metrics: tuple[Metric, ...]
    keys: Callable[[int, int], Sequence[str]] = _no_keys
    """Configuration keys, given the number of steps and of judged samples."""
    frozen: tuple[tuple[str, str], ...] = ()
    """Frozen models: the name of an option such as --tokenizer, and an earlier stage."""
    interrupted: bool = False
    """Whether the run stops after two thirds of its steps and is resumed, to demonstrate `quintet resume`."""

    def first_steps(self, steps: int) -> int:
        return -(-steps * 2 // 3) if self.interrupted else steps


def _no_extra(run: DemoRun) -> list[Row]:
    return []


@dataclass(frozen=True)
class Demo:
    """The demo of one medium."""

    medium: str
    data: str
    quick_num: int
    full_num: int
    quick_num_judged: int
    full_num_judged: int
    minutes: int
    """Target for the duration of --full on two CPU cores."""
    stages: tuple[Stage, ...]
    """The last stage generates samples."""
    texts: tuple[str, ...]
    num_per_text: int
    """Number of samples for each text."""
    samples_folder: str
    outputs: str
    """Description of the outputs; OUT is the folder of the demo."""
    next_commands: tuple[str, ...]
    data_options: tuple[str, ...] = ()
    extra: Callable[[DemoRun], list[Row]] = _no_extra
    """Additional steps after training."""
    preset: str = "small"

    def num_items(self, mode: DemoMode) -> int:
        """Number of items in the dataset; with --minutes, interpolated between the other modes."""
        if mode.minutes is None:
            return self.full_num if mode.full else self.quick_num
        return int(min(max(self.full_num * mode.minutes / self.minutes, self.quick_num), self.full_num))

    def num_judged(self, mode: DemoMode) -> int:
        """Number of generated samples that are judged."""
        return self.full_num_judged if mode.full else self.quick_num_judged


# --- the summary ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One row of the summary table."""

    stage: str = ""
    metric: str = ""
    measured: str = ""
    target: str = ""
    verdict: str = ""
    seconds: float | None = None

    def cells(self) -> tuple[str, ...]:
        time = "" if self.seconds is None else duration(self.seconds)
        return (self.stage, self.metric, self.measured, self.target, self.verdict, time)


HEAD = ("stage", "metric", "measured", "target", "", "time")
RIGHT = (2, 5)
"""Right-aligned columns."""


def row_of(metric: Metric, results: Mapping[str, Any]) -> Row:
    """The row of a metric in the results of `quintet eval`."""
    value = results.get(metric.name)
    target = metric.target
    if target is not None and metric.relative_to is not None:
        reference = results.get(metric.relative_to)
        target = target * reference if isinstance(reference, float) else None
    sign = "<=" if metric.lower_is_better else ">="
    note = metric.note and f" ({metric.note})"
    text = "" if target is None else f"{sign} {_number(target, metric)}{note}"
    if not isinstance(value, float):
        return Row("", metric.label, "not measured", text, "not reached" if text else "")
    reached = target is not None and (value <= target if metric.lower_is_better else value >= target)
    verdict = "" if target is None else "reached" if reached else "not reached"
    return Row("", metric.label, _number(value, metric), text, verdict)


def _number(value: float, metric: Metric) -> str:
    if metric.unit == "%":
        return f"{100 * value:.{metric.digits}f} %"
    return f"{value:.{metric.digits}f} {metric.unit}".rstrip()


def lines(rows: Sequence[Row]) -> list[str]:
    """The rows as lines of a table."""
    cells = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    padded = [
        "  ".join(f"{cell:>{width}}" if column in RIGHT else f"{cell:<{width}}" for column, (cell, width) in pairs)
        for pairs in (enumerate(zip(line, widths, strict=True)) for line in cells)
    ]
    return [padded[0].rstrip(), "  ".join("-" * width for width in widths), *(line.rstrip() for line in padded[1:])]
