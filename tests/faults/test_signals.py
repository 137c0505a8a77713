"""A run that receives a stop signal saves at the next step boundary, exits with the signal's code, and resumes."""

from __future__ import annotations

import os
import signal
from itertools import cycle, product
from pathlib import Path

import pytest

from faults.conftest import Ledger, Words
from faults.ledger import WHOLE
from faults.moments import Hold, held, hold, part, run_at
from helpers import (
    LAST_STEP,
    Process,
    error_line,
    forked,
    last_step,
    log_text,
    metrics,
    quintet,
    state,
    steps_saved,
    succeed,
    tensor_hashes,
    wait_for_step,
    wait_until,
)
from quintet.common.weights import checkpoint
from quintet.training.signals import StopRequest

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
BEGUN = 30
"""The step that runs are resumed from, to be stopped in one of the next ten."""

MOMENTS = (
    "step",
    "validation",
    "sampling",
    "loading",
    "loading with workers",
    "save, before its files",
    "save, after its files",
    "save, before its name",
    "save, before the pointer",
    "save, before old ones go",
)
TRIALS = list(product(MOMENTS, SIGNALS)) if WHOLE else list(zip(MOMENTS, cycle(SIGNALS), strict=False))
"""All combinations, or each moment once with the signals in turn."""


def name(value: object) -> str:
    return value.name if isinstance(value, signal.Signals) else str(value)


def catches(process: Process, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal, as the kernel sees it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def send_and_wait(process: Process, number: signal.Signals) -> None:
    """Send the first signal, and wait until the process has noticed it."""
    process.send(number)
    wait_until(lambda: not catches(process, number), process, "the first signal was noticed")


def resumed_and_held(moment: str, straight: Path, folder: Path) -> tuple[Path, list[object], Hold]:
    """A run, the arguments to resume it without end, and the point at which it is held."""
    # Beside a save, training goes on until the next one has to wait: it must not pass the last step compared.
    begun = BEGUN - 5 if "save" in moment else BEGUN
    run = run_at(begun, straight, folder / "run")
    words = ["resume", run, "train.steps=1000000"]
    if "loading" in moment:
        # Workers read ahead; the third batch of one is needed within the next six steps.
        return run, words, hold("loading", folder, call=3)
    # Resuming points, too.
    return run, words, hold(moment, folder, when=f"step-{begun + 5:08d}" if "pointer" in moment else "")


def with_workers(run: Path) -> None:
    """As if it had been started so; the number of workers changes no result."""
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("workers: 0", "workers: 2"))
    assert "workers: 2" in config.read_text()


def assert_sound(run: Path) -> None:
    """Every folder with a checkpoint name is a complete checkpoint."""
    for step in steps_saved(run):
        checkpoint.verify(checkpoint.folder_of(run / "checkpoints", step))


def assert_resumes_exactly(run: Path, straight: Path) -> None:
    succeed("resume", run, f"train.steps={LAST_STEP}")
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    assert not list(run.glob("checkpoints/.*"))


def assert_stopped(run: Path, number: signal.Signals, process: Process) -> None:
    assert process.end() == 128 + number, process.seen
    stopped = state(run)
    assert stopped["status"] == "stopped"
    assert steps_saved(run)[-1] == stopped["step"] == last_step(run)
    assert f"stopped at step {stopped['step']} by {number.name}; continue with `quintet resume {run}`" in log_text(run)
    assert "error:" not in process.seen
    assert_sound(run)


