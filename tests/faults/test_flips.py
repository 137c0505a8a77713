"""Whatever happens to a checkpoint's bytes is detected and named, and the newest sound checkpoint is used instead."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.conftest import Ledger
from faults.ledger import WHOLE
from faults.moments import part, run_at
from helpers import (
    LAST_STEP,
    copied,
    error_line,
    quintet,
    step_folder,
    steps_saved,
    succeed,
    tensor_hashes,
)
from quintet.common.weights import checkpoint
from quintet.errors import CheckpointError

SEED = int(os.environ.get("QUINTET_FLIP_SEED", random.randrange(10**6)))
"""Which bits are flipped; named in every failure, to be set again."""

FLIPS = 1000 if WHOLE else 100
NEWEST, BEFORE = 12, 8
"""The steps of the two newest checkpoints of a finished run."""

Damage = Callable[[Path, random.Random], None]


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    """The checkpoints of a finished run, to be damaged."""
    return copied(finished / "checkpoints", tmp_path / "checkpoints")


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# --- the kinds of damage ------------------------------------------------------------------------------------------


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(1, path.stat().st_size))


def cut_by_one_byte(path: Path, chance: random.Random) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path, chance: random.Random) -> None:
    os.truncate(path, 0)


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def lengthen(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def lose_the_end(path: Path, chance: random.Random) -> None:
    """Right length, zeros at the end: what a power cut leaves of a file whose last blocks were not on the disk."""
    content = path.read_bytes()
    kept = chance.randrange(len(content.rstrip(b"\0")))
    path.write_bytes(content[:kept] + bytes(len(content) - kept))


def lose_all(path: Path, chance: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def become_a_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def take_another_content(path: Path, chance: random.Random) -> None:
    """As two files that were swapped by a file system check."""
    own = path.read_bytes()
    folder = next(parent for parent in path.parents if parent.name.startswith("step-"))
    path.write_bytes(next(other.read_bytes() for other in files_of(folder) if other.read_bytes() != own))


def become_older(path: Path, chance: random.Random) -> None:
    """The same file of the checkpoint before, where it differs. Older sums accuse the files that they list."""
    if path.name == checkpoint.MANIFEST:
        return path.unlink()
    folder = next(parent for parent in path.parents if parent.name.startswith("step-"))
    older = step_before(folder) / path.relative_to(folder)
    path.write_bytes(older.read_bytes() if older.read_bytes() != path.read_bytes() else b"")
    return None


def step_before(folder: Path) -> Path:
    row = checkpoint.steps(folder.parent)
    return row[row.index(folder) - 1]


DAMAGES: tuple[Damage, ...] = (
    *(cut, cut_by_one_byte, empty, delete, lengthen, lose_the_end, lose_all),
    *(become_a_folder, take_another_content, become_older),
)


def assert_detected(root: Path, damaged: Path, where: str) -> None:
    """The damaged file is named, and the checkpoint before is taken."""
    newest, before = checkpoint.folder_of(root, NEWEST), checkpoint.folder_of(root, BEFORE)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.verify(newest)
    found, problems = checkpoint.newest_sound(root)
    assert found == before, where
    assert problems == [str(caught.value)], where
    assert str(newest) in problems[0], where
    assert damaged.name in problems[0], f"{where}: {problems[0]}"


def restore(path: Path, content: bytes) -> None:
    if path.is_dir():
        path.rmdir()
    path.write_bytes(content)


def test_every_flipped_bit_is_detected_and_its_file_named(root: Path, ledger: Ledger) -> None:
    chance = random.Random(SEED)
    newest = checkpoint.folder_of(root, NEWEST)
    files = files_of(newest)
    for trial in range(FLIPS):
        # Each file in turn: by size alone, the small ones would never be hit.
        path = files[trial % len(files)]
        whole = path.read_bytes()
        flip(path, chance)
        assert_detected(root, path, f"QUINTET_FLIP_SEED={SEED}, flip {trial} in {path}")
        path.write_bytes(whole)
    checkpoint.verify(newest)
    ledger("bit-flip", FLIPS)


@pytest.mark.parametrize("pointer", ["latest", "best"])
def test_a_flipped_bit_in_a_pointer_misleads_nobody(root: Path, pointer: str, ledger: Ledger) -> None:
    """Every one of its bits."""
    content = (root / pointer).read_bytes()
    right = checkpoint.read_pointer(root, pointer)
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (root / pointer).write_bytes(damaged)
        assert checkpoint.newest_sound(root) == (checkpoint.folder_of(root, NEWEST), [])
        # White space may stand around the name.
        assert checkpoint.read_pointer(root, pointer) in (None, right), damaged
    ledger("bit-flip", 8 * len(content))


def test_every_other_damage_is_detected_and_its_file_named(root: Path, ledger: Ledger) -> None:
    chance = random.Random(SEED)
    newest = checkpoint.folder_of(root, NEWEST)
    trials = [(path, damage) for path in files_of(newest) for damage in DAMAGES]
    for path, damage in trials:
        whole = path.read_bytes()
        damage(path, chance)
        assert_detected(root, path, f"QUINTET_FLIP_SEED={SEED}, {damage.__name__} of {path}")
        restore(path, whole)
    checkpoint.verify(newest)
    ledger("truncation", len(trials))


@pytest.mark.parametrize("name", ["more.safetensors", "optim/more.json", "new/more", ".hidden", "SHA256SUMS.old"])
def test_an_added_file_is_detected_and_named(root: Path, name: str, ledger: Ledger) -> None:
    added = checkpoint.folder_of(root, NEWEST) / name
    added.parent.mkdir(exist_ok=True)
    added.touch()
    assert_detected(root, added, name)
    ledger("truncation", 1)


def test_an_empty_folder_under_a_checkpoints_name_is_passed_over(root: Path, ledger: Ledger) -> None:
    newest = checkpoint.folder_of(root, NEWEST)
    shutil.rmtree(newest)
    newest.mkdir()
    assert_detected(root, newest / checkpoint.MANIFEST, "empty")
    ledger("truncation", 1)


# --- the same, by the command -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage", part((*DAMAGES[5:6], flip, *DAMAGES[:5], *DAMAGES[6:])), ids=lambda damage: damage.__name__
)
@pytest.mark.parametrize("file", part(("SHA256SUMS", "meta.json", "config.yaml")))
def test_a_run_goes_on_from_the_newest_sound_checkpoint(
    damage: Damage, file: str, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(35, straight, tmp_path / "run")
    damage(step_folder(run, 35) / file, random.Random(SEED))

    resumed = succeed("resume", run)

    (line,) = (line for line in resumed.errors.splitlines() if "damaged checkpoint skipped" in line)
    assert str(step_folder(run, 35)) in line
    assert file in line
    assert f"resumed from {step_folder(run, 30)}" in resumed.errors
    # What is damaged stays to be looked at.
    assert (run / "checkpoints" / "damaged-step-00000035").is_dir()
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP), f"QUINTET_FLIP_SEED={SEED}"
    ledger("bit-flip" if damage is flip else "truncation", 1)


def test_tensors_that_are_damaged_are_never_trained_on(straight: Path, tmp_path: Path, ledger: Ledger) -> None:
    tensors = [path.relative_to(step_folder(straight, 35)) for path in step_folder(straight, 35).rglob("*.safetensors")]
    for number, name in enumerate(part(tensors)):
        run = run_at(35, straight, tmp_path / f"run-{number}")
        flip(step_folder(run, 35) / name, random.Random(SEED))

        resumed = succeed("resume", run)

        assert f"damaged checkpoint skipped: {step_folder(run, 35) / name} is damaged" in resumed.errors
        assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP), f"QUINTET_FLIP_SEED={SEED}"
    ledger("bit-flip", len(part(tensors)))


def test_a_run_without_any_sound_checkpoint_stops_and_names_them_all(
    straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = run_at(35, straight, tmp_path / "run")
    for step in (30, 35):
        flip(step_folder(run, step) / "meta.json", random.Random(SEED))

    outcome = quintet("resume", run)

    assert outcome.code == 1
    sentence = error_line(outcome.errors)
    assert "every checkpoint in " in sentence
    assert all(str(step_folder(run, step) / "meta.json") in sentence for step in (30, 35))
    assert steps_saved(run) == [30, 35]
    ledger("bit-flip", 2)


def test_a_damaged_name_of_the_best_checkpoint_does_not_cost_it(finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    run = copied(finished, tmp_path / "run")
    meta = json.loads((step_folder(run, NEWEST) / "meta.json").read_text())
    best = run / "checkpoints" / "best"
    best.write_text("step-00000000\n")

    succeed("resume", run, "train.steps=13", "checkpoint.every=1", "checkpoint.keep=1")

    assert meta["best_step"] in steps_saved(run)
    assert int(best.read_text().strip()[5:]) in (meta["best_step"], 13)
    ledger("bit-flip", 1)
