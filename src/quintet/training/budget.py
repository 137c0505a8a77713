"""The start of a run with `--budget`: times a few steps in a temporary folder, and chooses the keys of the run.

`config/budget.py` has the rules; `pace.py` keeps the run on time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.common.rank import RankInfo
from quintet.config import RunConfig
from quintet.config.budget import Budget
from quintet.data.splits import Splits
from quintet.training import prepare
from quintet.training.engine import Engine
from quintet.training.pace import Pace
from quintet.training.run_folder import Run
from quintet.training.task import Task
from quintet.training.trainer import Trainer

MAX_FRACTION = 0.02
"""The fraction of the budget that the timed steps may take, after the first two."""
MAX_STEPS = 20


@dataclass(frozen=True)
class Chosen:
    """What a budget has chosen, and what measuring it has opened already."""

    config: RunConfig
    splits: Splits
    engine: Engine
    pace: Pace


def choose(config: RunConfig, budget: Budget, make_task: Callable[[RunConfig], Task[Any]]) -> Chosen:
    """The configuration of a run with a budget. Reads the data, and times steps in a temporary folder."""
    processes = RankInfo.from_environment().world_size
    task = make_task(config)
    prepare.check_before_data(task)
    splits = prepare.open_splits(task)
    multiple = processes * config.train.micro_batches
    batch = budget.batch_keys(config, len(splits.train), task.traits.minimum_batch, multiple)
    if any(config.train.batch_size != size for size in batch.values()):
        config = config.changed(batch)
        task = make_task(config)
    with tempfile.TemporaryDirectory(prefix="quintet-budget-") as folder:
        trial = Trainer(task, Run(Path(folder) / "trial"), splits=splits, silent=True)
        try:
            seconds = trial.engine.from_main(round(1e9 * seconds_per_step(trial, MAX_FRACTION * budget.seconds))) / 1e9
        finally:
            trial.close_outputs()
            trial.close()
    chosen = {"train.grad_accum_steps": trial.config.train.grad_accum_steps}
    config = config.changed({**budget.length_keys(config, max(seconds, 1e-9)), **chosen})
    return Chosen(config, splits, trial.engine, Pace(budget.seconds, config.train.steps, config.eval.every))


def seconds_per_step(trainer: Trainer, limit: float) -> float:
    """The mean time of some steps without the first, which is slower. They take no more time than `limit`, except that
    one is always timed; a run of only one step has no other than the first."""
    began = time.perf_counter()
    trainer.train_step()
    first = time.perf_counter() - began
    steps = 0
    began = time.perf_counter()
    while steps < min(MAX_STEPS, trainer.config.train.steps - 1):
        used = time.perf_counter() - began
        # All processes stop at the same step.
        if steps and trainer.engine.any_rank(used + used / steps > limit)[0]:
            break
        trainer.train_step()
        steps += 1
    return (time.perf_counter() - began) / steps if steps else first
