"""Commands that read a run beside a process that saves all the time and keeps only one checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import FORKS, TINY, error_line, quintet, step_folder, steps_saved, succeed
from quintet.common.weights import checkpoint, tensor_groups
from quintet.pipelines import loading
from viewing import serving, wait_for

pytestmark = pytest.mark.fault("reader-beside-writer")

READS = 4


def save_without_end(run: Path) -> None:
    """What a training does whose steps take no time: saves the next checkpoint, and deletes all others."""
    os.fsync = lambda _: None  # type: ignore[assignment]  # as on a disk that is as fast as memory
    root = run / "checkpoints"
    newest = checkpoint.steps(root)[-1]
    names = [path.relative_to(newest).with_suffix("").as_posix() for path in newest.rglob("*.safetensors")]
    contents = checkpoint.Contents(
        {name: tensor_groups.read_tensors(newest, name) for name in names},
        {"meta": checkpoint.read_json(newest, "meta")},
        {"config.yaml": (newest / "config.yaml").read_text()},
    )
    step = checkpoint.step_of(newest)
    while True:
        step += 1
        contents.json["meta"]["step"] = step
        checkpoint.write_pointer(root, "best", checkpoint.write(root, step, contents))
        checkpoint.prune(root, 1)


@pytest.fixture(scope="module")
def busy(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    run = shutil.copytree(trained, tmp_path_factory.mktemp("busy") / "run")
    writer = FORKS.Process(target=save_without_end, args=(run,))
    writer.start()
    try:
        wait_for(lambda: max(steps_saved(run), default=0) > 14, "the writer saves")
        yield run
        assert writer.is_alive()
    finally:
        writer.kill()
        writer.join()


@pytest.mark.parametrize("which", ["", "@best"])
@pytest.mark.parametrize("name", ["eval", "sample", "export", "encode"])
def test_reading_beside_a_training_never_fails(
    name: str, which: str, busy: Path, pictures: Path, tmp_path: Path
) -> None:
    for number in range(READS):
        out, run = tmp_path / f"{number}", f"{busy}{which}"
        succeed(
            *{
                "eval": ("eval", run, "--out", out),
                "sample": ("sample", run, "--num", 1, "--out", out),
                "export": ("export", run, out),
                "encode": ("encode", run, pictures, "--out", out),
            }[name]
        )


def test_a_new_run_can_start_from_one_that_is_training(busy: Path, pictures: Path, tmp_path: Path) -> None:
    for number in range(2):
        words = (pictures, "--out", tmp_path / f"{number}", *TINY, "train.steps=1")
        succeed("train", "vqgan", *words, "--init", busy)
    muse = ("--preset", "debug", "train.steps=1", "train.batch_size=4", "log.trackers=[]")
    succeed("train", "muse", pictures, "--tokenizer", busy, "--out", tmp_path / "muse", *muse)


def test_the_page_shows_a_run_that_is_training(busy: Path) -> None:
    with serving(busy.parent) as site:
        for _ in range(20):
            assert site.ask("/api/run?run=run").status == 200
            assert site.ask("/api/runs").status == 200


# --- at an exact moment -----------------------------------------------------------------------------------------


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def deleting_first(folder: Path, read: Callable[..., Any]) -> Callable[..., Any]:
    """The function, before whose first call another process deletes a checkpoint."""

    def wrapped(*args: Any, **keywords: Any) -> Any:
        if folder.exists():
            checkpoint._remove(folder)
        return read(*args, **keywords)

    return wrapped


@pytest.mark.parametrize("reader", ["read_meta", "load_module"])
def test_another_checkpoint_is_chosen(reader: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, reader, deleting_first(step_folder(run, 12), getattr(loading, reader)))
    origin = loading.open_pipeline(str(run)).origin
    assert origin is not None
    assert origin.step == 8


def test_a_step_that_the_user_named_is_not_replaced(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("eval", "sample"):
        folder = step_folder(run, 12 if command == "eval" else 8)
        with monkeypatch.context() as patch:
            patch.setattr(loading, "read_meta", deleting_first(folder, loading.read_meta))
            outcome = quintet(command, f"{run}@{checkpoint.step_of(folder)}", "--out", run / "out")
        assert outcome.code == 1
        assert f"{folder} was deleted while it was read: its run is still training" in error_line(outcome.errors)


def test_weights_of_one_evaluation_are_of_one_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quintet import evaluation

    monkeypatch.setattr(evaluation, "load_live", deleting_first(step_folder(run, 12), evaluation.load_live))
    pipeline, live = evaluation.open_with_live(str(run))
    assert pipeline.origin is not None
    assert pipeline.origin.step == 8
    assert live is not None


def test_verify_chooses_other_steps(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.copytree", deleting_first(step_folder(run, 8), shutil.copytree))
    assert "reproduced: steps 4 to 12" in succeed("verify", run).output


def test_verify_does_not_replace_a_step_that_the_user_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.copytree", deleting_first(step_folder(run, 8), shutil.copytree))
    outcome = quintet("verify", run, "--from", 8)
    assert (outcome.code, "was deleted while it was read" in error_line(outcome.errors)) == (1, True)


def test_a_replaced_pointer_is_read_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reading the pointer and listing the checkpoints, a better one was saved and the former deleted."""
    root = run / "checkpoints"
    checkpoint.write_pointer(root, "best", step_folder(run, 8))
    steps = checkpoint.steps

    def replaced(folder: Path) -> list[Path]:
        if step_folder(run, 8).exists():
            checkpoint.write_pointer(root, "best", step_folder(run, 12))
            checkpoint._remove(step_folder(run, 8))
        return steps(folder)

    monkeypatch.setattr(checkpoint, "steps", replaced)
    assert checkpoint.read_pointer(root, "best") == step_folder(run, 12)
