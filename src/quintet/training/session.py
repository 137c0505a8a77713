"""`TrainingSession`: everything that exists before the first step of a new or resumed run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common import collectives
from quintet.common.batch import Batch
from quintet.common.rank import RankInfo
from quintet.common.weights import checkpoint
from quintet.common.weights.loading import copy_tensors
from quintet.config import RunConfig
from quintet.data.splits import Splits
from quintet.errors import RunError, UsageError
from quintet.training import prepare
from quintet.training.display import Display
from quintet.training.engine import Engine
from quintet.training.guard import NonFiniteGuard, Saver
from quintet.training.loader import LoadedBatch, Loader
from quintet.training.metrics import Meter, Stopwatch, Tracker, check_trackers
from quintet.training.optim import Schedule, learning_rate
from quintet.training.order import Order
from quintet.training.run_folder import Run
from quintet.training.signals import StopRequest
from quintet.training.state import TrainingState, environment
from quintet.training.task import Task

Weights = Mapping[str, Mapping[str, Tensor]]
"""Module name to its tensors."""


class TrainingSession:
    """A task in a run folder, ready to train: data, processes, modules and state of a new or a resumed run."""

    def __init__(
        self,
        task: Task[Any],
        run: Run,
        *,
        splits: Splits | None = None,
        resume: bool = False,
        force: bool = False,
        init: Weights | None = None,
        lr_schedule: Schedule | None = None,
        silent: bool = False,
    ) -> None:
        config: RunConfig = task.config
        self.task = task
        self.run = run
        # Before the processes join: what all of them refuse must not look like the death of one of them. And before the
        # data: encoding it can take hours.
        check_trackers(config.log.trackers)
        prepare.check_task(task)
        prepare.check_sharding(task)
        prepare.check_processes(task, max(RankInfo.from_environment().world_size, collectives.world_size()))
        prepare.place_frozen(task)  # also where the splits are handed over: samples are decoded by the tokenizer
        self.splits = splits or task.splits()
        prepare.check_data(task, self.splits)
        self.engine = Engine(config.engine, config.train.seed)
        self.display = Display(run.folder.name, silent or not self.engine.is_main)
        run.tell = self.display.note
        if self.engine.watch is not None:
            self.engine.watch.tell = run.write_log_once_begun
        self.config = task.config = config if resume else prepare.resolve(config, len(self.splits.train))
        self.lr_schedule = lr_schedule or (lambda step: learning_rate(self.config.optim, step))
        self.engine.place(task.modules)
        self.modules = self.engine.wrap(task.modules, task.traits.find_unused_parameters, task.traits.uncompiled)
        self.meter = Meter()
        self.trackers: list[Tracker] = []
        self._stop = StopRequest()
        self._stream: Iterator[LoadedBatch] | None = None
        self._skipped: dict[str, str] = {}
        self._save_postponed = False
        self.stopwatch = Stopwatch()
        try:
            self._resume(init, force) if resume else self._begin(init)
        except (RuntimeError, MemoryError) as error:
            raise self._explained(error) or error from None

    # --- beginning ------------------------------------------------------------------------------------------

    def _begin(self, init: Weights | None) -> None:
        self._set_out(init)
        # The folder appears only now: whatever does not fit has been found out by the line above.
        if self.engine.is_main:
            self.run.begin(self.config, prepare.data_record(self.splits), self._frozen_contents())

    def _set_out(self, init: Weights | None) -> None:
        """The state before the first step."""
        loader = self._loader(self.splits.train)
        loader.check_readable()
        self._loader(self.splits.validation).check_readable()
        if init:
            for name in init.keys() & self.task.modules.keys():
                tensors = init[name]
                copy_tensors(self.task.modules[name], tensors, f"--init {self.config.init}")
        else:
            first = loader.opening(self._order(), self.config.train.grad_accum_steps, self.task.num_init_batches)
            self.task.init_from_data(self.modules, (self._moved(loaded) for loaded in first), self.engine)
        self._make_state()

    def _make_state(self) -> None:
        self.state = TrainingState(self.task, self.engine)
        self.saver = Saver(self.run, self.engine, self.state, self.splits.fingerprint, self.print)
        self.guard = NonFiniteGuard(self.run, self.engine, self.state, self.saver, self.print)

    def _resume(self, init: Weights | None, force: bool) -> None:
        if self.engine.is_main:
            self.run.lock()
        try:
            step = -1
            problems: list[str] = []
            if self.engine.is_main and checkpoint.steps(self.run.checkpoints):
                folder, problems = checkpoint.newest_sound(self.run.checkpoints)
                step = checkpoint.step_of(folder)
            step = self.engine.from_main(step)
            if step < 0:
                self._begin_again(init, force)
            else:
                self._restore(checkpoint.folder_of(self.run.checkpoints, step), problems, force)
        except BaseException:
            self.run.close()
            raise

    def _begin_again(self, init: Weights | None, force: bool) -> None:
        """The process ended before its first checkpoint: the same run, from the same start."""
        if self.run.data_file.exists():
            self._keep_to_data(force)
        self._set_out(init)
        if self.engine.is_main:
            self.run.write_first(self.config, prepare.data_record(self.splits), self._frozen_contents())
            self.run.drop_metrics_after(0)
        self.print("there is no checkpoint yet: the run begins again")

    def _restore(self, folder: Path, problems: list[str], force: bool) -> None:
        self._keep_to_data(force)
        self._make_state()
        meta = self.state.restore(folder)
        if not force:
            prepare.refuse_other_version(folder, meta)
        self.saver.saved_step = self.step
        for problem in problems:
            self.print(f"damaged checkpoint passed over: {problem}")
        if self.engine.is_main:
            self.saver.set_newer_aside("damaged")
            self.run.write_first(self.config, prepare.data_record(self.splits), self._frozen_contents())
            self.run.drop_metrics_after(self.step)
            self.saver.point("latest", self.step)
            # The file may be damaged or behind; without it the best checkpoint would be deleted as an old one.
            self.saver.point("best", self.state.progress.best_step)
        self.print(f"resumed from {folder}")
        for name, now in environment().items():
            if meta.get(name) != now:
                self.print(f"warning: {name} was {meta.get(name)} and is {now}: results agree, but not to the last bit")

    def _keep_to_data(self, force: bool) -> None:
        difference = prepare.changed_data(self.run, self.splits)
        if difference and not force:
            raise UsageError(
                f"the data changed since the run started ({difference}); put it back, go on with what is there "
                f"(`quintet resume {self.run.folder} --force`), or start a new run with --init {self.run.folder}"
            )
        if difference:
            self.print(f"forced: the data changed since the run started ({difference})")

    def _frozen_contents(self) -> dict[str, checkpoint.Contents]:
        return {name: pipeline.contents() for name, pipeline in self.task.frozen.items()}

    def _loader(self, source: Any) -> Loader:
        seed, workers = self.config.train.seed, self.config.data.num_workers
        return Loader(source, seed, self.task.collate, self.engine, workers, self._skipped, self.print)

    def _order(self) -> Order:
        train = self.splits.train
        size, seed = self.config.train.batch_size, self.config.train.seed
        return Order(len(train), size, seed, self.task.lengths(train), self.splits.shard_shuffle)

    def _moved(self, loaded: LoadedBatch) -> Batch:
        return loaded.batch.to(self.engine.device, self.engine.dtype)

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self.state.progress.step

    def _explained(self, error: BaseException) -> RunError | None:
        size = self.config.train.batch_size // (self.config.train.grad_accum_steps * self.engine.world_size)
        return self.engine.explain(error, self.config.train.grad_accum_steps, size)

    # --- telling ------------------------------------------------------------------------------------------------

    def log(self, **figures: float) -> None:
        """One row in metrics.jsonl and in every tracker."""
        if self.engine.is_main:
            self.run.write_metrics({"step": self.step, "time": time.time(), **figures})
            for tracker in self.trackers:
                self.run.observe(type(tracker).__name__, partial(tracker.log, figures, self.step))

    def print(self, text: str) -> None:
        """Say something once, on the console and in log.txt."""
        if self.engine.is_main:
            self.run.write_log(text)
            self.display.note(text)

    def wait(self) -> None:
        """Wait for the other processes."""
        self.engine.barrier()

    def close(self) -> None:
        self.run.close()

    @property
    def saved_step(self) -> int | None:
        return self.saver.saved_step

    def save(self, final: bool = False) -> None:
        self.saver.save(final)

    @property
    def device(self) -> torch.device:
        return self.engine.device

    @property
    def is_main(self) -> bool:
        return self.engine.is_main

    @property
    def is_local_main(self) -> bool:
        return self.engine.is_local_main

    @property
    def is_distributed(self) -> bool:
        return self.engine.is_distributed
