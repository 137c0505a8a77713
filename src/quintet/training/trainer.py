"""`Trainer`: the only training loop.

One step:

    micro-batches of step s                        a pure function of (seed, s): training/order.py
    task.backward(micro_batches)                   per micro-batch one forward, then each phase's loss and backward
    flags = all ranks' [non-finite, stop asked]    the only read from the device in a step
    if finite:
        per phase: clip, learning rate of s, optimizer step
        task.after_step(statistics)                codebooks and the like, from the whole global batch
        average of the weights
    else:
        nothing changes but the count; what is to blame is named
        too many in a row: back to the last good checkpoint, if `train.max_rollbacks` allows, or stop
    every n steps: log; evaluate; sample; save     all ranks enter, rank 0 writes (each its part, where sharded)

The public `…Trainer` classes are this loop bound to a task.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common import collectives
from quintet.common.statistics import Statistics
from quintet.common.weights import checkpoint
from quintet.common.weights.pretrained import pickle_hint
from quintet.errors import RunError, UsageError
from quintet.training.evaluate import evaluate, make_artifacts
from quintet.training.guard import largest_moment
from quintet.training.metrics import Stopwatch, make_trackers
from quintet.training.optim import clip_gradients, gradient_norm, set_learning_rate
from quintet.training.phase import Modules
from quintet.training.prepare import data_record, ends_with_zero_lr
from quintet.training.session import TrainingSession
from quintet.training.signals import StopRequest

Logs = dict[str, Any]
LogFunction = Callable[[Logs], None]


class Trainer(TrainingSession):
    """Trains a task in a run folder. Everything a run is lives in `task.config` and in that folder."""

    # --- the loop -------------------------------------------------------------------------------------------

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
        if ends_with_zero_lr(self.config, self.step):
            self.print(
                f"warning: the learning rate is 0 from step {self.config.optim.decay_steps} on, where the schedule ends; "
                f"resume with optim.decay_steps={self.config.train.steps} and --force to stretch it"
            )
        self.stopwatch = Stopwatch()
        stopped = False
        try:
            self._write_state("running")
            while self.step < self.config.train.steps and not stopped:
                logs = self.train_step()
                stopped = bool(logs.pop("stop_requested"))
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
                self.run.best_effort_write(type(tracker).__name__, tracker.close)
            self.trackers = []
        if stopped:
            why = self._stop.received.name if self._stop.received else "another process or the time limit"
            self.print(f"stopped at step {self.step} by {why}; continue with `quintet resume {self.run.folder}`")

    def train_step(self) -> Logs:
        """One optimizer step. Returns its loss parts as tensors, still on the device."""
        began = time.perf_counter()
        config = self.config.train
        if self.step >= config.steps:
            raise RunError(f"all {config.steps} steps are taken; raise train.steps to go on")
        if self._stream is None:
            loader = self._loader(self.splits.train)
            self._stream = loader.training(self._order(), self.step, config.steps, config.grad_accum_steps)
        batches = [self._moved(next(self._stream)) for _ in range(config.grad_accum_steps)]
        ready = time.perf_counter()
        step = self.step
        report = self.task.backward(batches, self.modules, self.engine, step)
        active = [state for state in self.state.phases if state.phase.active(step)]
        norms = {state.phase.name: gradient_norm(state.parameters) for state in active}
        moments = [moment for state in active if (moment := largest_moment(state.optimizer)) is not None]
        values = [*report.metrics.values(), *norms.values(), *moments]
        finite = torch.stack([value.float() for value in values]).isfinite().all()
        bad, stop_requested = self.engine.any_rank(~finite, self._stop.requested)
        if not bad:
            self._apply(norms, report.statistics, step)
        computed = time.perf_counter()
        for state in self.state.phases:
            state.optimizer.zero_grad(set_to_none=True)
        self.state.progress.step += 1
        self.state.progress.items_seen += config.batch_size
        if bad:
            self.guard.note_nonfinite_step(batches)
        else:
            self.state.progress.bad_steps_in_a_row = 0
            self.meter.add({**report.metrics, **{f"{name}/gradient_norm": norm for name, norm in norms.items()}})
        self.stopwatch.step(waiting=ready - began, computing=computed - ready)
        return {**report.metrics, "step": self.step, "stop_requested": stop_requested}

    def _apply(self, norms: Mapping[str, Tensor], statistics: Statistics, step: int) -> None:
        """The step is accepted: move weights, then what depends on them."""
        factor = self.lr_schedule(step) / self.config.optim.lr
        for state in self.state.phases:
            if state.phase.name not in norms:
                continue
            if state.phase.optim.max_grad_norm is not None:
                clip_gradients(state.parameters, norms[state.phase.name], state.phase.optim.max_grad_norm)
            set_learning_rate(state.optimizer, state.phase.optim.lr * factor)
            state.optimizer.step()
        self.task.after_step(statistics.over_ranks(), step)
        if self.state.ema is not None:
            self.state.ema.update(step)

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
            if validates or samples or saves:
                self.guard.check(may_roll_back=not final)
            if validates:
                logs.update(self._validate())
            if samples:
                logs.update(self._sample())
            if saves:
                self.saver.save(final)
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
        size = self.config.eval.batch_size or self.config.train.batch_size // self.config.train.grad_accum_steps
        loader = self._loader(self.splits.validation)
        return evaluate(self.task, modules or self.state.averaged_modules(), loader, self.engine, size, batches)

    def _validate(self) -> dict[str, float]:
        averaged = self.evaluate(self.state.averaged_modules(), self.config.eval.batches)
        figures = {f"validation/{name}": value for name, value in averaged.items()}
        if self.state.ema is not None and self.config.eval.live:
            live = self.evaluate(self.task.modules, self.config.eval.batches)
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
        metric, direction = self.task.traits.best
        if metric not in figures:
            raise UsageError(f"Traits.best names the metric '{metric}', and the task has {', '.join(figures)}")
        value, progress = figures[metric], self.state.progress
        if not math.isfinite(value):
            return
        sign = 1 if direction == "max" else -1
        if progress.best_value is None or sign * value > sign * progress.best_value:
            progress.best_value, progress.best_step = value, self.step
            self.saver.save()
            if self.engine.is_main and self.saved_step == self.step:
                self.saver.write_pointer("best", self.step)

    def _sample(self) -> Logs:
        """Things to look at, from the averaged and the live weights. Every rank makes them, rank 0 writes them."""
        batch = self._moved(self._loader(self.splits.validation).first(self.config.sample.num))
        kinds: dict[str, Modules] = {"": self.state.averaged_modules()}
        if self.state.ema is not None:
            kinds["live-"] = self.task.modules
        logs: Logs = {}
        for prefix, modules in kinds.items():
            for artifact in make_artifacts(self.task, modules, batch, self.engine):
                if artifact.tensor is not None and not prefix:
                    logs[Path(artifact.file).stem] = artifact.tensor
                if self.engine.is_main:
                    self.run.write_sample(self.step, prefix, artifact.file, artifact.write, artifact.metadata)
        return logs

    def load(self, path: Path | str, restore_optimizer: bool = True) -> None:
        """Continue from another checkpoint folder of the same task."""
        folder = Path(path)
        if not folder.is_dir():
            raise UsageError(f"{folder} is not the folder of a checkpoint{pickle_hint(folder)}")
        checkpoint.verify(folder)
        self.state.restore(folder, restore_optimizer)
        self._stream = None
        self.saver.saved_step = None
        if self.engine.is_main:
            # Otherwise a crash would be followed by a resume from what was just given up.
            self.saver.set_newer_aside("abandoned")
            self.run.drop_metrics_after(self.step)

    def _write_state(self, status: Any, **more: Any) -> None:
        if self.engine.is_main:
            progress, metric = self.state.progress, self.task.traits.best[0]
            best = {"metric": metric, "value": progress.best_value, "step": progress.best_step}
            self.run.write_state(
                status,
                recipe=self.task.name,
                step=self.step,
                steps=self.config.train.steps,
                best=None if progress.best_value is None else best,
                device=self.engine.device_name,
                **more,
            )
