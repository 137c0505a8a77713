"""Owns the only training loop.

One step:

    micro-batches of step s                        a pure function of (seed, s): training/order.py
    recipe.backward(micro_batches)                 per micro-batch one forward, then each phase's loss and backward
    flags = all ranks' [non-finite, stop asked]    the only read from the device in a step
    if finite:
        per phase: clip, learning rate of s, optimizer step
        recipe.after_step(statistics)              codebooks and the like, from the whole global batch
        average of the weights
    else:
        nothing changes but the count; what is to blame is named
        too many in a row: back to the last good checkpoint, if `train.max_rollbacks` allows, or stop
    every n steps: log; evaluate; sample; save     all ranks enter, rank 0 writes (each its part, where sharded)

The public `…Trainer` classes are this loop bound to a recipe.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common import collectives
from quintet.common.batch import Batch
from quintet.common.rank import RankInfo
from quintet.common.statistics import Statistics
from quintet.common.weights import checkpoint
from quintet.common.weights.loading import copy_tensors
from quintet.common.weights.pretrained import pickle_hint
from quintet.config import RunConfig
from quintet.data.splits import Splits
from quintet.errors import RunError, UsageError
from quintet.training.display import Display
from quintet.training.distributed import sharding
from quintet.training.engine import Engine
from quintet.training.evaluate import evaluate, make_artifacts
from quintet.training.finite import broken_tensors, largest_moment
from quintet.training.loader import Loaded, Loader
from quintet.training.metrics import Meter, Stopwatch, Tracker, check_trackers, make_trackers
from quintet.training.optim import Schedule, clip_gradients, gradient_norm, learning_rate, set_learning_rate
from quintet.training.order import Order
from quintet.training.prepare import (
    changed_data,
    check_sharding,
    check_sizes,
    data_record,
    place_links,
    refuse_other_version,
    resolve,
    stands_still,
)
from quintet.training.run_folder import Run
from quintet.training.signals import StopRequest
from quintet.training.state import TrainingState, environment, newest_good
from quintet.training.task import Modules, Task

Logs = dict[str, Any]
LogFunction = Callable[[Logs], None]
Weights = Mapping[str, Mapping[str, Tensor]]
"""Module name to its tensors."""


class Trainer:
    """Trains a recipe in a run folder. Everything a run is lives in `recipe.config` and in that folder."""

    def __init__(
        self,
        recipe: Task[Any],
        run: Run,
        *,
        splits: Splits | None = None,
        resume: bool = False,
        force: bool = False,
        init: Weights | None = None,
        lr_schedule: Schedule | None = None,
        silent: bool = False,
    ) -> None:
        config: RunConfig = recipe.config
        self.recipe = recipe
        self.run = run
        # Before the processes join: what all of them refuse must not look like the death of one of them.
        check_trackers(config.log.trackers)
        place_links(recipe)  # also where the sources are handed over: samples are decoded by what it stands on
        self.splits = splits or recipe.splits()
        check_sharding(recipe)
        check_sizes(recipe, self.splits, max(RankInfo.from_environment().world_size, collectives.world_size()))
        self.engine = Engine(config.engine, config.train.seed)
        self.display = Display(run.folder.name, silent or not self.engine.is_main)
        run.tell = self.display.note
        if self.engine.watch is not None:
            self.engine.watch.tell = run.write_log_once_begun
        self.config = recipe.config = config if resume else resolve(config, len(self.splits.train))
        self.lr_schedule = lr_schedule or (lambda step: learning_rate(self.config.optim, step))
        self.engine.place(recipe.modules)
        self.modules = self.engine.wrap(recipe.modules, recipe.find_unused_parameters, recipe.uncompiled)
        self.meter = Meter()
        self.trackers: list[Tracker] = []
        self.saved_step: int | None = None
        self._stop = StopRequest()
        self._stream: Iterator[list[Loaded]] | None = None
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
            self.run.begin(self.config, data_record(self.splits), self._link_contents())

    def _set_out(self, init: Weights | None) -> None:
        """The state before the first step."""
        loader = self._loader(self.splits.train)
        loader.check_readable()
        self._loader(self.splits.validation).check_readable()
        if init:
            for name in init.keys() & self.recipe.modules.keys():
                tensors = init[name]
                copy_tensors(self.recipe.modules[name], tensors, f"--init {self.config.init}")
        else:
            first = loader.opening(self._order(), self.config.train.accumulate, self.recipe.num_init_batches)
            self.recipe.initialise(self.modules, (self._moved(loaded) for loaded in first), self.engine)
        self.state = TrainingState(self.recipe, self.engine)

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
            self.run.write_first(self.config, data_record(self.splits), self._link_contents())
            self.run.drop_metrics_after(0)
        self.print("there is no checkpoint yet: the run begins again")

    def _restore(self, folder: Path, problems: list[str], force: bool) -> None:
        self._keep_to_data(force)
        self.state = TrainingState(self.recipe, self.engine)
        meta = self.state.restore(folder)
        if not force:
            refuse_other_version(folder, meta)
        self.saved_step = self.step
        for problem in problems:
            self.print(f"damaged checkpoint passed over: {problem}")
        if self.engine.is_main:
            self._leave_newer("damaged")
            self.run.write_first(self.config, data_record(self.splits), self._link_contents())
            self.run.drop_metrics_after(self.step)
            self._point("latest", self.step)
            # The file may be damaged or behind; without it the best checkpoint would be deleted as an old one.
            self._point("best", self.state.progress.best_step)
        self.print(f"resumed from {folder}")
        for name, now in environment().items():
            if meta.get(name) != now:
                self.print(f"warning: {name} was {meta.get(name)} and is {now}: results agree, but not to the last bit")

    def _keep_to_data(self, force: bool) -> None:
        difference = changed_data(self.run, self.splits)
        if difference and not force:
            raise UsageError(
                f"the data changed since the run started ({difference}); put it back, go on with what is there "
                f"(`quintet resume {self.run.folder} --force`), or start a new run with --init {self.run.folder}"
            )
        if difference:
            self.print(f"forced: the data changed since the run started ({difference})")

    def _leave_newer(self, why: str) -> None:
        """Take checkpoints that the run no longer follows out of the row."""
        for newer in checkpoint.steps(self.run.checkpoints):
            if checkpoint.step_of(newer) > self.step:
                checkpoint.set_aside(newer, why)

    def _link_contents(self) -> dict[str, checkpoint.Contents]:
        return {name: link.contents for name, link in self.recipe.links.items()}

    def _loader(self, source: Any) -> Loader:
        config = self.config
        return Loader(
            source,
            config.train.seed,
            self.recipe.collate,
            self.engine,
            config.data.workers,
            self._skipped,
            self.print,
        )

    def _order(self) -> Order:
        train = self.splits.train
        size, seed = self.config.train.batch_size, self.config.train.seed
        return Order(len(train), size, seed, self.recipe.lengths(train), self.splits.portions)

    def _moved(self, loaded: Loaded) -> Batch:
        return loaded.batch.to(self.engine.device, self.engine.dtype)

    # --- the loop -------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self.state.progress.step

    def train(self, log_fn: LogFunction | None = None) -> None:
        """Train to the last step, the time limit or a signal; always leaves a checkpoint of where it stopped."""
        with StopRequest(self.config.train.minutes) as self._stop:
            self._train(log_fn)
        if self._stop.received is not None:
            raise SystemExit(128 + self._stop.received)

    def __call__(self) -> None:
        self.train()

    def _train(self, log_fn: LogFunction | None) -> None:
        if self.engine.is_main and not self.trackers:
            self.trackers = make_trackers(self.config, self.run.folder)
        self.display.start(self.step, self.config.train.steps)
        if stands_still(self.config, self.step):
            self.print(
                f"warning: the learning rate is 0 from step {self.config.optim.horizon} on, where the schedule ends; "
                f"resume with optim.horizon={self.config.train.steps} and --force to stretch it"
            )
        self.stopwatch = Stopwatch()
        stopped = False
        try:
            self._write_state("running")
            while self.step < self.config.train.steps and not stopped:
                logs = self.train_step()
                stopped = bool(logs.pop("stop_asked"))
                logs.update(self._due_work(final=stopped or self.step == self.config.train.steps))
                if log_fn is not None:
                    log_fn(logs)
            self._write_state("stopped" if stopped else "finished")
        except BaseException as error:
            self.run.write_log(f"process {self.engine.rank} failed at step {self.step}:\n{traceback.format_exc()}")
            failure = self._explained(error)
            self._write_state("failed", error=str(failure or error))
            if failure is None:
                raise
            raise failure from None
        finally:
            self._stream = None
            self.display.stop()
            for tracker in self.trackers:
                self.run.observe(type(tracker).__name__, tracker.close)
            self.trackers = []
        if stopped:
            why = self._stop.received.name if self._stop.received else "another process or the time limit"
            self.print(f"stopped at step {self.step} by {why}; continue with `quintet resume {self.run.folder}`")

    def _explained(self, error: BaseException) -> RunError | None:
        size = self.config.train.batch_size // (self.config.train.accumulate * self.engine.world_size)
        return self.engine.explain(error, self.config.train.accumulate, size)

    def train_step(self) -> Logs:
        """One optimizer step. Returns its loss parts as tensors, still on the device."""
        began = time.perf_counter()
        loaded = self._next_batch()
        batches = [self._moved(each) for each in loaded]
        ready = time.perf_counter()
        step = self.step
        report = self.recipe.backward(batches, self.modules, self.engine, step)
        norms = self._gradient_norms(step)
        values = [*report.metrics.values(), *norms.values(), *self._largest_moments(norms)]
        finite = torch.stack([value.float() for value in values]).isfinite().all()
        bad, stop_asked = self.engine.any_rank(~finite, self._stop.asked)
        if not bad:
            self._apply(norms, report.statistics, step)
        computed = time.perf_counter()
        self._clear_gradients()
        self._advance()
        if bad:
            self._note_bad_step(batches)
        else:
            self.state.progress.bad_steps_in_a_row = 0
            self.meter.add({**report.metrics, **{f"{name}/gradient_norm": norm for name, norm in norms.items()}})
        self.stopwatch.step(waiting=ready - began, computing=computed - ready)
        return {**report.metrics, "step": self.step, "stop_asked": stop_asked}

    def _next_batch(self) -> list[Loaded]:
        if self._stream is None:
            loader = self._loader(self.splits.train)
            steps = self.config.train.steps
            self._stream = loader.training(self._order(), self.step, steps, self.config.train.accumulate)
        try:
            return next(self._stream)
        except StopIteration:
            raise RunError(f"all {self.config.train.steps} steps are taken; raise train.steps to go on") from None

    def _gradient_norms(self, step: int) -> dict[str, Tensor]:
        return {
            state.phase.name: gradient_norm(state.parameters) for state in self.state.phases if state.phase.active(step)
        }

    def _largest_moments(self, phases: Collection[str]) -> list[Tensor]:
        moments = [largest_moment(state.optimizer) for state in self.state.phases if state.phase.name in phases]
        return [moment for moment in moments if moment is not None]

    def _apply(self, norms: Mapping[str, Tensor], statistics: Statistics, step: int) -> None:
        """The step is accepted: move weights, then what depends on them."""
        factor = self.lr_schedule(step) / self.config.optim.lr
        for state in self.state.phases:
            if state.phase.name not in norms:
                continue
            if state.phase.optim.clip is not None:
                clip_gradients(state.parameters, norms[state.phase.name], state.phase.optim.clip)
            set_learning_rate(state.optimizer, state.phase.optim.lr * factor)
            state.optimizer.step()
        self.recipe.after_step(statistics.over_ranks(), step)
        if self.state.average is not None:
            self.state.average.update(step)

    def _clear_gradients(self) -> None:
        for state in self.state.phases:
            state.optimizer.zero_grad(set_to_none=True)

    def _advance(self) -> None:
        self.state.progress.step += 1
        self.state.progress.items_seen += self.config.train.batch_size

    def _note_bad_step(self, batches: list[Batch]) -> None:
        progress = self.state.progress
        progress.bad_steps += 1
        progress.bad_steps_in_a_row += 1
        kind, names = self._culprits(batches)
        where = "loss or gradient" if kind == "items" else "weights or optimizer state"
        self.print(f"step {self.step}: non-finite {where}, step skipped; {kind}: {', '.join(names)}")
        if self.engine.is_main:
            self.run.write_metrics({"step": self.step, "train/bad_steps": progress.bad_steps, kind: names})
        if progress.bad_steps_in_a_row >= self.config.train.max_bad_steps and not self._roll_back():
            self._give_up()

    def _culprits(self, batches: list[Batch]) -> tuple[str, list[str]]:
        """What to name for a bad step: broken tensors of the run itself, else items."""
        broken = self._broken_tensors()
        if broken:
            more = [f"and {len(broken) - 3} more"] if len(broken) > 3 else []
            return "tensors", [*broken[:3], *more]
        names = self._gathered([name for batch in batches for name in batch.suspects()])
        # Where no item holds a non-finite number itself, any of them may have caused one.
        return "items", names or self._gathered([name for batch in batches for name in batch.names])

    def _broken_tensors(self) -> list[str]:
        """Of the whole state, wherever its parts lie."""
        broken = broken_tensors(self.state.tensors())
        return list(dict.fromkeys(self._gathered(broken))) if self.engine.is_sharded else broken

    def _roll_back(self) -> bool:
        """Go back to the last good checkpoint, and on with the items that come next; False if it may not be."""
        progress = self.state.progress
        if progress.rollbacks >= self.config.train.max_rollbacks:
            return False
        step = self.engine.from_main(newest_good(self.run.checkpoints) if self.engine.is_main else -1)
        if step < 0:
            return False
        self.state.restore(checkpoint.folder_of(self.run.checkpoints, step))
        self.state.progress = replace(progress, bad_steps_in_a_row=0, rollbacks=progress.rollbacks + 1)
        self.print(
            f"rolled back to the weights of step {step}, on with other items "
            f"({self.state.progress.rollbacks} of {self.config.train.max_rollbacks} roll-backs)"
        )
        return True

    def _give_up(self) -> None:
        broken = self._broken_tensors()
        if broken:
            last = f"step {self.saved_step} is the newest saved and is finite" if self.saved_step else "none was saved"
            raise RunError(
                f"step {self.step}: the run's own tensors are not finite any more ({broken[0]}) and were not saved; "
                f"{last}; lower optim.lr, or let the run go back by itself with train.max_rollbacks"
            )
        self.save()
        raise RunError(
            f"{self.state.progress.bad_steps_in_a_row} non-finite steps in a row (train.max_bad_steps); weights are "
            f"finite and saved at step {self.step}; look at the items named in {self.run.log_file}, or lower optim.lr"
        )

    def _gathered(self, names: list[str]) -> list[str]:
        """The names of all ranks."""
        texts = collectives.gather_texts(json.dumps(names), self.engine.device)
        return [name for text in texts for name in json.loads(text)]

    # --- what happens every n steps ---------------------------------------------------------------------------

    def _due_work(self, final: bool) -> Logs:
        config, step = self.config, self.step
        logs: Logs = {}
        self.display.update(step)
        if step % config.log.every == 0 or final:
            logs.update(self._log())
        validates, samples = (
            step % section.every == 0 or step == config.train.steps for section in (config.eval, config.sample)
        )
        # Not amid bad steps: the newest checkpoint is what a roll-back returns to.
        due = step % config.checkpoint.every == 0 or self._save_postponed
        self._save_postponed = due and self.state.progress.bad_steps_in_a_row > 0
        saves = final or (due and not self._save_postponed)
        with self.stopwatch.paused():
            # A broken tensor that no loss has met yet, a code that nobody uses for one.
            looks = validates or samples or saves
            if looks and self._broken_tensors() and (final or not self._roll_back()):
                self._give_up()
            if validates:
                logs.update(self._validate())
            if samples:
                logs.update(self._sample())
            if saves:
                self.save(final)
        return logs

    def _log(self) -> dict[str, float]:
        figures = {f"train/{name}": value for name, value in self.meter.read().items()}
        figures["train/lr"] = self.lr_schedule(self.step - 1)
        figures.update(
            {f"train/{name}": value for name, value in self.stopwatch.read(self.config.train.batch_size).items()}
        )
        self._share_skipped()
        self.log(**figures)
        self.display.update(self.step, figures, self.engine.memory_in_use())
        self._write_state("running")
        return figures

    def _share_skipped(self) -> None:
        """Let `data.json` name the items that any rank found unreadable."""
        gathered = collectives.gather_texts(json.dumps(self._skipped), self.engine.device)
        skipped = {name: reason for text in gathered for name, reason in json.loads(text).items()}
        new = skipped.keys() - self.splits.skipped.keys()
        self.splits.skipped.update(skipped)
        for name in sorted(new):
            self.print(f"unreadable item replaced: {name} ({skipped[name]})")
        if new and self.engine.is_main:
            self.run.update_data(data_record(self.splits))

    def evaluate(self, modules: Modules | None = None, batches: int | None = None) -> dict[str, float]:
        """The recipe's figures over the validation items; of the averaged weights unless told otherwise."""
        size = self.config.eval.batch_size or self.config.train.batch_size // self.config.train.accumulate
        loader = self._loader(self.splits.validation)
        return evaluate(self.recipe, modules or self.state.averaged_modules(), loader, self.engine, size, batches)

    def _validate(self) -> dict[str, float]:
        averaged = self.evaluate(self.state.averaged_modules(), self.config.eval.batches)
        figures = {f"validation/{name}": value for name, value in averaged.items()}
        if self.state.average is not None and self.config.eval.live:
            live = self.evaluate(self.recipe.modules, self.config.eval.batches)
            figures.update({f"validation/live/{name}": value for name, value in live.items()})
        self._share_skipped()
        self.log(**figures)
        said = "  ".join(f"{name} {value:.4g}" for name, value in figures.items() if "/live/" not in name)
        if self.engine.is_main:
            self.run.write_log(f"step {self.step}: {said}")
        self.display.validated(self.step, averaged)
        self._keep_best(averaged)
        return figures

    def _keep_best(self, figures: Mapping[str, float]) -> None:
        metric, direction = self.recipe.best
        value, progress = figures[metric], self.state.progress
        if not math.isfinite(value):
            return
        sign = 1 if direction == "max" else -1
        if progress.best_value is None or sign * value > sign * progress.best_value:
            progress.best_value, progress.best_step = value, self.step
            self.save()
            if self.engine.is_main and self.saved_step == self.step:
                self._point("best", self.step)

    def _sample(self) -> Logs:
        """Things to look at, from the averaged and the live weights. Every rank makes them, rank 0 writes them."""
        batch = self._moved(self._loader(self.splits.validation).first(self.config.sample.num))
        kinds: dict[str, Modules] = {"": self.state.averaged_modules()}
        if self.state.average is not None:
            kinds["live-"] = self.recipe.modules
        logs: Logs = {}
        for prefix, modules in kinds.items():
            for artifact in make_artifacts(self.recipe, modules, batch, self.engine):
                if artifact.tensor is not None and not prefix:
                    logs[Path(artifact.file).stem] = artifact.tensor
                if self.engine.is_main:
                    self.run.write_sample(self.step, prefix, artifact.file, artifact.write, artifact.about)
        return logs

    def save(self, final: bool = False) -> None:
        """A checkpoint of this step, if there is none yet. A failure is said, and leaves the last one as it was;
        it is an error only where no later step can make up for it."""
        if self.saved_step == self.step:
            return
        writes = self.engine.is_main or self.engine.is_sharded
        problem = self._write_checkpoint() if writes else "see the first process"
        self.engine.barrier()
        saved = self.engine.from_main(self.saved_step if self.saved_step is not None else -1)
        self.saved_step = saved if saved >= 0 else None
        if final and self.saved_step != self.step:
            raise RunError(f"could not save the last step in {self.run.checkpoints}: {problem}")

    def _write_checkpoint(self) -> str:
        """What was in the way, or nothing."""
        problem = ""
        try:
            contents = self.state.contents(self.engine.world_size, self.splits.fingerprint)
            if broken := self._broken_tensors():
                raise OSError(f"{broken[0]} is not finite")
            if self.engine.is_sharded:
                sharding.write(self.run.checkpoints, self.step, contents, self.engine.device)
            else:
                checkpoint.write(self.run.checkpoints, self.step, contents)
            self.saved_step = self.step
        except OSError as error:
            problem = str(error)
            self.print(f"warning: could not save step {self.step} ({problem}); the last checkpoint is unharmed")
        if self.engine.is_main:
            self._prune()
        return problem

    def _point(self, name: str, step: int | None) -> None:
        """Let `latest` or `best` name a checkpoint that stands; nothing depends on it, so that it may be lost."""
        folder = checkpoint.folder_of(self.run.checkpoints, step or 0)
        if folder.is_dir():
            self.run.observe(f"checkpoints/{name}", partial(checkpoint.point, self.run.checkpoints, name, folder))

    def _prune(self) -> None:
        try:
            checkpoint.prune(self.run.checkpoints, self.config.checkpoint.keep)
        except OSError as error:
            self.print(f"warning: could not delete an old checkpoint ({error})")

    def load(self, path: Path | str, restore_optimizer: bool = True) -> None:
        """Continue from another checkpoint folder of the same recipe."""
        folder = Path(path)
        if not folder.is_dir():
            raise UsageError(f"{folder} is not the folder of a checkpoint{pickle_hint(folder)}")
        checkpoint.verify(folder)
        self.state.restore(folder, restore_optimizer)
        self._stream = None
        self.saved_step = None
        if self.engine.is_main:
            # Otherwise a crash would be followed by a resume from what was just given up.
            self._leave_newer("abandoned")
            self.run.drop_metrics_after(self.step)

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

    def _write_state(self, status: Any, **more: Any) -> None:
        if self.engine.is_main:
            progress = self.state.progress
            best = (
                None
                if progress.best_value is None
                else {"metric": self.recipe.best[0], "value": progress.best_value, "step": progress.best_step}
            )
            self.run.write_state(
                status,
                recipe=self.recipe.name,
                step=self.step,
                steps=self.config.train.steps,
                best=best,
                device=self.engine.device_name,
                **more,
            )
