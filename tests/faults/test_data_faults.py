"""An unreadable file is skipped and named; it never ends a run that has other files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers import TINY, error_line, log_text, quintet, state, succeed, train_tiny


@pytest.fixture
def folder(pictures: Path, tmp_path: Path) -> Path:
    """Sixteen valid images without captions, to be damaged."""
    target = tmp_path / "data"
    target.mkdir()
    for path in sorted((pictures / "images").iterdir())[:16]:
        shutil.copy(path, target / f"good-{path.name}")
    return target


def data_record(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "data.json").read_text(encoding="utf-8")))


def add_useless(folder: Path, sound: Path) -> set[str]:
    """Files that no training can use, of every kind."""
    (folder / "empty.png").touch()
    (folder / "words.jpg").write_text("not a picture at all")
    (folder / "cut.png").write_bytes(sound.read_bytes()[:60])
    Image.new("RGB", (1, 1)).save(folder / "dot.png")
    (folder / "nowhere.png").symlink_to(folder / "missing.png")
    return {"empty.png", "words.jpg", "cut.png", "dot.png", "nowhere.png"}


def add_unusual(folder: Path) -> set[str]:
    """Files that are converted and used."""
    Image.new("CMYK", (40, 30), (20, 200, 40, 10)).save(folder / "print.jpg")
    frames = [Image.new("RGB", (24, 24), (shade, 0, 0)) for shade in (50, 250)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    Image.new("I;16", (32, 32), 40_000).save(folder / "deep.png")
    Image.new("RGB", (32, 32), (0, 200, 0)).save(folder / "a-jpeg", format="JPEG")
    (folder / "a-jpeg").rename(folder / "misnamed.PNG")
    return {"print.jpg", "moving.gif", "deep.png", "misnamed.PNG"}


def test_unreadable_files_are_replaced_and_named_and_unusual_ones_are_used(folder: Path, tmp_path: Path) -> None:
    useless = add_useless(folder, next(folder.iterdir()))
    unusual = add_unusual(folder)
    run = tmp_path / "run"

    # Every item is met: more than two passes over the training items, and validation on the rest.
    outcome = train_tiny(folder, run, "data.validation_fraction=0")

    assert state(run)["status"] == "finished"
    record = data_record(run)
    assert {name.removeprefix("validation: ") for name in record["skipped"]} == useless
    assert all(reason for reason in record["skipped"].values())
    assert unusual <= {*record["train"]}
    for name in record["train"]:
        replaced = f"unreadable item replaced: {name} ({record['skipped'].get(name)})"
        assert (replaced in outcome.errors) == (name in useless)
        assert (replaced in log_text(run)) == (name in useless)

    # The summary of the folder says the same before any training.
    checked = json.loads(succeed("data", "check", folder, "--json").output)
    assert {each["file"] for each in checked["skipped"]} == useless
    assert checked["usable"] == 16 + len(unusual)


def test_replaced_items_are_the_same_after_a_resume(folder: Path, tmp_path: Path) -> None:
    add_useless(folder, next(folder.iterdir()))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    keys = ("optim.decay_steps=12", "data.validation_fraction=0")
    train_tiny(folder, whole, *keys)
    train_tiny(folder, parts, *keys, "train.steps=5")
    succeed("resume", parts, "train.steps=12")

    final = Path("checkpoints") / "step-00000012" / "vae.safetensors"
    assert (whole / final).read_bytes() == (parts / final).read_bytes()
    assert data_record(whole) == data_record(parts)


def test_only_useless_files_are_an_error_before_any_training(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:50])
    run = tmp_path / "run"

    outcome = quintet("train", "vqgan", folder, "--out", run, *TINY)

    assert outcome.code == 2
    assert "none of the" in error_line(outcome.errors)
    assert not run.exists()


def test_a_damaged_validation_image_does_not_stop_a_run(folder: Path, tmp_path: Path) -> None:
    looked_at = tmp_path / "validation"
    looked_at.mkdir()
    for path in sorted(folder.iterdir())[:3]:
        shutil.move(path, looked_at)
    (looked_at / "good-00000.png").write_bytes(b"spoilt")
    run = tmp_path / "run"

    train_tiny(folder, run, f"data.validation_path={looked_at}")
    succeed("eval", run)

    assert "good-00000.png" in "".join(data_record(run)["skipped"])
