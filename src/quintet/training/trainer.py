"""`Trainer`: the training loop of all recipes.

One step:

    micro-batches of step s                           a pure function of (seed, s): training/order.py
    task.backward(micro_batches)                      per micro-batch one forward, then each phase's loss and backward
    flags = any rank's [non-finite, signal, time limit]   the only device read in a step
    if finite:
        per phase: clip gradients, set learning rate, optimizer step
        task.after_step(statistics)                   codebook updates and the like, from the global batch
        update the EMA
    else:
        skip the step, count it and report the likely cause
        after too many in a row: restore the last good checkpoint, if `train.max_rollbacks` allows, or stop
    every n steps: log; evaluate; sample; save        on all ranks; rank 0 writes (with FSDP each rank its shard); the
                                                      state is copied, and written while training continues

The public `…Trainer` classes bind this loop to a task.
"""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common import collectives
from quintet.common.statistics import Statistics
from quintet.common.weights import checkpoint
from quintet.common.weights.pretrained import pickle_hint
from quintet.errors import RunError, UsageError
from quintet.training import loss_scale, patience
from quintet.training.evaluate import evaluate, make_artifacts
from quintet.training.finetuning import description
from quintet.training.guard import largest_moment
from quintet.training.loader import LoadedBatch
from quintet.training.metrics import Stopwatch, make_trackers
from quintet.training.optim import clip_gradients, gradient_norm, set_learning_rate
from quintet.training.pace import Pace
from quintet.training.peak import peak_flops
from quintet.training.phase import Modules
from quintet.training.prepare import change_length, data_record, precision_notes, schedule_notes, unreached_notes
from quintet.training.run_folder import resume_command
from quintet.training.schedule import schedule_of
from quintet.training.session import TrainingSession
from quintet.training.signals import StopRequest

Logs = dict[str, Any]
LogFunction = Callable[[Logs], None]

PEAK_AFTER_SECONDS = 30.0
"""Time after which the peak is measured: a short run does not wait for it, and has no MFU."""


