"""A run folder or a cache that is moved or deleted during training: nothing is written where no run is."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from contract.cases import TINY_MUSE
from helpers import TINY, error_line, forked, last_step, log_text, state, steps_saved, succeed, wait_for_step

pytestmark = pytest.mark.fault("moved-run")

WORDS = ("train.steps=1000000", "optim.decay_steps=1000", "checkpoint.every=1000000", "eval.every=1000000")


def test_a_run_goes_on_in_a_folder_that_was_moved(pictures: Path, tmp_path: Path) -> None:
    run, moved = tmp_path / "run", tmp_path / "other" / "moved"
    moved.parent.mkdir()
    words = ("train", "vqgan", pictures, "--out", run, *TINY, *WORDS, "sample.every=1000000")
    with forked(words, tmp_path / "said") as process:
        wait_for_step(run, 3, process)
        run.rename(moved)
        wait_for_step(moved, last_step(moved) + 5, process)
        process.send(signal.SIGTERM)
        assert process.end() == 128 + signal.SIGTERM, process.seen

    assert f"the run folder {run} was moved to {moved}; training continues there" in log_text(moved)
    assert not run.exists()
    assert steps_saved(moved)[-1] == state(moved)["step"]
    succeed("resume", moved, f"train.steps={state(moved)['step'] + 1}")


def test_a_run_whose_folder_was_deleted_ends_with_one_sentence(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", "vqgan", pictures, "--out", run, *TINY, *WORDS, "sample.every=1000000")
    with forked(words, tmp_path / "said") as process:
        wait_for_step(run, 3, process)
        process.send(signal.SIGSTOP)
        shutil.rmtree(run)
        process.send(signal.SIGCONT)
        assert process.end() == 1, process.seen

    assert f"the run folder {run} was deleted, or moved to another file system" in error_line(process.seen)
    assert not run.exists()


def test_files_that_make_a_folder_a_run_are_written_again(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    words = ("train", "vqgan", pictures, "--out", run, *TINY, *WORDS, "sample.every=1000000")
    with forked(words, tmp_path / "said") as process:
        wait_for_step(run, 3, process)
        (run / "data.json").unlink()
        (run / "config.yaml").unlink()
        wait_for_step(run, last_step(run) + 5, process)
        process.send(signal.SIGTERM)
        assert process.end() == 128 + signal.SIGTERM, process.seen

    assert f"{run / 'config.yaml'} was deleted, and is written again" in log_text(run)
    assert f"continue with `quintet resume '{run}'`" in process.seen
    succeed("resume", run, f"train.steps={state(run)['step'] + 1}")


def test_a_token_cache_that_is_deleted_does_not_end_the_run(pictures: Path, tmp_path: Path) -> None:
    run, cache = tmp_path / "run", tmp_path / "cache"
    keys = ("train.steps=1000000", "data.num_workers=2", "eval.every=5", f"data.cache_dir={cache}")
    with forked(("train", "muse", pictures, "--out", run, *TINY_MUSE, *keys), tmp_path / "said") as process:
        wait_for_step(run, 2, process)
        shutil.rmtree(cache)
        wait_for_step(run, last_step(run) + 20, process)
        process.send(signal.SIGTERM)
        assert process.end() == 128 + signal.SIGTERM, process.seen
    succeed("resume", run, f"train.steps={state(run)['step'] + 1}")
