"""`NonFiniteGuard` skips steps with NaN or infinite values and rolls back.

A step whose losses, gradients or optimizer moments are not finite is never applied, and a state that is not finite is
never saved, so a run can be resumed from each of its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
from quintet.training.saver import Saver, nonfinite_tensors
from quintet.training.state import TrainingState, newest_good


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
        self.saver.finish()
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
        self.saver.finish()
        progress, saved = self.state.progress, self.saver.saved_step
        nonfinite = self._nonfinite()
        if nonfinite:
            last = f"the newest checkpoint, step {saved}, is finite" if saved else "there is no checkpoint"
            raise RunError(
                f"step {progress.step}: the training state is not finite ({nonfinite[0]}) and was not saved; {last}; "
                "lower optim.lr, or set train.max_rollbacks to roll back automatically"
            )
        self.saver.save()
        self.saver.finish()
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