class Trainer(TrainingSession):
    """Trains a task in a run folder. A run is fully described by `task.config` and that folder."""

    pace: Pace | None = None
    """Corrects the number of steps of a new run with `--budget`; None for all others, also if such a run is resumed."""

    # --- the loop -------------------------------------------------------------------------------------------

    def train(self, log_fn: LogFunction | None = None) -> None:
        """Train until the last step, the time limit or a signal; saves a checkpoint when it stops."""
        with StopRequest(self.config.train.minutes) as self._stop:
            self._train(log_fn)
        if self._stop.received is not None:
            raise SystemExit(128 + self._stop.received)

    def __call__(self) -> None:
        self.train()

    def _train(self, log_fn: LogFunction | None) -> None:
        self.open_outputs()
        stopped = False
        if self.engine.watchdog is not None:
            self.engine.watchdog.record = lambda reason: self.write_state("failed", error=reason)
        try:
            self.write_state("running")
            if self.pace is not None:
                self.pace.start()
            while self.step < self.config.train.steps and not stopped and not self.is_out_of_patience:
                logs = self.train_step()
                stopped = bool(logs.pop("stop_requested")) and self.step < self.config.train.steps
                with nullcontext() if self.pace is None else self.pace.after_step(self.step):
                    logs.update(self.run_callbacks(final=stopped or self.step == self.config.train.steps))
                if self.pace is not None and self.pace.next_step <= self.step < self.config.train.steps and not stopped:
                    self._correct_length(self.pace)
                if log_fn is not None:
                    log_fn(logs)
            self.write_state("stopped" if stopped else "finished")
            if self.is_out_of_patience and self.step < self.config.train.steps:
                self.print(patience.message(self.task, self.state.progress, self.run.folder))
        except BaseException as error:
            self.run.write_log(f"process {self.engine.rank} failed at step {self.step}:\n{traceback.format_exc()}")
            failure = self._explain(error)
            self.write_state("failed", error=str(failure or error))
            if failure is None:
                raise
            raise failure from None
        finally:
            self.close_outputs()
        if stopped:
            self.print(
                f"stopped at step {self.step} by {self._stop.cause}; continue with `{resume_command(self.run.folder)}`"
            )

    def _correct_length(self, pace: Pace) -> None:
        """End the run with its budget: from this step on, the schedule ends at another step."""
        known = self.config.train.steps
        steps, each = pace.plan(self.step, known)
        steps = self.engine.from_main(steps)
        config = change_length(self.config, self.step, steps)
        # Recorded before it is used: a run that is killed now is resumed with it.
        if self.engine.from_main(not self.engine.is_main or self.run.try_write_config(config)):
            unreached = self.config.unreached_keys().keys()
            self.config = self.task.config = config
            self.lr_schedule = schedule_of(config.optim)
            self.display.set_total(steps)
            self._stream = self._stream if steps <= known else None
            self.print(f"budget: {each:.3g} s per step; train.steps: {known} -> {steps}")
            # Once, and not at each correction.
            for note in unreached_notes(config) if config.unreached_keys().keys() - unreached else []:
                self.print(note)
        pace.planned(self.step, self.config.train.steps)

    def open_outputs(self) -> None:
        """Start the trackers and the progress display."""
        if self.engine.is_main and not self.trackers:
            self.trackers = make_trackers(self.config, self.run.folder)
        self.display.start(self.step, self.config.train.steps)
        if self.step < self.config.train.steps:
            notes = [*self._notes, *precision_notes(self.config, self.device.type), *description(self.task)]
            for note in [*notes, *unreached_notes(self.config), *self._schedule_notes()]:
                self.print(note)
        self.stopwatch = Stopwatch()
        self._opened = time.perf_counter()

    def _schedule_notes(self) -> list[str]:
        return [] if self.has_own_schedule else schedule_notes(self.config, self.step)

    def close_outputs(self) -> None:
        """Stop the data workers, the progress display and the trackers, and wait for a save in flight."""
        self._stream = None
        self.saver.join()
        self.display.stop()
        for tracker in self.trackers:
            self.run.best_effort_write(type(tracker).__name__, tracker.close)
        self.trackers = []

    def train_step(self) -> Logs:
        """One optimizer step. Returns the loss parts as tensors on the device."""
        began = time.perf_counter()
        config = self.config.train
        if self.step >= self.last_step:
            raise RunError(f"all {config.steps} steps are done; raise train.steps to continue")
        if self._stream is None:
            loader = self._loader(self.splits.train)
            self._stream = loader.training(self._order(), self.step, self.last_step, config.micro_batches)
        loaded = [next(self._stream) for _ in range(config.micro_batches)]
        batches = [self._to_device(each) for each in loaded]
        self.engine.pass_point()
        ready = time.perf_counter()
        step = self.step
        active = [state for state in self.state.phases if state.phase.active(step)]
        self._set_loss_scale()
        with self.throughput.step(tuple(state.phase.name for state in active), *self._size(loaded)):
            report = self.task.backward(batches, self.modules, self.engine, step)
        for state in active:
            loss_scale.unscale(state.parameters.values(), self.engine.loss_scale)
        norms = {state.phase.name: gradient_norm(state.parameters) for state in active}
        moments = [moment for state in active if (moment := largest_moment(state.optimizer)) is not None]
        values = [*report.metrics.values(), *norms.values(), *moments]
        finite = torch.stack([value.float() for value in values]).isfinite().all()
        signalled = self._stop.received is not None
        self.engine.pass_point()
        nonfinite, *reasons = self.engine.any_rank(~finite, signalled, self._stop.out_of_time)
        self._stop.agree(*reasons)
        if not nonfinite:
            self._apply(norms, report.statistics, step)
        computed = time.perf_counter()
        for state in self.state.phases:
            state.optimizer.zero_grad(set_to_none=True)
        self.state.progress.step += 1
        self.state.progress.items_seen += config.batch_size
        loss_scale.update(self.state.progress, accepted=not nonfinite)
        if nonfinite:
            self.guard.note_nonfinite_step(batches)
        else:
            self.state.progress.bad_steps_in_a_row = 0
            self.meter.add({**report.metrics, **{f"{name}/gradient_norm": norm for name, norm in norms.items()}})
        self.stopwatch.step(waiting=ready - began, computing=computed - ready)
        self.engine.pass_point()
        return {**report.metrics, "step": self.step, "stop_requested": self._stop.agreed}

    def _set_loss_scale(self) -> None:
        """Scale the loss of this step if the run is in fp16, which a resumed run may have become."""
        progress = self.state.progress
        if self.engine.precision == "fp16":
            progress.loss_scale = progress.loss_scale or loss_scale.INITIAL
        else:
            progress.loss_scale = None
        self.engine.loss_scale = progress.loss_scale or 1.0

    def _size(self, loaded: Sequence[LoadedBatch]) -> tuple[int, int | None]:
        """The number of items and of tokens in the micro-batches of this rank, which are not on the device yet."""
        tokens = [self.task.num_tokens(each.batch) for each in loaded]
        known = [number for number in tokens if number is not None]
        return sum(len(each.batch) for each in loaded), sum(known) if len(known) == len(tokens) else None

    def _apply(self, norms: Mapping[str, Tensor], statistics: Statistics, step: int) -> None:
        """Apply an accepted step: optimizers, then `after_step`, then the EMA."""
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

    # --- periodic work ----------------------------------------------------------------------------------------

    def run_callbacks(self, final: bool) -> Logs:
        """Log, validate, sample and save, if they are due at this step."""
        config, step = self.config, self.step
        logs: Logs = {}
        self.saver.poll()
        self.display.update(step)
        logged = step % config.log.every == 0 or final
        last = step == config.train.steps or self._stop.leaves_time
        validates, samples = (step % section.every == 0 or last for section in (config.eval, config.sample))
        # Not during non-finite steps: a rollback restores the newest checkpoint.
        due = step % config.checkpoint.every == 0 or self._save_postponed
        self._save_postponed = due and self.state.progress.bad_steps_in_a_row > 0
        saves = final or (due and not self._save_postponed)
        if logged or validates or samples or saves:
            self._follow_folder()
        if logged:
            logs.update(self._log())
        with self.stopwatch.paused():
            # Find non-finite tensors that no loss depends on yet, such as an unused codebook entry.
            if validates or samples or saves:
                self.guard.check(may_roll_back=not final)
            if (validates or samples) and not self._has_validation_items():
                validates = samples = False
            if validates:
                logs.update(self._validate())
                if self.is_out_of_patience:  # the run ends here
                    final = saves = samples = True
            if saves:  # before the samples, which may take long
                self.saver.save(final)
            if samples:
                logs.update(self._sample())
        return logs

    def _follow_folder(self) -> None:
        """Go on in a run folder that was moved; end a run whose folder was deleted, before files are written where no
        run is."""
        found = self.run.find() if self.engine.is_main else None
        # In hexadecimal: a path need not be UTF-8.
        texts = collectives.gather_texts(os.fsencode(found).hex() if found else "", self.engine.device)
        path = os.fsdecode(bytes.fromhex(texts[0]))
        if not path:
            raise RunError(
                f"the run folder {self.run.folder} was deleted, or moved to another file system, before step "
                f"{self.step}; the steps since its last checkpoint are lost, and nothing more was written"
            )
        if path != str(self.run.folder):
            before = self.run.folder
            self.run.move_to(Path(path))
            self.print(f"the run folder {before} was moved to {path}; training continues there")
        if self.engine.is_main and not self.run.config_file.exists():
            self.run.restore(self.config, data_record(self.splits))
            self.print(f"{self.run.config_file} was deleted, and is written again")

    def _log(self) -> dict[str, float]:
        metrics = {f"train/{name}": value for name, value in self.meter.read().items()}
        metrics["train/lr"] = self.lr_schedule(self.step - 1)
        if self.state.progress.loss_scale is not None:
            metrics["train/loss_scale"] = self.state.progress.loss_scale
        metrics.update({f"train/{name}": value for name, value in self._rates().items()})
        self._gather_skipped()
        self.log(**metrics)
        self.display.update(self.step, metrics, self.engine.memory_in_use())
        self.write_state("running")
        return metrics

    def _rates(self) -> dict[str, float]:
        """Items, tokens and FLOPs per second of all ranks, and the MFU; fractions of time."""
        rates = self.stopwatch.read(self.config.train.batch_size, self.throughput.read(self.engine.device))
        flops = rates.get("rate/flops_per_second")
        if flops is not None and self.engine.is_main:
            if self.peak is None and time.perf_counter() - self._opened > PEAK_AFTER_SECONDS:
                with self.stopwatch.paused():
                    peak = peak_flops(self.engine.device, self.engine.product_dtype)
                self.peak = math.inf if peak is None else peak * self.engine.world_size
            if self.peak is not None and self.peak < math.inf:
                rates["rate/mfu"] = flops / self.peak
        return rates

    def _gather_skipped(self) -> None:
        """Add the unreadable items of all ranks to `data.json`."""
        gathered = collectives.gather_texts(json.dumps(self._skipped), self.engine.device)
        skipped = {name: reason for text in gathered for name, reason in json.loads(text).items()}
        new = skipped.keys() - self.splits.skipped.keys()
        self.splits.skipped.update(skipped)
        for line in self._skipped_messages.lines({name: skipped[name] for name in new}):
            self.print(line)
        if new and self.engine.is_main:
            self.run.update_data(data_record(self.splits))

    def evaluate(self, modules: Modules | None = None, batches: int | None = None) -> dict[str, float]:
        """The metrics over the validation items, by default of the EMA weights."""
        size = self.config.eval.batch_size or self.config.train.batch_size // self.config.train.micro_batches
        loader = self._loader(self.splits.validation)
        return evaluate(self.task, modules or self.state.averaged_modules(), loader, self.engine, size, batches)

    def _validate(self) -> dict[str, float]:
        averaged = self.evaluate(self.state.averaged_modules(), self.config.eval.batches)
        metrics = {f"validation/{name}": value for name, value in averaged.items()}
        if self.state.ema is not None and self.config.eval.live:
            live = self.evaluate(self.task.modules, self.config.eval.batches)
            metrics.update({f"validation/live/{name}": value for name, value in live.items()})
        self._gather_skipped()
        self.log(**metrics)
        summary = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items() if "/live/" not in name)
        if self.engine.is_main:
            self.run.write_log(f"step {self.step}: {summary}")
        self.display.show_validation(self.step, averaged)
        self._save_best(averaged)
        return metrics

    def _save_best(self, metrics: Mapping[str, float]) -> None:
        metric, direction = self.task.traits.best
        if metric not in metrics:
            raise UsageError(
                f"Traits.best is the metric '{metric}', but the metrics of the task are {', '.join(metrics)}"
            )
        value, progress = metrics[metric], self.state.progress
        progress.best_age += 1
        if not math.isfinite(value):
            return
        sign = 1 if direction == "max" else -1
        if progress.best_value is None or sign * value > sign * progress.best_value:
            progress.best_value, progress.best_step, progress.best_age = value, self.step, 0
            self.saver.save(best=True)

    def _sample(self) -> Logs:
        """Sample artifacts of the EMA and the live weights. Every rank generates them; rank 0 writes them."""
        batch = self._to_device(self._loader(self.splits.validation).first(self.config.sample.num))
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
        """Continue from another checkpoint folder of the same task.

        Without `restore_optimizer`, only the weights are taken: optimizers and step start anew."""
        folder = Path(path)
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a checkpoint folder{pickle_hint(folder)}")
        self.saver.finish()
        checkpoint.verify(folder)
        self.state.restore(folder, restore_optimizer)
        self._stream = None
        self.saver.saved_step = None
        if self.engine.is_main:
            # Otherwise a resume after a crash would use the abandoned checkpoints.
            self.saver.set_newer_aside("abandoned")
            self.run.drop_metrics_after(self.step)

    def write_state(self, status: Any, **more: Any) -> None:
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
