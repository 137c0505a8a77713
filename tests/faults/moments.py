"""Faults at an exact point of a command: the process waits at a named pipe when it calls a chosen function.

Waiting in a system call is what slow disks and slow data do. A signal that arrives meanwhile is a real one, and a disk
that is full afterwards was full at that point.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from faults.ledger import WHOLE
from helpers import Process, metrics, step_folder, wait_until

T = TypeVar("T")

MOMENTS = {
    "step": "quintet.training.engine:Engine.micro_batch",
    "validation": "quintet.training.loader:Loader.validation",
    "sampling": "quintet.training.run_folder:Run.write_sample",
    "loading": "quintet.training.loader:_Reader.__getitem__",
    "loading the first validation items": "quintet.training.loader:Loader.first",
    "save, before its folder": "quintet.common.weights.checkpoint:begin_folder",
    "save, before its files": "quintet.common.weights.checkpoint:_write_files",
    "save, after its files": "quintet.common.weights.checkpoint:_write_manifest",
    "save, before its name": "quintet.common.weights.checkpoint:_rename",
    "save, before the pointer": "quintet.common.weights.checkpoint:write_pointer",
    "save, before old ones go": "quintet.common.weights.checkpoint:prune",
    "metrics": "quintet.training.run_folder:Run.write_metrics",
    "log": "quintet.training.run_folder:Run.write_log",
    "state": "quintet.training.run_folder:Run.write_state",
    "first files": "quintet.training.run_folder:Run.write_initial_files",
    "lock": "quintet.training.run_folder:Run.lock",
    "readable data": "quintet.training.loader:Loader.check_readable",
    "restoring": "quintet.training.state:TrainingState.restore",
    "curves": "quintet.media.chart:write_curves",
    "tensorboard": "quintet.training.metrics:TensorBoard.log",
}
"""The function at whose call a process is held."""


def part(trials: Sequence[T]) -> Sequence[T]:
    """All trials under `make faults`, otherwise the first."""
    return trials if WHOLE else trials[:1]


@dataclass(frozen=True)
class Hold:
    """A `prepare` of `helpers.forked`: the process waits at the pipe when it calls a function for the n-th time."""

    moment: str
    pipe: str
    call: int = 1
    when: str = ""
    """Only calls count in whose arguments this text is."""

    def __call__(self) -> None:
        called = 0

        def wait(*arguments: Any) -> None:
            nonlocal called
            if not self.when or self.when in str(arguments):
                called += 1
                if called == self.call:
                    self.wait()

        before_calls(MOMENTS[self.moment], wait)

    def wait(self) -> None:
        # Data workers call the same functions; one of them waits.
        with suppress(FileExistsError):
            Path(f"{self.pipe}.taken").mkdir()
            descriptor = os.open(self.pipe, os.O_RDONLY)
            os.read(descriptor, 1)
            os.close(descriptor)


def before_calls(function: str, happen: Callable[..., None]) -> None:
    """Call `happen` with the arguments before each call of a function of this process."""
    module, _, path = function.partition(":")
    owner: Any = import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original = getattr(owner, name)

    def replaced(*arguments: Any, **named: Any) -> Any:
        happen(*arguments, *named.values())
        return original(*arguments, **named)

    setattr(owner, name, replaced)


@dataclass(frozen=True)
class All:
    """Several of them."""

    prepares: tuple[Callable[[], None], ...]

    def __call__(self) -> None:
        for prepare in self.prepares:
            prepare()


def hold(moment: str, folder: Path, call: int = 1, when: str = "") -> Hold:
    """A new pipe in the folder, to wait at."""
    pipe = folder / f"pipe-{sum(1 for _ in folder.glob('pipe-*'))}"
    os.mkfifo(pipe)
    return Hold(moment, str(pipe), call, when)


@contextmanager
def held(process: Process, where: Hold) -> Iterator[None]:
    """The process waits at its function until the end of the block."""
    descriptor = -1

    def waits() -> bool:
        nonlocal descriptor
        with suppress(OSError):  # no reader yet
            descriptor = os.open(where.pipe, os.O_WRONLY | os.O_NONBLOCK)
        return descriptor >= 0

    wait_until(waits, process, f"the moment '{where.moment}'")
    # Awake again, it is on its way from opening the pipe to reading it, and would see a signal only afterwards.
    wait_until(lambda: sleeps(process), process, f"it was held in the moment '{where.moment}'")
    try:
        yield
    finally:
        os.close(descriptor)


def sleeps(process: Process) -> bool:
    """Whether it waits in a system call."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def run_at(step: int, straight: Path, target: Path) -> Path:
    """The run as it was at that step, when its process died: cheaper than to train that far again."""
    shutil.copytree(straight, target, ignore=shutil.ignore_patterns("step-*", "samples", "curves.png", "best"))
    for saved in (step - 5, step):
        shutil.copytree(step_folder(straight, saved), step_folder(target, saved))
    rows = [json.dumps(row) for row in metrics(straight) if row["step"] <= step]
    (target / "metrics.jsonl").write_text("\n".join([*rows, ""]), encoding="utf-8")
    return target
