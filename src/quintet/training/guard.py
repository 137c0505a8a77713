"""`Saver` writes checkpoints; `NonFiniteGuard` skips steps with NaN or infinite values and rolls back.

A step whose losses, gradients or optimizer moments are not finite is never applied, and a state that is not finite is
never saved, so a run can be resumed from each of its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from quintet.common import collectives
from quintet.common.batch import Batch
from quintet.common.weights import checkpoint
from quintet.errors import RunError
from quintet.training.distributed import sharding
from quintet.training.engine import Engine
from quintet.training.run_folder import Run
from quintet.training.state import TrainingState, newest_good


class Saver:
    """Saves the training state of a run. A failed save is reported and leaves earlier checkpoints intact."""

    def __init__(self, run: Run, engine: Engine, state: TrainingState, fingerprint: str, notify: Callable[[str], None]):
        self.run = run
        self.engine = engine
        self.state = state
        self.fingerprint = fingerprint
        self.notify = notify
        self.saved_step: int | None = None

    def save(self, final: bool = False) -> None:
        """Save a checkpoint of this step, unless it exists. A failure raises RunError only for the `final` step."""
        step = self.state.progress.step
        if self.saved_step == step:
            return
        writes = self.engine.is_main or self.engine.is_sharded
        problem = self._write(step) if writes else "see the log of rank 0"
        self.engine.barrier()
        saved = self.engine.from_main(self.saved_step if self.saved_step is not None else -1)
        self.saved_step = saved if saved >= 0 else None
        if final and self.saved_step != step:
            raise RunError(f"could not save the final checkpoint in {self.run.checkpoints}: {problem}")

    def _write(self, step: int) -> str:
        """Write the checkpoint; returns the error message, or an empty text."""
        problem = ""
        try:
            contents = self.state.contents(self.engine.world_size, self.fingerprint)
            if nonfinite := nonfinite_tensors(self.state.tensors(), self.engine):
                raise OSError(f"{nonfinite[0]} is not finite")
            if self.engine.is_sharded:
                sharding.write(self.run.checkpoints, step, contents, self.engine.device)
            else:
                checkpoint.write(self.run.checkpoints, step, contents)
            self.saved_step = step
        except OSError as error:
            problem = str(error)
            self.notify(f"warning: could not save step {step} ({problem}); the previous checkpoint is intact")
        if self.engine.is_main:
            self._prune()
        return problem

    def _prune(self) -> None:
        try:
            checkpoint.prune(self.run.checkpoints, self.state.task.config.checkpoint.keep)
        except OSError as error:
            self.notify(f"warning: could not delete an old checkpoint ({error})")

    def write_pointer(self, name: str, step: int | None) -> None:
        """Point `latest` or `best` to a checkpoint, if it exists. Errors are ignored: resuming needs no pointer."""
        folder = checkpoint.folder_of(self.run.checkpoints, step or 0)
        if folder.is_dir():
            self.run.best_effort_write(
                f"checkpoints/{name}", partial(checkpoint.write_pointer, self.run.checkpoints, name, folder)
            )

    def set_newer_aside(self, reason: str) -> None:
        """Set aside all checkpoints of later steps, which the run no longer follows."""
        for newer in checkpoint.steps(self.run.checkpoints):
            if checkpoint.step_of(newer) > self.state.progress.step:
                checkpoint.set_aside(newer, reason)


class NonFiniteGuard:
    """Counts and reports skipped non-finite steps; after too many in a row, rolls back or ends the run.

    All ranks must call its methods together."""

    def __init__(self, run: Run, engine: Engine, state: TrainingState, saver: Saver, notify: Callable[[str], None]):
        self.run = run
        self.engine = engine
        self.state = state
        self.saver = saver
        self.notify = notify

    def note_nonfinite_step(self, batches: Sequence[Batch]) -> None:
        """Report a skipped step and its likely cause; roll back or stop after too many in a row."""
        progress, limit = self.state.progress, self.state.task.config.train.max_nonfinite_steps
        progress.bad_steps += 1
        progress.bad_steps_in_a_row += 1
        kind, names = self._causes(batches)
        self.notify(f"step {progress.step}: {self._description(kind)}{', '.join(names)}")
        if self.engine.is_main:
            causes: dict[str, object] = {kind: names} if names else {"train/loss_scale": progress.loss_scale}
            self.run.write_metrics({"step": progress.step, "train/bad_steps": progress.bad_steps, **causes})
        if progress.bad_steps_in_a_row >= limit and not self._roll_back():
            self._give_up()

    def _description(self, kind: str) -> str:
        if kind == "overflow":
            scale = self.state.progress.loss_scale
            return f"the gradients overflow in fp16, step skipped; the loss scale is now {scale:g}"
        where = "loss or gradient" if kind == "items" else "weights or optimizer state"
        return f"non-finite {where}, step skipped; {kind}: "

    def check(self, may_roll_back: bool) -> None:
        """Find non-finite tensors that no loss depends on yet, such as an unused codebook entry."""
        if self._nonfinite() and not (may_roll_back and self._roll_back()):
            self._give_up()

    def _causes(self, batches: Sequence[Batch]) -> tuple[str, list[str]]:
        """The likely causes of a non-finite step: non-finite tensors of the training state, else items of the batch, or
        in fp16 a loss scale that is too large."""
        nonfinite = self._nonfinite()
        if nonfinite:
            more = [f"and {len(nonfinite) - 3} more"] if len(nonfinite) > 3 else []
            return "tensors", [*nonfinite[:3], *more]
        gather, device = collectives.gather_names, self.engine.device
        names = gather([name for batch in batches for name in batch.nonfinite_items()], device)
        if not names and self.state.progress.loss_scale is not None:
            return "overflow", []
        # If no item contains non-finite values, any of them may be the cause.
        return "items", names or gather([name for batch in batches for name in batch.names], device)

    def _nonfinite(self) -> list[str]:
        return nonfinite_tensors(self.state.tensors(), self.engine)

    def _roll_back(self) -> bool:
        """Restore the newest good checkpoint and continue with the next items. Returns False if it cannot."""
        progress, limit = self.state.progress, self.state.task.config.train.max_rollbacks
        if progress.rollbacks >= limit:
            return False
        step = self.engine.from_main(newest_good(self.run.checkpoints) if self.engine.is_main else -1)
        if step < 0:
            return False
        self.state.restore(checkpoint.folder_of(self.run.checkpoints, step))
        self.state.progress = replace(progress, bad_steps_in_a_row=0, rollbacks=progress.rollbacks + 1)
        self.notify(
            f"rolled back to the weights of step {step}, continuing with the next items "
            f"(rollback {self.state.progress.rollbacks} of {limit})"
        )
        return True

    def _give_up(self) -> None:
        progress, saved = self.state.progress, self.saver.saved_step
        nonfinite = self._nonfinite()
        if nonfinite:
            last = f"the newest checkpoint, step {saved}, is finite" if saved else "there is no checkpoint"
            raise RunError(
                f"step {progress.step}: the training state is not finite ({nonfinite[0]}) and was not saved; {last}; "
                "lower optim.lr, or set train.max_rollbacks to roll back automatically"
            )
        self.saver.save()
        raise RunError(
            f"{progress.bad_steps_in_a_row} non-finite steps in a row (train.max_nonfinite_steps); weights are finite "
            f"and saved at step {progress.step}; check the items listed in {self.run.log_file}, or lower optim.lr"
        )


def largest_moment(optimizer: Optimizer) -> Tensor | None:
    """The largest magnitude of an optimizer's moments on this rank, non-finite if any element is; None before the first
    step.

    The maximum rather than the L2 norm: squares of second moments overflow long before the moments do.
    """
    moments = [
        sharding.local_tensor(value)
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.ndim and sharding.local_tensor(value).numel()
    ]
    if not moments:
        return None
    if moments[0].device.type == "cpu":
        # The norm takes ten times as long there; both are NaN if any element is.
        return torch.stack([bound for moment in moments for bound in moment.aminmax()]).abs().max()
    return nn.utils.get_total_norm(moments, norm_type=torch.inf)


def nonfinite_tensors(groups: Mapping[str, Mapping[str, Tensor]], engine: Engine) -> list[str]:
    """The names of tensors with NaN or infinite values, as `group: tensor`; for a sharded state, on any rank."""
    nonfinite = [
        f"{group}: {name}"
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not bool(sharding.local_tensor(tensor).isfinite().all())
    ]
    return list(dict.fromkeys(collectives.gather_names(nonfinite, engine.device))) if engine.is_sharded else nonfinite
