"""Definition of a demo: its data, stages, training lengths, metrics with targets, and the summary table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from quintet.training.display import duration

if TYPE_CHECKING:
    from quintet.demos.script import DemoRun


Length = Literal["quick", "full"]
"""The two lengths of a demo, each with its own targets."""


@dataclass(frozen=True)
class Metric:
    """One metric of `eval.json`, with a target for each length of the demo."""

    name: str
    label: str
    quick: float | None = None
    """Target of the short demo; None: there is none, and the metric is printed without a verdict."""
    full: float | None = None
    """Target of --full; None: there is none."""
    unit: str = "%"
    """`%` for a fraction; any other unit is written after the number."""
    digits: int = 1
    lower_is_better: bool = False
    """Whether the target is a maximum instead of a minimum."""
    note: str = ""
    """Origin of the target, if it needs an explanation."""

    def target(self, length: Length | None) -> float | None:
        return None if length is None else self.full if length == "full" else self.quick

    def reached(self, value: object, length: Length | None) -> bool | None:
        """Whether a measured value reaches the target; None if there is no target."""
        target = self.target(length)
        if target is None:
            return None
        return isinstance(value, float) and (value <= target if self.lower_is_better else value >= target)


@dataclass(frozen=True)
class DemoMode:
    """How a demo trains: short (default), full, or a number of minutes; and the random seed of its stages."""

    full: bool = False
    minutes: float | None = None
    seed: int | None = None
    """`train.seed` of all stages; None uses its default. The data does not depend on it."""

    def __str__(self) -> str:
        """The command-line options of this mode."""
        length = " --full" if self.full else "" if self.minutes is None else f" --minutes {self.minutes:g}"
        return length if self.seed is None else f"{length} --seed {self.seed}"


@dataclass(frozen=True)
class Schedule:
    """Number of steps of a stage, the interval between evaluations, and the keys of this length."""

    steps: int
    every: int
    """Steps between two evaluations, samples and checkpoints."""
    keys: tuple[str, ...] = ()
    """Configuration keys of this length only, such as a smaller model for the short demo."""


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
    """Configuration keys of both lengths, given the number of steps and of judged samples."""
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
    """Target for the duration of --full on two CPU cores, in minutes."""
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

    def length(self, mode: DemoMode) -> Length | None:
        """The length whose targets hold; None for --minutes below the duration of --full, for which none are set."""
        if mode.minutes is None:
            return "full" if mode.full else "quick"
        return "full" if mode.minutes >= self.minutes else None

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


def row_of(metric: Metric, results: Mapping[str, Any], length: Length | None) -> Row:
    """The row of a metric in the results of `quintet eval`, with the target and the verdict of a length."""
    value, target = results.get(metric.name), metric.target(length)
    sign = "<=" if metric.lower_is_better else ">="
    note = metric.note and f" ({metric.note})"
    text = "" if target is None else f"{sign} {_number(target, metric)}{note}"
    measured = _number(value, metric) if isinstance(value, float) else "not measured"
    return Row("", metric.label, measured, text, verdict_of(metric.reached(value, length)))


def verdict_of(reached: bool | None) -> str:
    return "" if reached is None else "reached" if reached else "not reached"


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
