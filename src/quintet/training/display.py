"""`Display`: training progress on the console, a live progress bar on a terminal and plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from quintet.common import streams
from quintet.common.printable import printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.progress import Progress, TaskID

MAX_SHOWN = 5
"""Number of metrics in the progress display; all of them are in metrics.jsonl."""


class Display:
    """Shows step, steps per second, time left, tokens and FLOPs per second, memory, losses and the last validation. A
    silent display (other ranks, tests) prints nothing.

    On a terminal the display is three lines that are updated in place; elsewhere it is one line per logging step.
    Errors of the console (a redirect to a full disk, a closed terminal) are ignored.
    """

    def __init__(self, title: str, silent: bool = False) -> None:
        self.title = printable(title)
        self.silent = silent
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._started = (0, 0.0)
        self._total = 0
        self._losses = ""
        self._validation = ""

    def start(self, step: int, total: int) -> None:
        self._started = (step, time.monotonic())
        self._total = total
        if self.silent or not streams.is_terminal():
            return
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn())
        self._bar = Progress(*columns, TextColumn("{task.fields[pace]}"), console=console)
        self._task = self._bar.add_task(self.title, total=total, completed=step, pace="")
        self._live = Live(get_renderable=self._lines, console=console, refresh_per_second=4)
        with suppress(OSError):
            self._live.start()

    def set_total(self, total: int) -> None:
        """Show another number of steps from now on."""
        self._total = total
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total)

    def _lines(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        assert self._bar is not None
        texts = [Text(text, no_wrap=True, overflow="ellipsis") for text in (self._losses, self._validation) if text]
        return Group(self._bar, *texts)

    def update(self, step: int, metrics: Mapping[str, float] | None = None, memory: int = 0) -> None:
        """Show a step; `metrics` and `memory` (bytes) are passed at logging steps."""
        if self._bar is not None and self._task is not None:
            if metrics is None:
                self._bar.update(self._task, completed=step)
            else:
                self._losses = summary(metrics)
                self._bar.update(self._task, completed=step, pace=self._speed(step, metrics, memory))
        elif metrics is not None and not self.silent:
            self.note(f"step {step}/{self._total}  {self._speed(step, metrics, memory)}  {summary(metrics)}")

    def _speed(self, step: int, metrics: Mapping[str, float], memory: int) -> str:
        return "  ".join([self.pace(step), *throughput(metrics), gigabytes(memory)])

    def show_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show validation metrics, codebook usage first: a summary on a terminal, all metrics elsewhere."""
        usage = {name: value for name, value in metrics.items() if name == "codebook_usage"}
        ordered = {**usage, **metrics}
        self._validation = f"validation at {step}: {summary(ordered)}"
        if self._live is None:
            self.note(f"validation at {step}: {format_metrics(ordered)}")

    def pace(self, step: int) -> str:
        first, began = self._started
        if step <= first:
            return ""
        rate = (step - first) / max(time.monotonic() - began, 1e-9)
        return f"{rate:.2f} steps/s  {duration((self._total - step) / rate)} left"

    def note(self, text: str) -> None:
        if self.silent:
            return
        shown = printable_lines(text)
        if self._live is None:
            streams.write_error(shown + "\n")
            return
        with suppress(OSError):
            self._live.console.print(shown, highlight=False, markup=False)

    def stop(self) -> None:
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()
            self._live = self._bar = None


def summary(metrics: Mapping[str, float]) -> str:
    """The most important metrics: total losses, then loss parts, then gradient norms; no timings."""
    shown = [name for name in metrics if not name.startswith(("train/time", "train/rate"))]
    shown.sort(key=lambda name: 2 if name.endswith("gradient_norm") else 0 if name.endswith("/loss") else 1)
    return format_metrics({name: metrics[name] for name in shown[:MAX_SHOWN]})


def throughput(metrics: Mapping[str, float]) -> list[str]:
    """Tokens per second, FLOP/s and the fraction of the peak (MFU), as far as they are known."""
    rates = {name.removeprefix("train/rate/"): value for name, value in metrics.items()}
    tokens, flops, mfu = (rates.get(name) for name in ("tokens_per_second", "flops_per_second", "mfu"))
    shown = [] if tokens is None else ["{}{} tokens/s".format(*with_prefix(tokens))]
    if flops is not None:
        shown.append("{} {}FLOP/s".format(*with_prefix(flops)) + ("" if mfu is None else f" ({mfu:.0%} of peak)"))
    return shown


def with_prefix(number: float) -> tuple[str, str]:
    """Three digits and a unit prefix: `12.3` and `k` for 12_345."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g}", prefix
    return f"{number:.3g}", ""


def format_metrics(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name.removeprefix('train/')} {value:.4g}" for name, value in metrics.items())


def gigabytes(memory: int) -> str:
    return f"{memory / 2**30:.2f} GB"


def duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
