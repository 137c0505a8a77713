"""Every recipe: validation items that cannot be read are refused before training, and never end a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.cases import Case
from helpers import copied, error_line, log_text, quintet, state, steps_saved, succeed
from quintet.training.run_folder import Run


def with_validation(data: Path, target: Path, num: int = 1) -> tuple[Path, list[Path]]:
    """A copy of the data with `num` validation items, and their files."""
    folder = copied(data, target)
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [{**row, "split": "validation" if number < num else "train"} for number, row in enumerate(rows)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder, [folder / row["file_name"] for row in rows[:num]]


def damage(files: list[Path]) -> None:
    """Replace the content; the size, which the fingerprint holds, stays."""
    for file in files:
        file.write_bytes(b"x" * file.stat().st_size)


def says_validation(errors: str, count: int) -> bool:
    line = error_line(errors)
    return f"none of the {count} " in line and "validation" in line


def test_training_is_refused_if_no_validation_item_can_be_read(
    recipe: str, case: Case, data: Path, tmp_path: Path
) -> None:
    folder, files = with_validation(data, tmp_path / "data", num=2)
    damage(files)
    outcome = quintet("train", recipe, folder, "--out", tmp_path / "run", *case.tiny)
    assert outcome.code == 2
    assert says_validation(outcome.errors, 2)
    assert not (tmp_path / "run").exists()


def test_a_run_whose_validation_items_broke_says_so_before_it_resumes(
    recipe: str, case: Case, data: Path, tmp_path: Path
) -> None:
    folder, files = with_validation(data, tmp_path / "data")
    run = tmp_path / "run"
    succeed("train", recipe, folder, "--out", run, *case.tiny, "train.steps=4")
    damage(files)
    for words in (("resume", run, "train.steps=8"), ("eval", run), ("sample", run, "--out", tmp_path / "out")):
        outcome = quintet(*words)
        if outcome.code == 0:  # a generator without prompts needs no validation items to sample
            assert words[0] == "sample"
            continue
        assert outcome.code == 2
        assert says_validation(outcome.errors, 1)
    assert steps_saved(run) == [4]


def test_a_training_goes_on_without_validation_if_its_item_breaks(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, files = with_validation(pictures, tmp_path / "data")
    run = tmp_path / "run"
    begin = Run.begin

    def break_after_start(new: Run, *arguments: Any) -> None:
        begin(new, *arguments)
        damage(files)

    monkeypatch.setattr(Run, "begin", break_after_start)
    tiny = ("--preset", "debug", "model.dim=8", "model.image_size=16", "train.batch_size=4", "train.steps=8")
    keys = ("eval.every=2", "sample.every=2", "checkpoint.every=4", "log.trackers=[]", "data.memory_megabytes=0")
    outcome = succeed("train", "vqgan", folder, "--out", run, *tiny, *keys)
    assert (state(run)["status"], steps_saved(run)[-1]) == ("finished", 8)
    warning = "warning: no validation and no samples at step 4: none of the 1 validation items can be read"
    assert warning in outcome.errors
    assert "no validation and no samples at step 8" in log_text(run)
