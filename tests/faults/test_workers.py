"""Data workers that die are started again, and the training ends in the same bytes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from contract.cases import Case
from contract.worlds import make_task
from faults.conftest import Ledger, Words
from helpers import (
    LAST_STEP,
    Process,
    children,
    forked,
    log_text,
    state,
    succeed,
    tensor_hashes,
    wait_for_step,
    wait_until,
)
from quintet.common.batch import Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.errors import RunError
from quintet.training.run_folder import Run
from quintet.training.task import Task
from quintet.training.trainer import Trainer


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=lambda number: number.name)
def test_killed_workers_are_started_again(
    number: signal.Signals, unending: Words, straight: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    deaths = 2
    with forked([*unending, "data.num_workers=2", "--out", run], tmp_path / "said") as process:
        for death in range(1, deaths + 1):
            wait_for_step(run, 8 * death, process)
            wait_until(lambda: len(children(process.pid)) >= 2, process, "there were workers")
            os.kill(children(process.pid)[0], number)
            wait_until(lambda death=death: started_again(process) >= death, process, "the workers were started again")
        wait_for_step(run, LAST_STEP, process)
        process.send(signal.SIGTERM)
        assert process.end() == 128 + signal.SIGTERM, process.seen

    assert "Traceback" not in process.seen
    assert "a data worker died" in log_text(run)
    assert tensor_hashes(run, LAST_STEP) == tensor_hashes(straight, LAST_STEP)
    ledger("worker-killed", deaths)


def started_again(process: Process) -> int:
    return process.seen.count("restarting the workers")


@dataclass
class Deadly:
    """A source that kills the process that reads it, unless that is the training itself."""

    source: Dataset
    trainer: int

    def __len__(self) -> int:
        return len(self.source)

    def name(self, item: int) -> str:
        return self.source.name(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        if os.getpid() != self.trainer:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.source.load(item, rng)


def test_workers_that_always_die_end_the_run_in_one_sentence(
    recipe: str, case: Case, data: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    made: Task[Any] = make_task(recipe, data, (*case.tiny, "data.num_workers=2"))
    splits = made.splits()
    deadly = replace(splits, train=Deadly(splits.train, os.getpid()))
    trainer = Trainer(made, Run.new(run), splits=deadly, silent=True)
    with pytest.raises(RunError, match=r"data workers died 3 times in a row .* data\.num_workers \(now 2\)"):
        trainer.train()
    trainer.close()

    assert state(run)["status"] == "failed"
    # As the sentence proposes, and as if nothing had happened.
    whole = tmp_path / "whole"
    succeed("train", recipe, data, "--out", whole, *case.tiny)
    succeed("resume", run, "data.num_workers=0")
    assert tensor_hashes(run, 12) == tensor_hashes(whole, 12)
    ledger("worker-killed", 3)
