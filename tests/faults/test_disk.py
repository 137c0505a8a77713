"""A full disk costs the checkpoints that do not fit, never the one that stands, and never the training."""

from __future__ import annotations

import ctypes
import resource
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from faults.conftest import Words
from helpers import (
    LAST_STEP,
    TINY,
    Process,
    error_line,
    executed,
    forked,
    python,
    quintet,
    steps_saved,
    succeed,
    tensor_hashes,
    tree,
    wait_until,
)
from quintet.core import checkpoint

TO_THE_END = (f"train.steps={LAST_STEP}", "log.trackers=[tensorboard]")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a small file system ({mounted.stderr.strip()}); see the file-size test")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def wait_for_a_checkpoint(run: Path, process: Process) -> None:
    wait_until((run / "checkpoints" / "latest").exists, process, "the first checkpoint")


def test_training_goes_on_while_the_disk_is_full(
    unending: Words, straight: Path, small_disk: Path, tmp_path: Path
) -> None:
    run = small_disk / "run"
    with forked([*unending, *TO_THE_END, "--out", run], tmp_path / "said") as process:
        wait_for_a_checkpoint(run, process)
        ballast = fill(small_disk)
        wait_until(lambda: "could not save" in process.seen, process, "a checkpoint could not be saved")
        ballast.unlink()
        assert process.end() == 0, process.seen

    (warning, *_) = (line for line in process.seen.splitlines() if "could not save" in line)
    assert "No space left on device" in warning
    assert "the last checkpoint is unharmed" in warning
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)


def test_a_disk_that_stays_full_leaves_the_last_checkpoint_whole(
    unending: Words, straight: Path, small_disk: Path, tmp_path: Path
) -> None:
    run = small_disk / "run"
    with forked([*unending, *TO_THE_END, "--out", run], tmp_path / "said") as process:
        wait_for_a_checkpoint(run, process)
        ballast = fill(small_disk)
        assert process.end() == 1, process.seen

    sentence = error_line(process.seen)
    assert "could not save the last step" in sentence
    assert "No space left on device" in sentence
    for step in steps_saved(run):
        checkpoint.verify(run / "checkpoints" / f"step-{step:08d}")
    assert (run / "checkpoints" / "latest").read_text().strip() == f"step-{steps_saved(run)[-1]:08d}"
    assert not list(run.glob("checkpoints/.*"))

    ballast.unlink()
    succeed("resume", run)

    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)


def test_a_limit_on_file_sizes_leaves_the_last_checkpoint_whole(pictures: Path, trained: Path, tmp_path: Path) -> None:
    """What a quota does, and what needs no right to mount."""
    run = shutil.copytree(trained, tmp_path / "run")
    before = tree(run / "checkpoints")
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, 20_000))
    with forked(["resume", run, "train.steps=16"], tmp_path / "said", limit) as process:
        assert process.end() == 1, process.seen

    assert "could not save the last step" in error_line(process.seen)
    assert tree(run / "checkpoints") == before


def without_the_right_to_ignore_permissions() -> None:
    """Let root be bound by permissions, too, after the next exec."""
    drop_from_bounding_set, override_permissions = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, override_permissions, 0, 0, 0)


def test_a_folder_that_may_not_be_written_is_refused(pictures: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    command = python("-m", "quintet", "train", "vqgan", pictures, "--out", closed / "run", *TINY)
    with executed(command, tmp_path / "said", preexec_fn=without_the_right_to_ignore_permissions) as process:
        assert process.end() == 2, process.seen

    assert f"cannot write to the run folder {closed / 'run'}: Permission denied" in error_line(process.seen)
    assert not list(closed.iterdir())


def test_a_file_system_that_takes_no_folders_is_refused(pictures: Path) -> None:
    outcome = quintet("train", "vqgan", pictures, "--out", "/proc/quintet", *TINY)

    assert outcome.code == 2
    assert "/proc/quintet" in error_line(outcome.errors)
