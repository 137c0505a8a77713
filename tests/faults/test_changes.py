"""A resumed run is the run that it was: other keys, other data or another version are refused with the difference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

import quintet as package
from contract.cases import Case
from faults.conftest import Ledger
from helpers import copied, error_line, log_text, quintet, renew_sums, state, step_folder, succeed, tensor_hashes, tree

COMMON_CHANGES = (
    *(
        "optim.lr=0.01",
        "optim.name=lion",
        "optim.decay_steps=99",
        "optim.max_grad_norm=0.5",
        "ema.decay=0.5",
        "ema.enabled=false",
    ),
    *("train.batch_size=2", "train.seed=1", "data.validation_fraction=0.3", "data.split_seed=1"),
)
"""Keys of every recipe that change what is computed."""


def unlocked(run: Path) -> dict[str, str]:
    """Everything but the name of the process that looked last."""
    return {name: value for name, value in tree(run).items() if name != "lock"}


@pytest.mark.parametrize("change", COMMON_CHANGES)
def test_a_changed_key_is_refused_with_the_difference(
    change: str, finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = copied(finished, tmp_path / "run")
    key, _, new = change.partition("=")
    before = unlocked(run)
    outcome = quintet("resume", run, "train.steps=14", change)

    sentence = error_line(outcome.errors)
    assert outcome.code == 2
    assert f"{key}: " in sentence
    assert f"-> {new}" in sentence.replace("'", "").replace("False", "false")
    assert "--force" in sentence
    assert "--init" in sentence
    assert unlocked(run) == before
    ledger("changed-config", 1)


@pytest.mark.parametrize("change", ["optim.lr=0.01", "train.batch_size=2", "optim.max_grad_norm=0.5", "train.seed=1"])
def test_force_bends_a_run_and_says_so(change: str, finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = copied(finished, tmp_path / "run")
    succeed("resume", run, "train.steps=14", change, "--force")

    key, _, new = change.partition("=")
    section, _, name = key.partition(".")
    assert str(yaml.safe_load((run / "config.yaml").read_text())[section][name]) == new
    assert state(run)["step"] == 14
    assert f"changed: {key}: " in log_text(run)
    ledger("changed-config", 1)


def test_force_cannot_make_other_weights_fit(case: Case, finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = copied(finished, tmp_path / "run")
    outcome = quintet("resume", run, case.reshaped, "--force")

    assert outcome.code == 1
    assert "shape" in error_line(outcome.errors)
    assert tree(run / "checkpoints") == tree(finished / "checkpoints")
    ledger("changed-config", 1)


def edit(run: Path, key: str, value: object) -> None:
    """Change a key in the configuration of a run, as an editor does: the other lines stay as they are."""
    path = run / "config.yaml"
    section, _, name = key.partition(".")
    head, start, rest = path.read_text().partition(f"\n{section}:\n")
    line = next(line for line in rest.splitlines() if line.startswith(f"  {name}: "))
    path.write_text(head + start + rest.replace(line, f"  {name}: {value}", 1))


def test_an_edited_configuration_is_refused_with_the_difference(finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = copied(finished, tmp_path / "run")
    edit(run, "train.seed", 7)
    edit(run, "data.num_workers", 1)
    before = unlocked(run)
    for words in (("resume", run, "train.steps=14"), ("verify", run)):
        outcome = quintet(*words)
        assert outcome.code == 2
        sentence = error_line(outcome.errors)
        assert "config.yaml differs from the configuration of the checkpoints (train.seed: 0 -> 7)" in sentence
        assert "--force" in sentence
        assert unlocked(run) == before
    assert "config.yaml was edited; the configuration of the checkpoint is used" in succeed("eval", run).errors

    succeed("resume", run, "train.steps=14", "--force")
    assert "config.yaml: train.seed: 0 -> 7" in log_text(run)
    assert "config.yaml: data.num_workers: " in log_text(run)
    # From now on this is the configuration of the run.
    succeed("resume", run, "train.steps=15")
    assert "config.yaml was edited" not in succeed("eval", run).errors
    ledger("edited-config", 3)


def test_a_changed_key_needs_no_checkpoint_to_be_resumed_with(finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    """A run that is killed after a forced change and before its next checkpoint goes on with that change."""
    run = copied(finished, tmp_path / "run")
    succeed("resume", run, "train.steps=14", "optim.lr=0.01", "--force")
    shutil.rmtree(step_folder(run, 14))
    succeed("resume", run)
    assert state(run)["step"] == 14
    assert yaml.safe_load((step_folder(run, 14) / "config.yaml").read_text())["optim"]["lr"] == 0.01
    ledger("edited-config", 1)


def test_a_run_of_an_earlier_version_is_compared_with_its_checkpoint(
    finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """Its configuration has no hash."""
    run = copied(finished, tmp_path / "run")
    shutil.copy(step_folder(run, 12) / "config.yaml", run / "config.yaml")
    succeed("resume", run, "train.steps=13")
    shutil.copy(step_folder(run, 12) / "config.yaml", run / "config.yaml")
    edit(run, "ema.decay", 0.5)
    assert "ema.decay: " in error_line(quintet("resume", run, "train.steps=14").errors)
    ledger("edited-config", 1)


def test_an_edited_configuration_without_a_checkpoint_is_refused(
    finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = copied(finished, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    edit(run, "train.seed", 7)
    outcome = quintet("resume", run)
    assert outcome.code == 2
    assert "config.yaml was edited or damaged after the run started" in error_line(outcome.errors)
    ledger("edited-config", 1)


def test_changed_data_is_refused_and_can_be_forced(
    recipe: str, case: Case, data: Path, finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run, own = copied(finished, tmp_path / "run"), copied(data, tmp_path / "data")
    record = json.loads((run / "data.json").read_text())
    removed = record["train"][0]
    (own / removed).unlink()
    before = unlocked(run)

    outcome = quintet("resume", run, "train.steps=14", f"data.path={own}")
    sentence = error_line(outcome.errors)
    assert outcome.code == 2
    assert f"1 removed such as {removed}" in sentence
    assert "--force" in sentence
    assert unlocked(run) == before

    succeed("resume", run, "train.steps=14", f"data.path={own}", "--force")
    assert f"forced: the data changed since the run started (0 items added, 1 removed such as {removed}" in log_text(
        run
    )
    assert removed not in json.loads((run / "data.json").read_text())["train"]
    # From now on this is the data of the run.
    succeed("resume", run, "train.steps=15")
    ledger("changed-data", 2)


def test_moved_data_is_the_same_data(
    recipe: str, case: Case, data: Path, finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """Same names, sizes and captions elsewhere, and another number of workers: no difference in any byte."""
    stayed, moved = copied(finished, tmp_path / "stayed"), copied(finished, tmp_path / "moved")
    own = copied(data, tmp_path / "data")
    succeed("resume", stayed, "train.steps=14")
    succeed("resume", moved, "train.steps=14", f"data.path={own}", "data.num_workers=1")

    assert tensor_hashes(moved, 14) == tensor_hashes(stayed, 14)
    ledger("changed-data", 1)


def test_a_missing_record_of_the_data_is_refused(finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = copied(finished, tmp_path / "run")
    (run / "data.json").unlink()
    outcome = quintet("resume", run, "train.steps=14")
    assert outcome.code == 2
    assert "data.json is missing or damaged" in error_line(outcome.errors)
    ledger("changed-data", 1)


def rewrite_meta(run: Path, **values: object) -> None:
    for folder in run.glob("checkpoints/step-*"):
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, **values}))
        renew_sums(folder)


@pytest.mark.parametrize("version", ["0.0.1", "9.0.0", None])
def test_another_version_is_refused_and_can_be_forced(
    version: str | None, finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = copied(finished, tmp_path / "run")
    rewrite_meta(run, quintet=version)
    checkpoints = tree(run / "checkpoints")

    outcome = quintet("resume", run, "train.steps=14")
    sentence = error_line(outcome.errors)
    assert outcome.code == 2
    assert f"written by quintet {version}, and this is quintet {package.__version__}" in sentence
    assert "--force" in sentence
    assert tree(run / "checkpoints") == checkpoints
    # Evaluation changes nothing, so it is not refused.
    succeed("eval", run, "--out", tmp_path / "eval.json")

    succeed("resume", run, "train.steps=14", "--force")
    plain = copied(finished, tmp_path / "plain")
    succeed("resume", plain, "train.steps=14")
    assert tensor_hashes(run, 14) == tensor_hashes(plain, 14)
    ledger("changed-version", 2)


@pytest.mark.parametrize("format", [0, 2, "1", None, [1]])
def test_another_format_is_refused_also_by_force(
    format: object, finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = copied(finished, tmp_path / "run")
    rewrite_meta(run, format=format)
    for words in (("resume", run, "train.steps=14", "--force"), ("eval", run)):
        outcome = quintet(*words)
        assert outcome.code == 1
        assert f"checkpoint format {format}; this version reads 1" in error_line(outcome.errors)
    ledger("changed-version", 2)


def test_another_torch_version_is_reported_and_training_continues(
    finished: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = copied(finished, tmp_path / "run")
    rewrite_meta(run, torch="1.0.0")
    outcome = succeed("resume", run, "train.steps=14")
    assert "warning: torch was 1.0.0" in outcome.errors
    ledger("changed-version", 1)


def test_another_recipe_is_refused(finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = copied(finished, tmp_path / "run")
    rewrite_meta(run, recipe="something-else")
    outcome = quintet("resume", run, "train.steps=14", "--force")
    assert outcome.code == 1
    assert "recipe 'something-else'" in error_line(outcome.errors)
    ledger("changed-config", 1)


def test_a_run_with_missing_checkpoints_is_not_restarted(finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = copied(finished, tmp_path / "run")
    for step in (4, 8, 12):
        shutil.rmtree(step_folder(run, step))
    before = unlocked(run)
    outcome = quintet("resume", run)
    assert outcome.code == 2
    assert "are missing" in error_line(outcome.errors)
    assert unlocked(run) == before
    ledger("changed-data", 1)
