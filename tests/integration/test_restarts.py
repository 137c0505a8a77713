"""Launchers that restart a failed run, and the loss of one of two machines. Results are those of an undisturbed run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from contract.cases import GOLDEN, case_of
from helpers import (
    TINY,
    Process,
    copied,
    executed,
    free_port,
    log_text,
    made_once,
    metrics,
    python,
    quintet,
    state,
    succeed,
    tensor_hashes,
    torchrun,
    train_tiny,
    two_ranks,
)
from integration import sabotage

TESTS = Path(__file__).parents[1]
WORDS = (*TINY, "engine.timeout_seconds=20")
LONG = 600
"""Timeout in seconds for several starts of interpreters on a busy machine."""


@pytest.fixture
def undisturbed(pictures: Path, shared: Path) -> Path:
    """The result of a training with two processes. Read-only."""

    def train(folder: Path) -> None:
        folder.mkdir()
        with two_ranks(["train", "vqgan", pictures, "--out", folder / "run", *WORDS], folder) as ranks:
            assert [rank.end() for rank in ranks] == [0, 0], ranks[0].seen + ranks[1].seen

    return made_once(shared, "undisturbed", train) / "run"


ATTEMPTS = [["0:1:6:die"], *([["0:1:6:die", "1:0:10:hang"]] if os.environ.get("QUINTET_SCALE") == "whole" else [])]
"""The faults that end attempts early: a death, and in `make scale` also a hanging process in the second attempt."""


@pytest.mark.parametrize("faults", ATTEMPTS, ids=len)
def test_a_launcher_with_restarts_finishes_the_run(
    faults: list[str], pictures: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = ("-m", sabotage.__name__, ",".join(faults), "train", "vqgan", pictures, "--out", run, *WORDS)
    with executed(torchrun(2, *command, restarts=2), tmp_path / "said", cwd=TESTS) as agent:
        assert agent.end(LONG) == 0, agent.seen

    assert state(run)["status"] == "finished"
    log = log_text(run)
    resumed = [line.rpartition("/")[2] for line in log.splitlines() if "resumed from" in line]
    assert resumed == ["step-00000004", "step-00000008"][: len(faults)]
    assert ("in hang" in log) == (len(faults) == 2)
    assert [row["step"] for row in metrics(run) if "train/lr" in row] == list(range(1, 13))
    assert tensor_hashes(run, 12) == tensor_hashes(undisturbed, 12)


def test_with_restarts_only_the_same_run_is_continued(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train_tiny(pictures, run, "train.steps=4", "optim.max_grad_norm=1.5")
    words = ("train", "vqgan", pictures, "--out", run, *TINY, "optim.max_grad_norm=1.5")

    assert "exists already" in quintet(*words).errors
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    other = quintet(*words, "model.dim=16")
    assert other.code == 2
    assert "cannot change model.dim: 8 -> 16" in other.errors
    # A key that is null now and was not before makes another run too.
    unclipped = quintet(*words, "optim.max_grad_norm=null", "train.steps=6")
    assert unclipped.code == 2
    assert "cannot change optim.max_grad_norm: 1.5 -> None" in unclipped.errors
    longer = quintet(*words, "train.steps=6")
    assert longer.code == 0, longer.errors
    assert state(run)["step"] == 6


def test_inferred_keys_do_not_make_another_run(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid of a tokenizer, which may have been removed, its hash, the classes of the data."""
    tokenizer = copied(GOLDEN / "vqgan-format-1" / "hub", tmp_path / "tokenizer")
    out, case = tmp_path / "run", case_of("muse")
    words = [word for word in case.tiny if not str(word).startswith("tokenizer=")]
    words = ["train", "muse", pictures, "--out", out, *words, "--tokenizer", tokenizer, "model.text=classes"]
    succeed(*words, "train.steps=2")
    shutil.rmtree(tokenizer)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    succeed(*words, "train.steps=3")
    assert state(out)["step"] == 3


def test_a_key_that_follows_from_the_encoded_data_does_not_make_another_run(
    meshes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether woven meshes are open is known once they are encoded."""
    case = case_of("mesh-transformer")
    words = [word for word in case.tiny if not str(word).startswith("tokenizer=")]
    out = tmp_path / "run"
    words = ["train", "mesh-transformer", meshes, "--out", out, *words, "tokenizer=woven:32"]
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    succeed(*words, "train.steps=1")
    succeed(*words, "train.steps=2")
    assert state(out)["step"] == 2
    other = quintet(*words, "train.steps=2", "model.open_meshes=true")
    assert "cannot change model.open_meshes: False -> True" in other.errors


@contextmanager
def two_machines(words: list[object], folder: Path) -> Iterator[list[Process]]:
    """Two agents of torchrun, each with one process, with a rendezvous at a port of this machine."""
    rendezvous = ("--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "quintet")
    size = ("--nnodes", 2, "--nproc_per_node", 1, "--local_addr", "127.0.0.1")
    command = python("-m", "torch.distributed.run", *size, *rendezvous, *words)
    with ExitStack() as stack:
        yield [stack.enter_context(executed(command, folder / f"machine-{each}", cwd=TESTS)) for each in range(2)]


def test_losing_one_of_two_machines(pictures: Path, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    faulty = ["-m", sabotage.__name__, "0:1:6:lose-power", "train", "vqgan", pictures, "--out", run, *WORDS]
    with two_machines(faulty, tmp_path) as machines:
        codes = sorted(machine.end(LONG) for machine in machines)
        log = "".join(machine.seen for machine in machines)

    assert codes == [-9, 1], log
    assert "error: lost contact with another process of this run" in log
    assert state(run)["status"] == "failed"
    assert "lost contact" in state(run)["error"]

    with two_machines(["-m", "quintet", "resume", run], tmp_path) as machines:
        assert [machine.end(LONG) for machine in machines] == [0, 0], machines[0].seen + machines[1].seen
    assert state(run)["status"] == "finished"
    assert json.loads((run / "checkpoints" / "step-00000012" / "meta.json").read_text())["world_size"] == 2
    assert tensor_hashes(run, 12) == tensor_hashes(undisturbed, 12)