@pytest.mark.parametrize(("moment", "number"), TRIALS, ids=name)
def test_a_signal_at_any_time_saves_and_exits_with_its_own_code(
    moment: str, number: signal.Signals, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run, words, place = resumed_and_held(moment, straight, tmp_path)
    if "workers" in moment:
        with_workers(run)
    with forked(words, tmp_path / "said", place) as process:
        with held(process, place):
            before = last_step(run)
            send_and_wait(process, number)
        assert_stopped(run, number, process)
    assert state(run)["step"] <= before + (6 if "workers" in moment or "save" in moment else 2)

    assert_resumes_exactly(run, straight)
    ledger("signal", 1)


@pytest.mark.parametrize(("moment", "number"), TRIALS if WHOLE else TRIALS[::3], ids=name)
def test_a_second_signal_at_any_time_ends_the_process_immediately(
    moment: str, number: signal.Signals, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run, words, place = resumed_and_held(moment, straight, tmp_path)
    if "workers" in moment:
        with_workers(run)
    with forked(words, tmp_path / "said", place) as process, held(process, place):
        send_and_wait(process, signal.SIGTERM)
        process.send(number)
        # It waits still: nothing but the signal can have ended it.
        assert process.end() == -number
    assert state(run)["status"] == "running"
    assert_sound(run)

    assert_resumes_exactly(run, straight)
    ledger("second-signal", 1)


@pytest.mark.parametrize("number", part(SIGNALS), ids=name)
def test_a_signal_to_a_running_training(
    number: signal.Signals, unending: Words, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """Wherever it happens to be: nothing holds this one."""
    run = tmp_path / "run"
    with forked([*unending, "--out", run], tmp_path / "said") as process:
        wait_for_step(run, 7, process)
        process.send(number)
        assert_stopped(run, number, process)

    assert_resumes_exactly(run, straight)
    ledger("signal", 1)


@pytest.mark.parametrize("moment", part(("loading with workers", "step", "save, after its files")))
@pytest.mark.parametrize("number", part(SIGNALS), ids=name)
def test_a_signal_to_the_process_group_reaches_data_workers_too(
    number: signal.Signals, moment: str, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """Ctrl-C in a terminal and preemption do that; the trainer still needs its workers."""
    run, words, place = resumed_and_held(moment, straight, tmp_path)
    with_workers(run)
    with forked(words, tmp_path / "said", place) as process:
        with held(process, place):
            os.killpg(process.pid, number)
            wait_until(lambda: not catches(process, number), process, "the signal was noticed")
        assert_stopped(run, number, process)

    assert_resumes_exactly(run, straight)
    ledger("signal", 1)


@pytest.mark.parametrize("moment", part(("save, before its name", "save, before its files", "curves")))
@pytest.mark.parametrize("number", part(SIGNALS), ids=name)
def test_a_signal_at_the_very_end_loses_nothing(
    number: signal.Signals, moment: str, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(BEGUN, straight, tmp_path / "run")
    place = hold(moment, tmp_path, when="" if moment == "curves" else f"step-{LAST_STEP:08d}")
    with forked(["resume", run], tmp_path / "said", place) as process:
        with held(process, place):
            process.send(number)
            if moment != "curves":
                wait_until(lambda: not catches(process, number), process, "the signal was noticed")
        # After the training a signal ends the process as it ends any other.
        assert process.end() in (128 + number, -number), process.seen
    assert state(run)["status"] == "finished"
    assert_sound(run)
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)

    assert_resumes_exactly(run, straight)
    ledger("signal", 1)


@pytest.mark.parametrize("moment", part(("restoring", "first files")))
@pytest.mark.parametrize("number", part(SIGNALS), ids=name)
def test_a_signal_before_the_first_step_of_a_resumed_run_harms_nothing(
    number: signal.Signals, moment: str, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(BEGUN, straight, tmp_path / "run")
    place = hold(moment, tmp_path)
    with forked(["resume", run], tmp_path / "said", place) as process, held(process, place):
        process.send(number)
        assert process.end() in (128 + number, -number), process.seen
    assert steps_saved(run)[-1] == BEGUN
    assert_sound(run)

    assert_resumes_exactly(run, straight)
    ledger("signal", 1)


@pytest.mark.parametrize("moment", part(("first files", "lock", "readable data")))
@pytest.mark.parametrize("number", part(SIGNALS), ids=name)
def test_a_signal_before_the_first_step_of_a_new_run_leaves_nothing_in_the_way(
    number: signal.Signals, moment: str, unending: Words, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    words = [*unending, f"train.steps={LAST_STEP}", "--out", run]
    place = hold(moment, tmp_path)
    with forked(words, tmp_path / "said", place) as process, held(process, place):
        process.send(number)
        assert process.end() in (128 + number, -number), process.seen
    assert not (run / "config.yaml").exists()
    assert quintet("resume", run).code == 2

    succeed(*words)
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger("signal", 1)


def test_a_signal_while_saving_on_a_full_disk_is_an_error_that_says_so(straight: Path, tmp_path: Path) -> None:
    """Nothing could be kept: the exit code must not claim that it was."""
    run = run_at(BEGUN, straight, tmp_path / "run")
    place = hold("step", tmp_path)
    blocker = run / "checkpoints" / ".writing-step-00000031"
    with forked(["resume", run, "train.steps=1000000"], tmp_path / "said", place) as process:
        with held(process, place):
            blocker.touch()  # no folder can be made where a file is
            send_and_wait(process, signal.SIGTERM)
        assert process.end() == 1, process.seen
    assert "could not save the final checkpoint" in error_line(process.seen)
    assert steps_saved(run)[-1] == BEGUN
    blocker.unlink()

    assert_resumes_exactly(run, straight)


def test_a_handler_of_other_code_does_not_spoil_the_end_of_a_training() -> None:
    """Python names such a handler None, and cannot put it back."""
    before = signal.getsignal(signal.SIGUSR1)
    with StopRequest() as stop:
        stop._previous[signal.SIGUSR1] = None
    assert signal.signal(signal.SIGUSR1, before) == signal.SIG_DFL


def test_a_time_limit_stops_a_run_that_can_go_on(unending: Words, straight: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = succeed(*unending, "--out", run, f"train.steps={LAST_STEP}", "train.minutes=1e-6")

    stopped = state(run)
    assert stopped["status"] == "stopped"
    assert stopped["step"] == last_step(run) == steps_saved(run)[-1] == 1
    assert f"stopped at step 1 by train.minutes=1e-06; continue with `quintet resume {run}`" in outcome.errors
    assert any("validation" in name for row in metrics(run) for name in row)
    assert (run / "samples" / "step-00000001" / "samples.jsonl").is_file()

    succeed("resume", run, "train.minutes=null")

    assert state(run)["status"] == "finished"
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
