"""Several processes: started by any launcher, one of them writes, and none waits for a dead one."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from helpers import (
    TINY,
    Process,
    error_line,
    executed,
    forked,
    free_port,
    log_text,
    metrics,
    python,
    state,
    steps_saved,
    succeed,
    tensor_hashes,
    torchrun,
    wait_for_step,
)


@pytest.fixture(scope="session")
def three_pictures(pictures: Path, shared: Path) -> Path:
    """A validation set that two processes cannot share evenly. Read only."""
    folder = shared / "three-pictures"
    folder.mkdir(exist_ok=True)
    for name in ("00000.png", "00001.png", "00002.png"):
        shutil.copy(pictures / "images" / name, folder / name)
    return folder


def accelerate_launch(*words: object) -> list[str]:
    # Two processes on CPUs: with --cpu accelerate would start a single one.
    options = ("--num_machines", 1, "--mixed_precision", "no", "--dynamo_backend", "no")
    place = ("--main_process_port", free_port())
    return python("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", 2, *options, *place, *words)


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_launcher_runs_the_command_unchanged(
    launcher: str, pictures: Path, three_pictures: Path, tmp_path: Path
) -> None:
    run, single = tmp_path / "run", tmp_path / "single"
    # Batches of two and one: the second process has no item of its own in the last.
    uneven = (f"data.validation_path={three_pictures}", "eval.batch_size=2")
    words = (*TINY, *uneven, "engine.processes=2", "engine.precision=fp64")
    command = ("-m", "quintet", "train", "vqgan", pictures, "--out", run, *words)
    launched = torchrun(2, *command) if launcher == "torchrun" else accelerate_launch(*command)
    with executed(launched, tmp_path / "said") as process:
        assert process.end() == 0, process.seen

    assert state(run)["status"] == "finished"
    assert json.loads((run / "checkpoints" / "step-00000012" / "meta.json").read_text())["world_size"] == 2

    # Only one process writes and speaks.
    assert {*Counter(line for line in process.seen.splitlines() if line.startswith("step ")).values()} == {1}
    assert process.seen.count("next: quintet eval") == 1
    assert "Warning" not in process.seen
    assert log_text(run).count("validation/psnr") == 3
    rows = Counter((row["step"], "validation/psnr" in row) for row in metrics(run))
    assert {*rows.values()} == {1}

    # The figures are those of all three items, each counted once.
    succeed("train", "vqgan", pictures, "--out", single, *words, "engine.processes=1")
    for ours, theirs in zip(metrics(run), metrics(single), strict=True):
        assert ours["step"] == theirs["step"]
        for name in ours.keys() - {"time"}:
            if not name.startswith(("train/time", "train/rate")):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-6, abs=1e-6), name


@contextmanager
def two_ranks(words: Iterable[object], place: Path) -> Iterator[list[Process]]:
    """Two processes of one world, started by nobody who would clean up after them."""
    address = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    with ExitStack() as stack:
        yield [
            stack.enter_context(forked(words, place / f"said-{rank}", RANK=rank, LOCAL_RANK=rank, **address))
            for rank in range(2)
        ]


def test_a_batch_that_the_processes_cannot_share_is_refused(pictures: Path, tmp_path: Path) -> None:
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "train.batch_size=5")
    with two_ranks(words, tmp_path) as ranks:
        assert [rank.end() for rank in ranks] == [2, 2]

    assert "train.batch_size=5" in error_line(ranks[0].seen)
    assert "2 processes" in error_line(ranks[0].seen)
    assert not (tmp_path / "run").exists()


def test_a_run_of_two_processes_resumes_exactly(pictures: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    begin = ("train", "vqgan", pictures, *TINY, "optim.horizon=12", "--out")
    for words in ((*begin, whole), (*begin, parts, "train.steps=6"), ("resume", parts, "train.steps=12")):
        with two_ranks(words, tmp_path) as ranks:
            assert [rank.end() for rank in ranks] == [0, 0], ranks[0].seen + ranks[1].seen

    assert tensor_hashes(parts, 12) == tensor_hashes(whole, 12)

    # And in a world of another size, which one process alone is.
    succeed("resume", parts, "train.steps=14")
    assert steps_saved(parts)[-1] == 14


@pytest.mark.parametrize("asked", [[0], [1], [0, 1]], ids=["first", "second", "both"])
def test_a_signal_to_any_process_stops_all_with_a_checkpoint(asked: list[int], pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with two_ranks(["train", "vqgan", pictures, "--out", run, *TINY, "train.steps=1000000"], tmp_path) as ranks:
        wait_for_step(run, 5, ranks[0])
        for number in asked:
            ranks[number].send(signal.SIGTERM)
        codes = [rank.end() for rank in ranks]

    assert codes == [128 + signal.SIGTERM if number in asked else 0 for number in range(2)], ranks[0].seen
    assert state(run)["status"] == "stopped"
    assert steps_saved(run)[-1] == state(run)["step"]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_process_ends_the_other(victim: int, pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with two_ranks(["train", "vqgan", pictures, "--out", run, *TINY, "train.steps=1000000"], tmp_path) as ranks:
        wait_for_step(run, 5, ranks[0])
        ranks[victim].kill()
        survivor = ranks[1 - victim]

        assert survivor.end(within=60) == 1, survivor.seen

    assert "lost contact with another process" in error_line(survivor.seen)
