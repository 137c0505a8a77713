"""A long training with validation, samples and saves holds no more memory or open files at its end than at its start.

A few hundred steps by default; `make soak` trains for an hour and keeps what it measured.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from faults.conftest import Words
from helpers import Process, children, forked, state, wait_until

MINUTES = float(os.environ.get("QUINTET_SOAK_MINUTES", "0"))
STEPS, MEASURED_EVERY = (1_000_000_000, 500) if MINUTES else (480, 20)
BUSY = (
    *("eval.every=20", "sample.every=100", "checkpoint.every=20", "checkpoint.keep=2", "log.every=10"),
    *("log.trackers=[tensorboard]", "data.num_workers=2", "optim.schedule=constant"),
)
"""Everything that happens beside the steps, as often as possible."""


@dataclass(frozen=True)
class Measurement:
    """What a process and its data workers hold, as the kernel sees it."""

    step: int
    megabytes: float
    workers_megabytes: float
    files: int
    threads: int
    processes: int


def measure(process: Process, step: int) -> Measurement:
    workers = children(process.pid)
    return Measurement(
        step,
        resident_megabytes(process.pid),
        sum(resident_megabytes(worker) for worker in workers),
        len(os.listdir(f"/proc/{process.pid}/fd")),
        len(os.listdir(f"/proc/{process.pid}/task")),
        len(workers),
    )


def resident_megabytes(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def wait_for_progress(run: Path, step: int, process: Process) -> None:
    """By state.json, which is small however long the run is."""

    def went_on() -> bool:
        return (run / "state.json").exists() and int(state(run)["step"]) >= step + MEASURED_EVERY

    wait_until(went_on, process, f"step {step + MEASURED_EVERY}", pause=0.05)


def test_memory_and_open_files_stay_flat(recipe: str, unending: Words, tmp_path: Path) -> None:
    run = tmp_path / "run"
    length = [f"train.minutes={MINUTES}"] if MINUTES else []
    measured: list[Measurement] = []
    words = [*unending, *BUSY, f"train.steps={STEPS}", *length, "--out", run]
    with forked(words, tmp_path / "said") as process:
        while process.code is None:
            try:
                wait_for_progress(run, measured[-1].step if measured else 0, process)
                measured.append(measure(process, state(run)["step"]))
            except (AssertionError, FileNotFoundError):
                break  # it ended meanwhile
        assert process.end() == 0, process.seen
    record = {"recipe": recipe, "minutes": MINUTES, "measured": [asdict(each) for each in measured]}
    if "QUINTET_SOAK_RECORD" in os.environ:
        Path(os.environ["QUINTET_SOAK_RECORD"]).write_text(json.dumps(record, indent=1) + "\n")

    assert state(run)["status"] in ("finished", "stopped")
    settled = measured[len(measured) // 4 :]
    early, late = settled[: len(settled) // 3], settled[-len(settled) // 3 :]
    assert len(early) >= 3, "too few measurements to compare"
    for what, slack in {"megabytes": 12, "workers_megabytes": 12, "files": 1, "threads": 1, "processes": 0}.items():
        before, after = (median(getattr(each, what) for each in part) for part in (early, late))
        assert after <= before + slack, f"{what} grew from {before} to {after}: {record}"
