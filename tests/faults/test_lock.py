"""One process writes a run at a time, and a dead process does not hold the lock."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

import pytest

from faults.conftest import Ledger, Words
from faults.moments import MOMENTS, before_calls, held, hold, part, run_at
from helpers import (
    DEADLINE,
    LAST_STEP,
    Process,
    error_line,
    forked,
    last_step,
    quintet,
    steps_saved,
    succeed,
    tensor_hashes,
    wait_for_step,
    wait_until,
)

PROCESSES = 4
ROUNDS = tuple(range(5))
GARBAGE = {
    "no text": b"\xff\x00\xfe",
    "nothing": b"",
    "no end of line": b"process 1 on elsewhere",
    "too long": b"process -1 on " + b"x" * 10_000,
    "no host": b"process 999999999 on \n",
}


@dataclass(frozen=True)
class Gate:
    """A `prepare` of `helpers.forked`: the process says that it is there, and waits until the gate opens."""

    moment: str
    folder: str

    def __call__(self) -> None:
        before_calls(MOMENTS[self.moment], lambda *arguments: self.wait())

    def wait(self) -> None:
        (Path(self.folder) / f"there-{os.getpid()}").touch()
        os.close(os.open(Path(self.folder) / "gate", os.O_RDONLY))

    @contextmanager
    def opened(self) -> Iterator[None]:
        descriptor = os.open(Path(self.folder) / "gate", os.O_RDWR)
        try:
            yield
        finally:
            os.close(descriptor)


@contextmanager
def at_the_same_moment(words: list[object], moment: str, folder: Path) -> Iterator[list[Process]]:
    """Processes that wait at the same function, released together."""
    os.mkfifo(folder / "gate")
    gate = Gate(moment, str(folder))
    with ExitStack() as stack:
        processes = [stack.enter_context(forked(words, folder / f"said-{n}", gate)) for n in range(PROCESSES)]
        for process in processes:
            wait_until((folder / f"there-{process.pid}").exists, process, "it came to the gate")
        stack.enter_context(gate.opened())
        yield processes


def the_one_that_goes_on(processes: list[Process], run: Path, before: int) -> Process:
    """All others have been refused, by its name."""
    running = {process.handle.sentinel: process for process in processes}
    while len(running) > 1:
        ended = connection.wait(running, DEADLINE)
        assert ended, "more than one of them trains"
        for sentinel in ended:
            loser = running.pop(sentinel)
            assert loser.end() == 2, loser.seen
    (winner,) = running.values()
    for process in processes:
        if process is not winner:
            assert f"being written by process {winner.pid} on " in error_line(process.seen)
    wait_for_step(run, before + 1, winner)
    return winner


@pytest.mark.parametrize("attempt", part(ROUNDS))
def test_only_one_of_several_processes_resumes_a_run(
    attempt: int, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(30, straight, tmp_path / "run")
    words = ["resume", run, "train.steps=1000000"]
    with at_the_same_moment(words, "lock", tmp_path) as processes:
        winner = the_one_that_goes_on(processes, run, 30)
        winner.send(signal.SIGTERM)
        assert winner.end() == 128 + signal.SIGTERM, winner.seen

    succeed("resume", run, f"train.steps={LAST_STEP}")
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger("two-processes", PROCESSES)


@pytest.mark.parametrize("attempt", part(ROUNDS))
def test_only_one_of_several_processes_starts_a_new_run(
    attempt: int, unending: Words, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    with at_the_same_moment([*unending, "--out", run], "lock", tmp_path) as processes:
        winner = the_one_that_goes_on(processes, run, 0)
        wait_for_step(run, 5, winner)
        winner.send(signal.SIGTERM)
        assert winner.end() == 128 + signal.SIGTERM, winner.seen

    succeed("resume", run, f"train.steps={LAST_STEP}")
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger("two-processes", PROCESSES)


def test_a_new_run_that_another_process_finished_meanwhile_is_not_overwritten(
    unending: Words, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """It saw an empty folder, and got the lock only after the other was through with it."""
    run = tmp_path / "run"
    words = [*unending, f"train.steps={LAST_STEP}", "--out", run]
    place = hold("lock", tmp_path)
    with forked(words, tmp_path / "said", place) as process:
        with held(process, place):
            succeed(*words)
        assert process.end() == 2, process.seen
    assert "exists already" in error_line(process.seen)
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger("two-processes", 2)


def test_a_run_being_trained_cannot_be_resumed_until_its_process_is_dead(
    unending: Words, straight: Path, tmp_path: Path, ledger: Ledger
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
    ledger("two-processes", 2)


def test_workers_that_outlive_a_killed_process_do_not_keep_its_lock(
    straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(30, straight, tmp_path / "run")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("workers: 0", "workers: 2"))
    place = hold("loading", tmp_path, call=3)
    with forked(["resume", run, "train.steps=1000000"], tmp_path / "said", place) as process, held(process, place):
        # One worker waits at the pipe, and keeps waiting as an orphan.
        process.kill()
        config.write_text(config.read_text().replace("workers: 2", "workers: 0"))
        succeed("resume", run, f"train.steps={LAST_STEP}")

    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger("two-processes", 1)


@pytest.mark.parametrize("kind", part(tuple(GARBAGE)))
def test_garbage_in_a_lock_file_is_ignored_and_not_printed(
    kind: str, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(35, straight, tmp_path / "run")
    (run / "lock").write_bytes(GARBAGE[kind])
    holder = (run / "lock").open("rb")
    fcntl.flock(holder, fcntl.LOCK_EX)
    refused = quintet("resume", run)
    assert refused.code == 2
    assert f"{run} is being written by another process; stop that process first" in error_line(refused.errors)
    holder.close()

    succeed("resume", run, "train.steps=36")

    assert steps_saved(run)[-1] == 36
    assert (run / "lock").read_bytes() == b""  # it has let go
    ledger("two-processes", 2)


def test_a_dead_process_is_not_named_as_the_owner(straight: Path, tmp_path: Path, ledger: Ledger) -> None:
    """It stays in the file until the next owner writes its name, which never happens here."""
    run = run_at(35, straight, tmp_path / "run")
    with forked(["version"], tmp_path / "said") as process:
        assert process.end() == 0
    (run / "lock").write_text(f"process {process.pid} on {socket.gethostname()}\n")
    with (run / "lock").open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        refused = quintet("resume", run)
    assert "is being written by another process" in error_line(refused.errors)
    ledger("two-processes", 1)
