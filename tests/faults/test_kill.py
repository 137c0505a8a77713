"""A run that is killed at any moment and resumed ends in the same bytes as one that was left alone."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from faults.conftest import Words
from helpers import (
    LAST_STEP,
    TINY,
    Process,
    error_line,
    executed,
    forked,
    last_step,
    python,
    quintet,
    steps_saved,
    succeed,
    tensor_hashes,
    wait_for_step,
    wait_until,
)

SEED = int(os.environ.get("QUINTET_KILL_SEED", random.randrange(10**6)))
"""Where the processes are killed; named in every failure, to be set again."""


def wait_for_half_a_checkpoint(run: Path, files: int, process: Process) -> None:
    """Wait until a checkpoint is being written and has so many files."""

    def being_written() -> bool:
        return any(sum(1 for _ in folder.rglob("*")) >= files for folder in run.glob("checkpoints/.writing-*"))

    wait_until(being_written, process, "a checkpoint was being written", pause=0)


@pytest.mark.parametrize("moment", ["step", "step with workers", "writing"])
def test_a_killed_run_resumes_to_the_same_bytes(moment: str, unending: Words, straight: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    chance = random.Random(f"{SEED} {moment}")
    workers = "data.workers=2" if "workers" in moment else "data.workers=0"
    # Fused AdamW and channels-last weights are the defaults; said here because they are what may go wrong.
    engine = ("engine.channels_last=true", "optim.name=adamw")
    command = python("-m", "quintet", *unending, "--out", run, *engine, workers)
    with executed(command, tmp_path / "said") as process:
        wait_for_step(run, chance.randint(6, 25), process)
        if moment == "writing":
            wait_for_half_a_checkpoint(run, chance.randint(1, 6), process)
        process.kill()
        where = f"QUINTET_KILL_SEED={SEED}, killed after step {last_step(run)} with checkpoints {steps_saved(run)}"
        # At once, while the dead process's workers may still live.
        resumed = succeed("resume", run, f"train.steps={LAST_STEP}")

    assert "resumed from" in resumed.errors, where
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP), where
    assert not list(run.glob("checkpoints/.*")), where


def test_a_run_killed_before_its_first_checkpoint_cannot_resume_and_says_so(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    late = ("checkpoint.every=1000", "eval.every=1000", "train.steps=1000000")
    with forked(["train", "vqgan", pictures, "--out", run, *TINY, *late], tmp_path / "said") as process:
        wait_for_step(run, 2, process)
        process.kill()

    outcome = quintet("resume", run)

    assert outcome.code == 2
    assert "no checkpoint yet" in error_line(outcome.errors)
    assert last_step(run) >= 2
