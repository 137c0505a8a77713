"""One process writes a run at a time, and a dead one does not keep the place."""

from __future__ import annotations

import signal
from pathlib import Path

from faults.conftest import Words
from helpers import (
    LAST_STEP,
    error_line,
    forked,
    last_step,
    quintet,
    succeed,
    tensor_hashes,
    wait_for_step,
    wait_until,
)


def test_a_run_being_trained_cannot_be_resumed_until_its_process_is_dead(
    unending: Words, straight: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with forked([*unending, "--out", run], tmp_path / "said") as process:
        wait_until((run / "checkpoints" / "latest").exists, process, "the first checkpoint")
        process.send(signal.SIGSTOP)

        second = quintet("resume", run)
        another = quintet(*unending, "--out", run)

        assert second.code == another.code == 2
        assert f"being written by process {process.pid}" in error_line(second.errors)
        assert "exists already" in error_line(another.errors)

        process.send(signal.SIGCONT)
        wait_for_step(run, last_step(run) + 2, process)
        process.kill()
    assert str(process.pid) in (run / "lock").read_text()

    succeed("resume", run, f"train.steps={LAST_STEP}")

    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
