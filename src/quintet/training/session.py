"""`TrainingSession`: sets up a new or resumed run, up to the first step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from quintet.common.batch import Batch
from quintet.common.memory import building, creating_state
from quintet.common.weights import checkpoint
from quintet.common.weights.loading import Weights
from quintet.config import RunConfig
from quintet.data.splits import Splits
from quintet.errors import RunError, UsageError
from quintet.training import patience, prepare
from quintet.training.agreement import check_agreement
from quintet.training.display import Display
from quintet.training.distributed.deferred import recording
from quintet.training.engine import Engine
from quintet.training.finetuning import check_rates, choose_parameters
from quintet.training.guard import NonFiniteGuard
from quintet.training.initial import copy_initial, listed, refuse_untrained
from quintet.training.loader import LoadedBatch, Loader
from quintet.training.metrics import Meter, Stopwatch, Tracker
from quintet.training.micro_batch import MicroBatchSearch, count_items
from quintet.training.order import Order
from quintet.training.planning.fitting import check_memory
from quintet.training.planning.plan import Plan
from quintet.training.run_folder import Run, resume_command
from quintet.training.saver import Saver
from quintet.training.schedule import Schedule, schedule_of
from quintet.training.signals import StopRequest
from quintet.training.skipped import SkippedMessages
from quintet.training.state import TrainingState, environment, environment_changes
from quintet.training.task import Task
from quintet.training.throughput import Throughput


class TrainingSession:
    """A task in a run folder, ready to train: data, process group, modules and training state."""

    repeats_items: ClassVar[bool] = False
    """Whether a step may have more items than there are, if each of its micro-batches fits."""

    def __init__(
        self,
        task: Task[Any],
        run: Run,
        *,
        splits: Splits | None = None,
        resume: bool = False,
        force: bool = False,
        init: Weights | None = None,
        engine: Engine | None = None,
        lr_schedule: Schedule | None = None,
        silent: bool = False,
    ) -> None:
        config: RunConfig = prepare.fix_precision(task)
        task.config = config
        self.task = task
        self.run = run
        with recording(task):
            choose_parameters(task)
        check_rates(task)
        # Before the process group: an error that all processes raise must not look like the death of one of them. And
        # before the data: encoding it can take hours.
        prepare.check_before_data(task)
        plan = check_memory(task)
        prepare.frozen_to_device(task)  # also if splits are passed in: the tokenizer decodes samples
        self.splits = splits or task.splits()
        prepare.check_data(task, self.splits, self.repeats_items)
        self.engine = engine or Engine(config.engine, config.train.seed)
        self.display = Display(run.folder.name, silent or not self.engine.is_main)
        run.notify = self.display.note
        if self.engine.watchdog is not None:
            self.engine.watchdog.log = run.write_log_if_run
        if not resume:
            config = prepare.resolve(config, len(self.splits.train))
            keys = task.data_keys(self.splits)
            config = config.changed(keys) if keys else config
        self.config = task.config = config
        check_agreement(self.engine, task, self.config, self.splits, init)
        self.has_own_schedule = lr_schedule is not None
        self.lr_schedule = lr_schedule or schedule_of(self.config.optim)
        with building(self.config):
            with recording(task):
                self.engine.to_device(task.modules)
            traits = task.traits
            self.modules = self.engine.wrap(
                task.modules, traits.find_unused_parameters, traits.uncompiled, traits.varying_shapes
            )
        self.meter = Meter()
        self.trackers: list[Tracker] = []
        self._stop = StopRequest()
        self._stream: Iterator[LoadedBatch] | None = None
        self._skipped: dict[str, str] = {}
        self._skipped_messages = SkippedMessages()
        self._save_postponed = False
        self._notes: list[str] = []
        """Messages about the start, printed when there is a run folder."""
        self.stopwatch = Stopwatch()
        # Inside of a compiled module, single operations cannot be seen.
        self.throughput = Throughput(counts_flops=not self.config.engine.compile)
        self.peak: float | None = None
        """Peak FLOP/s of all processes, once it is measured."""
        self._opened = time.perf_counter()
        try:
            self._resume(init, force) if resume else self._start(init, plan)
        except (RuntimeError, MemoryError) as error:
            raise self._explain(error) or error from None

    # --- start ----------------------------------------------------------------------------------------------

    def _start(self, init: Weights | None, plan: Plan | None) -> None:
        self._check_readable()
        is_auto = self.config.train.grad_accum_steps == "auto"
        if is_auto:
            search = MicroBatchSearch(self.task, self.engine, self._loader(self.splits.train), self._order(), plan)
            self.config = self.task.config = self.config.changed({"train.grad_accum_steps": search.run()})
        self._init_state(init)
        # The folder is created only now: the lines above have checked everything.
        if self.engine.is_main:
            self.run.begin(self.config, prepare.data_record(self.splits), self._frozen_contents())
        if is_auto:
            train, number = self.config.train, self.config.train.micro_batches
            size = count_items(train.batch_size // number)
            self.print(f"train.grad_accum_steps=auto: {number} micro-batch{'es' if number > 1 else ''} of {size}")

    def _check_readable(self) -> None:
        self._loader(self.splits.train).check_readable()
        self._loader(self.splits.validation).check_validation()

    def _init_state(self, init: Weights | None) -> None:
        """Initialise the state before the first step."""
        loader = self._loader(self.splits.train)
        if init:
            self._copy_initial(init, loader)
        else:
            self._init_from_data(loader)
        self._make_state()

    def _init_from_data(self, loader: Loader) -> None:
        first = loader.init_batches(self._order(), self.config.train.micro_batches, self.task.num_init_batches)
        self.task.init_from_data(self.modules, (self._to_device(loaded) for loaded in first), self.engine)

    def _copy_initial(self, init: Weights, loader: Loader) -> None:
        """Copy what fits of the weights of `--init`. If they lack a part of the model, it is initialised from data."""
        origin = f"--init {self.config.init}"
        with recording(self.task):
            new = copy_initial(self.task, init, origin)
        if new:
            refuse_untrained(self.task, new, origin)
            self._init_from_data(loader)
            with recording(self.task):
                copy_initial(self.task, init, origin)
            self._notes.append(f"{origin} has no weights of these shapes, which start anew: {listed(new)}")

    def _make_state(self) -> None:
        with creating_state():
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
                self._restart(init, force)
            else:
                self._restore(checkpoint.folder_of(self.run.checkpoints, step), problems, force)
        except BaseException:
            self.run.close()
            raise

    def _restart(self, init: Weights | None, force: bool) -> None:
        """Start the same run again, because it ended before its first checkpoint."""
        if self.run.data_file.exists():
            self._check_data(force)
        self._check_readable()
        self._init_state(init)
        if self.engine.is_main:
            self.run.write_initial_files(self.config, prepare.data_record(self.splits), self._frozen_contents())
            self.run.drop_metrics_after(0)
        self.print("there is no checkpoint yet: the run starts again from step 0")

    def _restore(self, folder: Path, problems: list[str], force: bool) -> None:
        self._check_data(force)
        self._check_readable()
        self._make_state()
        meta = self.state.restore(folder)
        if not force:
            prepare.refuse_other_version(folder, meta)
        self.saver.saved_step = self.step
        for problem in problems:
            self.print(f"damaged checkpoint skipped: {problem}")
        if self.engine.is_main:
            self.saver.set_newer_aside("damaged")
            self.run.write_initial_files(self.config, prepare.data_record(self.splits), self._frozen_contents())
            self.run.drop_metrics_after(self.step)
            self.saver.write_pointer("latest", self.step)
            # The pointer may be damaged or outdated; without it the best checkpoint would be pruned.
            self.saver.write_pointer("best", self.state.progress.best_step)
        self.print(f"resumed from {folder}")
        for change in environment_changes(meta, environment(self.engine.device)):
            self.print(f"warning: {change}: results will not be bit-identical")

    def _check_data(self, force: bool) -> None:
        difference = prepare.changed_data(self.run, self.splits)
        if difference and not force:
            raise UsageError(
                f"the data changed since the run started ({difference}); restore it, continue with the changed data "
                f"(`{resume_command(self.run.folder, '--force')}`), or start a new run with --init {self.run.folder}"
            )
        if difference:
            self.print(f"forced: the data changed since the run started ({difference})")

    def _has_validation_items(self) -> bool:
        """Whether a validation item can still be read, on all ranks: files may change during a long training."""
        problem = ""
        try:
            self._loader(self.splits.validation).check_validation()
        except UsageError as error:
            problem = str(error)
        (missing,) = self.engine.any_rank(bool(problem))
        if missing:
            self.print(f"warning: no validation and no samples at step {self.step}: {problem or 'on another process'}")
        return not missing

    def _frozen_contents(self) -> dict[str, checkpoint.Contents]:
        return {name: pipeline.contents() for name, pipeline in self.task.frozen.items()}

    def _loader(self, dataset: Any) -> Loader:
        seed, workers = self.config.train.seed, self.config.data.num_workers
        task = self.task
        return Loader(dataset, seed, task.collate, self.engine, workers, self._skipped, self.print, task.prepare)

    def _order(self) -> Order:
        train = self.splits.train
        size, seed = self.config.train.batch_size, self.config.train.seed
        return Order(len(train), size, seed, self.task.lengths(train), self.splits.shard_shuffle)

    def _to_device(self, loaded: LoadedBatch) -> Batch:
        return loaded.batch.to(self.engine.device, self.engine.dtype)

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self.state.progress.step

    @property
    def last_step(self) -> int:
        """The step up to which batches are read."""
        return self.config.train.steps

    @property
    def is_out_of_patience(self) -> bool:
        """Whether the last `train.patience` validations were no better than one before."""
        return patience.is_exhausted(self.config, self.state.progress)

    def _explain(self, error: BaseException) -> RunError | None:
        size = self.config.train.batch_size // (self.config.train.micro_batches * self.engine.world_size)
        return self.engine.explain(error, self.config.train.micro_batches, size)

    # --- output -------------------------------------------------------------------------------------------------

    def log(self, **metrics: float) -> None:
        """Write one row to metrics.jsonl and to every tracker."""
        if self.engine.is_main:
            self.run.write_metrics({"step": self.step, "time": time.time(), **metrics})
            for tracker in self.trackers:
                self.run.best_effort_write(type(tracker).__name__, partial(tracker.log, metrics, self.step))

    def print(self, text: str) -> None:
        """Print a message on rank 0, to the console and to log.txt."""
        if self.engine.is_main:
            self.run.write_log(text)
            self.display.note(text)

    def wait(self) -> None:
        """Wait for the other processes."""
        self.engine.barrier()

    def close(self) -> None:
        try:
            self.saver.close()
        finally:
            self.run.close()

    @property
    def saved_step(self) -> int | None:
        """The step of the newest checkpoint; waits for a save in flight."""
        self.saver.join()
        return self.saver.saved_step

    def save(self, final: bool = False) -> None:
        """Save a checkpoint of this step, and wait until it is written."""
        self.saver.save(final)
        self.saver.finish()

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
