"""`engine.launch`: the command starts processes that do what those of torchrun do, and ends as one process does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from contract.cases import TINY_MUSE
from helpers import (
    DEADLINE,
    TINY,
    Process,
    children,
    error_line,
    executed,
    forked,
    log_text,
    quintet,
    state,
    step_folder,
    steps_saved,
    succeed,
    tensor_hashes,
    torchrun,
    two_ranks,
    wait_for_step,
)
from quintet import VQGanVAE, VQGanVAETrainer
from quintet.cli import launch
from quintet.config import build
from quintet.errors import UsageError
from quintet.families.vqgan.config import VQGanConfig
from quintet.registry import read_config

UNENDING = (*TINY, "train.steps=1000000", "engine.launch=2")


def world_size(run: Path, step: int) -> int:
    return int(json.loads((step_folder(run, step) / "meta.json").read_text())["world_size"])


def rank_of(process: int) -> int:
    """The rank of a process, from its environment."""
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next(int(each.partition(b"=")[2]) for each in variables if each.startswith(b"RANK="))


def is_running(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# --- results ----------------------------------------------------------------------------------------------------


def test_a_launched_and_resumed_run_equals_that_of_torchrun(pictures: Path, tmp_path: Path) -> None:
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    words = ("train", "vqgan", pictures, *TINY, "optim.decay_steps=12", "--out")
    with executed(torchrun(2, "-m", "quintet", *words, straight), tmp_path / "said") as process:
        assert process.end() == 0, process.seen

    succeed(*words, parts, "train.steps=6", "engine.launch=2")
    assert read_config(parts / "config.yaml").engine.launch == world_size(parts, 6) == 2
    assert tensor_hashes(parts, 4) == tensor_hashes(straight, 4)

    succeed("resume", parts, "train.steps=12")
    assert world_size(parts, 12) == 2
    assert tensor_hashes(parts, 12) == tensor_hashes(straight, 12)

    succeed("resume", parts, "train.steps=14", "engine.launch=1")
    assert world_size(parts, 14) == 1


def test_auto_is_recorded_as_chosen_and_equals_the_processes_of_a_launcher(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "usable_cores", lambda: 3)  # a batch of four is divided by two of them
    words = ("train", "muse", pictures, *TINY_MUSE, "train.steps=4", "engine.device=cpu", "--out")
    with two_ranks((*words, tmp_path / "expected"), tmp_path) as ranks:
        assert [rank.end() for rank in ranks] == [0, 0], ranks[0].seen + ranks[1].seen
    succeed(*words, tmp_path / "run", "engine.launch=auto")
    assert read_config(tmp_path / "run/config.yaml").engine.launch == world_size(tmp_path / "run", 4) == 2
    assert tensor_hashes(tmp_path / "run", 4) == tensor_hashes(tmp_path / "expected", 4)


@pytest.mark.parametrize(
    ("keys", "cores", "expected"),
    [
        ({"train.batch_size": 16}, 2, 2),
        ({"train.batch_size": 16}, 7, 4),
        ({"train.batch_size": 3}, 8, 3),
        ({"train.batch_size": 1}, 8, 1),
        ({"train.batch_size": 16, "train.grad_accum_steps": 8}, 16, 2),
        ({"engine.device": "mps"}, 8, 1),
        ({"train.batch_size": 16, "engine.world_size": 2}, 8, 2),
        ({"train.batch_size": 16, "engine.world_size": 1}, 8, 1),
    ],
)
def test_auto_divides_the_batch_over_the_cores(
    keys: dict[str, object], cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "usable_cores", lambda: cores)
    config = build(VQGanConfig, overrides={"engine.device": "cpu", "engine.launch": "auto", **keys})
    assert launch.resolve(config).engine.launch == expected


def test_another_launcher_has_priority(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", "vqgan", pictures, "--out", run, *TINY, "train.steps=2", "engine.launch=auto")
    with two_ranks(words, tmp_path) as ranks:
        assert [rank.end() for rank in ranks] == [0, 0], ranks[0].seen + ranks[1].seen
    assert [rank.seen.count("engine.launch=auto is ignored") for rank in ranks] == [1, 0]
    assert (world_size(run, 2), read_config(run / "config.yaml").engine.launch) == (2, 1)


def test_a_trainer_in_python_says_that_launch_is_for_the_command_line(pictures: Path, tmp_path: Path) -> None:
    model = VQGanVAE(dim=8, image_size=16, layers=2)
    with pytest.raises(UsageError, match=r"engine\.launch=2 works from the command line"):
        VQGanVAETrainer(model, data=pictures, out=tmp_path / "run", steps=2, config={"engine.launch": 2})
    assert not (tmp_path / "run").exists()


# --- the end ----------------------------------------------------------------------------------------------------


def test_an_error_of_all_processes_is_printed_once(tmp_path: Path) -> None:
    outcome = quintet("train", "vqgan", tmp_path / "missing", *TINY, "engine.launch=2")
    assert outcome.code == 2
    assert outcome.errors.count("missing does not exist") == 1
    assert "missing does not exist" in error_line(outcome.errors)


def test_a_usage_error_of_one_process_ends_the_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of rank 0, which alone looks at the run folder, while the others wait for it."""
    monkeypatch.setattr(launch, "GRACE", DEADLINE)
    codes = ("raise SystemExit(2)", f"import time; time.sleep({DEADLINE / 2})")
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen([sys.executable, "-c", code])) for code in codes]
        ends = [stack.enter_context(end) for end in socket.socketpair()]
        launch._wait([launch._Child(rank, process, ends[rank]) for rank, process in enumerate(processes)], [])
        assert [process.returncode for process in processes] == [2, -signal.SIGKILL]


def test_an_error_that_only_one_process_sees_is_printed_once(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").touch()
    outcome = quintet("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "engine.launch=2")
    assert outcome.code == 2
    assert str(tmp_path / "run") in error_line(outcome.errors)


def started(run: Path, process: Process) -> dict[int, int]:
    """The processes of a launched run that trains, by rank."""
    wait_for_step(run, 5, process)
    return {rank_of(child): child for child in children(process.pid)}


def test_a_signal_to_the_command_saves_and_ends_with_its_code(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with forked(("train", "vqgan", pictures, "--out", run, *UNENDING), tmp_path / "said") as process:
        assert [*sorted(started(run, process))] == [0, 1]
        process.send(signal.SIGINT)
        assert process.end() == 128 + signal.SIGINT, process.seen
    assert (state(run)["status"], steps_saved(run)[-1]) == ("stopped", state(run)["step"])
    assert log_text(run).count("by SIGINT") == 1
    assert "error" not in process.seen


def test_a_killed_process_ends_the_command_with_one_sentence(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with forked(("train", "vqgan", pictures, "--out", run, *UNENDING), tmp_path / "said") as process:
        processes = started(run, process)
        os.kill(processes[0], signal.SIGKILL)
        assert process.end() == 1, process.seen
        assert not any(map(is_running, processes.values()))
    assert "the process of rank 0 was ended by SIGKILL" in error_line(process.seen)

    saved = steps_saved(run)[-1]
    succeed("resume", run, f"train.steps={saved + 2}", "engine.launch=1")
    assert steps_saved(run)[-1] == saved + 2


def test_the_processes_end_with_the_command_that_started_them(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with forked(("train", "vqgan", pictures, "--out", run, *UNENDING), tmp_path / "said") as process:
        processes = started(run, process)
        process.kill()
        deadline = time.monotonic() + DEADLINE
        while any(map(is_running, processes.values())):
            assert time.monotonic() < deadline, process.seen
            time.sleep(0.01)
