"""A file that is deleted or replaced while a run trains on it costs that item alone, and is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.cases import Case
from contract.worlds import make_task
from faults.conftest import Ledger
from helpers import copied, log_text, state, tensor_hashes
from quintet.training.order import Order
from quintet.training.run_folder import Run
from quintet.training.task import Task
from quintet.training.trainer import Trainer

CHANGED_AFTER, READ_IN = 4, 8
"""The step after which a file changes, and the step (from 0) that would have read it first."""


def nothing(path: Path) -> None:
    pass


def delete(path: Path) -> None:
    path.unlink()


def rewrite(path: Path) -> None:
    """As long as it was, with something else in it."""
    path.write_bytes(path.read_bytes()[::-1])


def exchange(path: Path) -> None:
    """Another valid file under its name."""
    other = next(
        each for each in sorted(path.parent.iterdir()) if each.name != path.name and each.suffix == path.suffix
    )
    path.unlink()
    shutil.copy(other, path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def pipe(path: Path) -> None:
    """A training that opened it would wait for ever."""
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: dict[str, Callable[[Path], None]] = {
    change.__name__: change for change in (delete, rewrite, exchange, cut, pipe, folder)
}


def train(
    recipe: str, case: Case, data: Path, place: Path, change: Callable[[Path], None], *words: str
) -> tuple[Path, str]:
    """A run on a copy of the data, one file of which changes on the way; and the file's name."""
    own, run = copied(data, place / f"data-{change.__name__}"), place / change.__name__
    made = make_task(recipe, own, (*case.tiny, *words))
    trainer = Trainer(made, Run.new(run), silent=True)
    name = first_read_in(READ_IN, made, trainer)

    def disturb(logs: dict[str, Any]) -> None:
        if logs["step"] == CHANGED_AFTER:
            change(own / name)

    trainer.train(log_fn=disturb)
    trainer.close()
    return run, name


def first_read_in(step: int, recipe: Task[Any], trainer: Trainer) -> str:
    """The name of an item that no step before this one has read."""
    source, train = trainer.splits.train, recipe.config.train
    order = Order(len(source), train.batch_size, train.seed, recipe.lengths(source))
    earlier = {item for number in range(step) for _, item in order.batch(number)}
    return source.name(next(item for _, item in order.batch(step) if item not in earlier))


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_is_replaced_by_another_item_and_named(
    change: str, recipe: str, case: Case, data: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run, name = train(recipe, case, data, tmp_path, CHANGES[change])

    assert state(run)["status"] == "finished"
    if not case.opens_media:
        undisturbed, _ = train(recipe, case, data, tmp_path, nothing)
        assert tensor_hashes(run, 12) == tensor_hashes(undisturbed, 12)
        ledger("file-deleted" if change == "delete" else "file-replaced", 1)
        return
    reason = json.loads((run / "data.json").read_text())["skipped"][name]
    assert ("No such file" if change == "delete" else "changed since the run began") in reason
    assert f"unreadable item replaced: {name} ({reason})" in log_text(run)
    if change != "delete":
        # The replacement of an item depends on the item only.
        deleted, _ = train(recipe, case, data, tmp_path, delete)
        assert tensor_hashes(run, 12) == tensor_hashes(deleted, 12)
    ledger("file-deleted" if change == "delete" else "file-replaced", 1)
