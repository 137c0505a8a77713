"""The clock may move as it likes: no result, no choice and no limit depends on it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest

from faults.conftest import Ledger, Words
from faults.moments import part, run_at
from helpers import LAST_STEP, forked, log_text, metrics, state, step_folder, steps_saved, tensor_hashes, tree
from quintet.common.weights import checkpoint

YEAR = 365 * 24 * 3600.0
JUMPS = {
    "backwards": (0, -1, -2, -3, -5, -8, -13, -21, -34, -50),
    "forwards": (0, 1, 2, 3, 5, 8, 13, 21, 34, 55),
    "to and fro": (0, 11, -40, 3, -1),
}
"""Years by which each look at the clock is off, in turn."""


@dataclass(frozen=True)
class Clock:
    """A `prepare` of `helpers.forked`: each reading of the clock is off by years, or the clock is stopped."""

    years: tuple[int, ...] = (0,)
    stopped_at: float | None = None

    def __call__(self) -> None:
        now, offsets = time.time, cycle(self.years)
        localtime, strftime = time.localtime, time.strftime

        def moved() -> float:
            return (now() if self.stopped_at is None else self.stopped_at) + YEAR * next(offsets)

        time.time = moved
        time.time_ns = lambda: int(moved() * 1e9)
        time.localtime = lambda seconds=None: localtime(moved() if seconds is None else seconds)
        time.strftime = lambda form, when=None: strftime(form, when or time.localtime())


def shuffle_times(run: Path) -> None:
    """The newest files look oldest, and some are from the future."""
    for number, path in enumerate(sorted(run.rglob("*"))):
        moment = time.time() + (10 - number) * YEAR / 4
        os.utime(path, (moment, moment))


@pytest.mark.parametrize("jumps", part(("to and fro", "backwards", "forwards")))
def test_a_clock_that_jumps_by_years_while_training_changes_nothing(
    jumps: str, unending: Words, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    words = [*unending, f"train.steps={LAST_STEP}", "train.minutes=60", "log.trackers=[tensorboard]", "--out", run]
    with forked(words, tmp_path / "said", Clock(JUMPS[jumps])) as process:
        assert process.end() == 0, process.seen

    times = [row["time"] for row in metrics(run)]
    assert max(times) - min(times) > YEAR
    assert state(run)["status"] == "finished"
    assert steps_saved(run) == steps_saved(straight)
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger("clock", 1)


@pytest.mark.parametrize("years", part((-30, 40)))
def test_a_run_resumes_from_its_newest_step_whatever_the_file_times(
    years: int, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(35, straight, tmp_path / "run")
    shuffle_times(run)
    newest = max(run.glob("checkpoints/step-*"), key=lambda path: path.stat().st_mtime)
    assert newest == step_folder(run, 30)
    assert checkpoint.newest_sound(run / "checkpoints")[0] == step_folder(run, 35)

    with forked(["resume", run, "checkpoint.keep=2"], tmp_path / "said", Clock((years,))) as process:
        assert process.end() == 0, process.seen

    assert f"resumed from {step_folder(run, 35)}" in process.seen
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger("clock", 1)


def test_a_time_limit_is_not_reached_by_setting_the_clock(straight: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = run_at(35, straight, tmp_path / "run")
    words = ["resume", run, "train.minutes=60"]
    with forked(words, tmp_path / "said", Clock((0, 1, 2, 3, 4, 5, 6, 7, 8, 9))) as process:
        assert process.end() == 0, process.seen
    assert state(run)["status"] == "finished"
    ledger("clock", 1)


def test_a_time_limit_works_while_the_clock_is_stopped(straight: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = run_at(35, straight, tmp_path / "run")
    words = ["resume", run, "train.minutes=1e-6"]
    with forked(words, tmp_path / "said", Clock(stopped_at=1e9)) as process:
        assert process.end() == 0, process.seen
    assert state(run)["status"] == "stopped"
    assert "stopped at step 36" in log_text(run)
    ledger("clock", 1)


def test_event_files_of_the_same_time_are_not_overwritten(straight: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = run_at(35, straight, tmp_path / "run")
    before: dict[str, str] = {}
    for steps in (36, 37, 38):
        words = ["resume", run, "log.trackers=[tensorboard]", f"train.steps={steps}"]
        with forked(words, tmp_path / "said", Clock(stopped_at=1e9)) as process:
            assert process.end() == 0, process.seen
        after = tree(run / "tensorboard")
        assert before.items() < after.items()
        assert len(after) == len(before) + 1
        before = after
    ledger("clock", 3)
