"""Several processes: any launcher starts them, one of them writes, and none waits for a dead one."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contract.cases import TINY_MUSE
from helpers import (
    TINY,
    accelerate_launch,
    error_line,
    executed,
    forked,
    free_port,
    log_text,
    metrics,
    state,
    steps_saved,
    succeed,
    tensor_hashes,
    torchrun,
    two_ranks,
    wait_for_step,
)
from quintet.training import engine
from quintet.training.trainer import Trainer


@pytest.fixture(scope="session")
def three_images(pictures: Path, shared: Path) -> Path:
    """A validation set that is not divisible by two processes. Read-only."""
    folder = shared / "three-images"
    folder.mkdir(exist_ok=True)
    for name in ("00000.png", "00001.png", "00002.png"):
        shutil.copy(pictures / "images" / name, folder / name)
    return folder


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_launcher_runs_the_command_unchanged(
    launcher: str, pictures: Path, three_images: Path, tmp_path: Path
) -> None:
    run, single = tmp_path / "run", tmp_path / "single"
    # Batches of two and one: the second process has no item in the last batch.
    uneven = (f"data.validation_path={three_images}", "eval.batch_size=2")
    words = (*TINY, *uneven, "engine.world_size=2", "engine.precision=fp64")
    command = ("-m", "quintet", "train", "vqgan", pictures, "--out", run, *words)
    launched = torchrun(2, *command) if launcher == "torchrun" else accelerate_launch(2, *command)
    with executed(launched, tmp_path / "said") as process:
        assert process.end() == 0, process.seen

    assert state(run)["status"] == "finished"
    assert json.loads((run / "checkpoints" / "step-00000012" / "meta.json").read_text())["world_size"] == 2

    # Only one process writes files and prints.
    assert {*Counter(line for line in process.seen.splitlines() if line.startswith("step ")).values()} == {1}
    assert process.seen.count("next: quintet eval") == 1
    assert "Warning" not in process.seen
    assert log_text(run).count("validation/psnr") == 3
    rows = Counter((row["step"], "validation/psnr" in row) for row in metrics(run))
    assert {*rows.values()} == {1}

    # The metrics are those of all three items, each counted once.
    succeed("train", "vqgan", pictures, "--out", single, *words, "engine.world_size=1")
    for ours, theirs in zip(metrics(run), metrics(single), strict=True):
        assert ours["step"] == theirs["step"]
        for name in ours.keys() - {"time"}:
            if not name.startswith(("train/time", "train/rate")):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-6, abs=1e-6), name


def test_a_message_of_all_processes_is_printed_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ("train", "muse", pictures, "--out", tmp_path / "run", *TINY_MUSE, "train.steps=2", "model.text_length=12")
    with executed(torchrun(2, "-m", "quintet", *words), tmp_path / "said") as process:
        assert process.end() == 0, process.seen
    assert process.seen.count("are truncated (model.text_length)") == 1
    # The process that encodes a shard prints the progress.
    progress = [line for line in process.seen.splitlines() if line.startswith("images encoded: ")]
    assert len(progress) == len(set(progress)) == 6, process.seen


def test_an_error_is_printed_by_every_process(pictures: Path, tmp_path: Path) -> None:
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "train.batch_size=5")
    with two_ranks(words, tmp_path) as ranks:
        assert [rank.end() for rank in ranks] == [2, 2]
    assert all("train.batch_size=5" in error_line(rank.seen) for rank in ranks)


def test_tasks_of_slurm_are_processes_of_one_run(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    step = {"SLURM_STEP_NUM_TASKS": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    words = ("train", "vqgan", pictures, "--out", run, *TINY, "train.steps=4", "engine.world_size=2")
    with ExitStack() as stack:
        tasks = [
            stack.enter_context(forked(words, tmp_path / f"said-{rank}", SLURM_PROCID=rank, SLURM_LOCALID=rank, **step))
            for rank in range(2)
        ]
        assert [task.end() for task in tasks] == [0, 0], tasks[0].seen + tasks[1].seen

    assert json.loads((run / "checkpoints" / "step-00000004" / "meta.json").read_text())["world_size"] == 2


def test_a_batch_not_divisible_by_the_processes_is_refused(pictures: Path, tmp_path: Path) -> None:
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "train.batch_size=5")
    with two_ranks(words, tmp_path) as ranks:
        assert [rank.end() for rank in ranks] == [2, 2]

    assert "train.batch_size=5" in error_line(ranks[0].seen)
    assert "2 processes" in error_line(ranks[0].seen)
    assert not (tmp_path / "run").exists()


def test_a_run_of_two_processes_resumes_exactly(pictures: Path, tmp_path: Path) -> None:
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    begin = ("train", "vqgan", pictures, *TINY, "optim.decay_steps=12", "--out")
    for words in ((*begin, straight), (*begin, parts, "train.steps=6"), ("resume", parts, "train.steps=12")):
        with two_ranks(words, tmp_path) as ranks:
            assert [rank.end() for rank in ranks] == [0, 0], ranks[0].seen + ranks[1].seen

    assert tensor_hashes(parts, 12) == tensor_hashes(straight, 12)

    # And with another world size, a single process.
    succeed("resume", parts, "train.steps=14")
    assert steps_saved(parts)[-1] == 14


@pytest.mark.fault("disagreeing-ranks")
def test_processes_with_other_keys_or_data_are_refused_by_all_with_the_difference(
    pictures: Path, tmp_path: Path
) -> None:
    fewer, run = tmp_path / "fewer", tmp_path / "run"
    shutil.copytree(pictures, fewer)
    for number in range(10, 20):
        (fewer / "images" / f"{number:05d}.png").unlink()
    begin = ("--out", run, *TINY)
    first = ("train", "vqgan", pictures, *begin)
    second = ("train", "vqgan", fewer, *begin, "optim.lr=0.01", "train.seed=1")
    with two_ranks(first, tmp_path, second=second) as ranks:
        assert [rank.end() for rank in ranks] == [2, 2], ranks[0].seen + ranks[1].seen

    for rank in ranks:
        line = error_line(rank.seen)
        assert "optim.lr is 0.0003 on rank 0 and 0.01 on rank 1" in line
        assert "train.seed is 0 on rank 0 and 1 on rank 1" in line
        assert "00010.png" in line
        assert "data.path" not in line
    assert not run.exists()


def test_processes_may_differ_in_folders_and_resources(pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures, tmp_path / "copy")
    begin = ("--out", tmp_path / "run", *TINY, "train.steps=2")
    own = ("data.num_workers=0", "engine.threads=1", f"data.cache_dir={tmp_path / 'cache'}", "log.name=second")
    second = ("train", "vqgan", tmp_path / "copy", *begin, *own)
    with two_ranks(("train", "vqgan", pictures, *begin), tmp_path, second=second) as ranks:
        assert [rank.end() for rank in ranks] == [0, 0], ranks[0].seen + ranks[1].seen


@pytest.mark.parametrize("signalled", [[0], [1], [0, 1]], ids=["first", "second", "both"])
def test_a_signal_to_any_process_stops_all_with_a_checkpoint(
    signalled: list[int], pictures: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with two_ranks(["train", "vqgan", pictures, "--out", run, *TINY, "train.steps=1000000"], tmp_path) as ranks:
        wait_for_step(run, 5, ranks[0])
        for number in signalled:
            ranks[number].send(signal.SIGTERM)
        codes = [rank.end() for rank in ranks]

    assert codes == [128 + signal.SIGTERM if number in signalled else 0 for number in range(2)], ranks[0].seen
    assert state(run)["status"] == "stopped"
    assert steps_saved(run)[-1] == state(run)["step"]
    cause = "SIGTERM" if 0 in signalled else "a signal to another process"
    assert f"stopped at step {state(run)['step']} by {cause}" in log_text(run)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_process_ends_the_other(victim: int, pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with two_ranks(["train", "vqgan", pictures, "--out", run, *TINY, "train.steps=1000000"], tmp_path) as ranks:
        wait_for_step(run, 5, ranks[0])
        ranks[victim].kill()
        survivor = ranks[1 - victim]

        assert survivor.end(within=60) == 1, survivor.seen

    assert "lost contact with another process" in error_line(survivor.seen)


def hang_at_step_six() -> None:
    """The sixth step of this process never ends."""
    original = Trainer.train_step

    def wait_for_ever(trainer: Trainer) -> dict[str, Any]:
        if trainer.step == 5:
            threading.Event().wait()
        return original(trainer)

    Trainer.train_step = wait_for_ever  # type: ignore[method-assign]


def test_a_hung_process_ends_the_run_with_the_stack_of_each(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", "vqgan", pictures, "--out", run, *TINY, "train.steps=1000000", "engine.timeout_seconds=8"]
    with two_ranks(words, tmp_path, hang_at_step_six) as ranks:
        assert [rank.end() for rank in ranks] == [1, 1]

    waiting, hung = (rank.seen for rank in ranks)
    assert "process 1 of this run did not answer within engine.timeout_seconds" in error_line(waiting)
    assert "ended because of process 0: process 1 of this run did not answer" in error_line(hung)
    assert "in wait_for_ever" in hung
    stacks = log_text(run)
    assert "process 0 failed at step 5" in stacks
    assert "engine.any_rank(" in stacks or "backward" in stacks
    assert "process 1 was ended by the watchdog" in stacks
    assert "in wait_for_ever" in stacks
    assert state(run)["status"] == "failed"


def wait_in_collectives() -> None:
    """The collectives of this process wait for long, as those of NCCL, which raise no error in Python."""
    engine.collective_timeout = lambda device, timeout: timedelta(hours=1)  # type: ignore[assignment]


def test_a_stopped_process_is_named_by_one_whose_collectives_raise_nothing(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", "vqgan", pictures, "--out", run, *TINY, "train.steps=1000000", "engine.timeout_seconds=2"]
    with two_ranks(words, tmp_path, prepare_first=wait_in_collectives) as ranks:
        wait_for_step(run, 5, ranks[0])
        ranks[1].send(signal.SIGSTOP)
        assert ranks[0].end() == 1, ranks[0].seen

    sentence = "process 1 of this run did not answer within engine.timeout_seconds"
    assert sentence in error_line(ranks[0].seen)
    assert "process 0 was ended by the watchdog (process 1 of this run" in log_text(run)
    assert "in train_step" in log_text(run)
    assert state(run)["status"] == "failed"
    assert sentence in state(run)["error"]
