"""A run that is asked to stop saves at the next step boundary, exits with the signal's code, and resumes exactly."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from faults.conftest import Words
from helpers import (
    LAST_STEP,
    TINY,
    Process,
    forked,
    last_step,
    log_text,
    state,
    steps_saved,
    succeed,
    tensor_hashes,
    wait_for_step,
    wait_until,
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_saves_and_exits_with_its_own_code(
    number: signal.Signals, unending: Words, straight: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with forked([*unending, "--out", run], tmp_path / "said") as process:
        wait_for_step(run, 7, process)
        process.send(number)
        assert process.end() == 128 + number, process.seen
    stopped = state(run)
    assert stopped["status"] == "stopped"
    assert steps_saved(run)[-1] == stopped["step"]
    assert f"stopped at step {stopped['step']} by {number.name}; continue with `quintet resume {run}`" in log_text(run)
    assert "error" not in process.seen

    succeed("resume", run, f"train.steps={LAST_STEP}")

    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)


def catches(process: Process, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal, as the kernel sees it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_second_signal_ends_the_process_at_once(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # Steps of some seconds, so that the second signal comes long before the boundary.
    slow = ("model.image_size=256", "model.dim=32", "train.batch_size=32", "train.steps=1000000")
    with forked(["train", "vqgan", pictures, "--out", run, *TINY, *slow], tmp_path / "said") as process:
        wait_until((run / "state.json").exists, process, "the first step began")
        process.send(signal.SIGINT)
        wait_until(lambda: not catches(process, signal.SIGINT), process, "the first signal was noticed")
        process.send(signal.SIGTERM)
        assert process.end() == -signal.SIGTERM
    assert state(run)["status"] == "running"
    assert not steps_saved(run)


def test_a_time_limit_stops_a_run_that_can_go_on(unending: Words, straight: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = succeed(*unending, "--out", run, f"train.steps={LAST_STEP}", "train.minutes=1e-6")

    stopped = state(run)
    assert stopped["status"] == "stopped"
    assert stopped["step"] == last_step(run) == steps_saved(run)[-1] == 1
    assert f"continue with `quintet resume {run}`" in outcome.errors

    succeed("resume", run, "train.minutes=null")

    assert state(run)["status"] == "finished"
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
