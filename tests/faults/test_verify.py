"""`quintet verify` proves that a run is what it says, and tells a run that is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from contract.cases import Case
from faults.conftest import Ledger
from helpers import copied, error_line, flip_bit, quintet, renew_sums, step_folder, succeed, tree


@pytest.mark.parametrize(
    ("words", "steps"), [((), "8 to 12"), (("--from", "0"), "0 to 12"), (("--from", "4", "--to", "8"), "4 to 8")]
)
def test_a_run_is_reproduced_and_not_touched(
    words: tuple[str, ...], steps: str, finished: Path, ledger: Ledger
) -> None:
    before = tree(finished)
    outcome = succeed("verify", finished, *words)
    assert f"reproduced: steps {steps}," in outcome.output
    assert "files identical" in outcome.output
    assert tree(finished) == before
    ledger("verify", 1)


def test_a_resumed_and_moved_run_is_reproduced(
    recipe: str, case: Case, data: Path, finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run, own = copied(finished, tmp_path / "run"), copied(data, tmp_path / "data")
    succeed("resume", run, "train.steps=16", f"data.path={own}", "checkpoint.keep=100")
    for words, steps in (((), "12 to 16"), (("--from", "0"), "0 to 16")):
        assert f"steps {steps}," in succeed("verify", run, *words).output
    ledger("verify", 2)


def forge(folder: Path, kind: str) -> None:
    """Change a checkpoint and update its hashes."""
    path = min(folder.glob("*.safetensors" if kind == "weights" else f"{kind}/*.safetensors"))
    tensors = load_file(path)
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.ndim)
    changed = tensors[name].flatten()
    changed[0] = torch.nextafter(changed[0], torch.tensor(torch.inf))
    save_file({**tensors, name: changed.view_as(tensors[name])}, path)
    renew_sums(folder)


@pytest.mark.parametrize("kind", ["weights", "ema", "optim"])
def test_a_forged_checkpoint_is_detected(kind: str, finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    """One number of one tensor, by the smallest step there is, with hashes that fit."""
    run = copied(finished, tmp_path / "run")
    forge(step_folder(run, 12), kind)
    outcome = quintet("verify", run)
    assert outcome.code == 1
    sentence = error_line(outcome.errors)
    assert "steps 8 to 12 were not reproduced" in sentence
    assert "1 of" in sentence
    assert "differ, by up to" in sentence
    ledger("verify", 1)


def test_a_forged_count_is_detected(finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = copied(finished, tmp_path / "run")
    path = step_folder(run, 12) / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "items_seen": 7}))
    renew_sums(path.parent)
    outcome = quintet("verify", run)
    assert outcome.code == 1
    assert "items_seen is 48 in the replay and 7 in the run" in error_line(outcome.errors)
    ledger("verify", 1)


def test_a_damaged_checkpoint_is_reported_with_the_replay_of_the_others(
    finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = copied(finished, tmp_path / "run")
    damaged = min(step_folder(run, 12).glob("*.safetensors"))
    flip_bit(damaged)
    outcome = quintet("verify", run)
    assert outcome.code == 1
    assert f"{damaged} is damaged" in error_line(outcome.errors)
    assert "step 8" in error_line(outcome.errors)
    ledger("verify", 1)


def test_steps_that_cannot_be_replayed_are_refused(
    recipe: str, data: Path, finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    changed = copied(finished, tmp_path / "changed")
    succeed("resume", changed, "train.steps=14", "train.grad_accum_steps=2")
    empty = copied(finished, tmp_path / "empty")
    shutil.rmtree(empty / "checkpoints")
    for words, sign in {
        ("verify", finished, "--from", "5"): "no valid checkpoint of step 5; it has 4, 8, 12",
        ("verify", finished, "--to", "99"): "no valid checkpoint of step 99",
        ("verify", finished, "--from", "12", "--to", "8"): "--from 12 must be before --to 8",
        ("verify", changed): "train.grad_accum_steps changed after step 12",
        ("verify", empty): "no valid checkpoint to compare with",
        ("verify", data): "not a run",
    }.items():
        outcome = quintet(*words)
        assert outcome.code == 2, words
        assert sign in error_line(outcome.errors)
    ledger("verify", 6)
