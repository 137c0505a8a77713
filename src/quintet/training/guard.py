"""What keeps every checkpoint of a run one that can be gone on from: `Saver` writes them, `NonFiniteGuard` skips steps
with NaN or Inf.

A step whose losses, gradients or moments are not finite is never taken, and a state that is not finite is never saved.
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
    """Saves one state to one run. A failure is said, and leaves the last checkpoint as it was."""

    def __init__(self, run: Run, engine: Engine, state: TrainingState, fingerprint: str, notify: Callable[[str], None]):
        self.run = run
        self.engine = engine
        self.state = state
        self.fingerprint = fingerprint
        self.notify = notify
        self.saved_step: int | None = None

    def save(self, final: bool = False) -> None:
        """A checkpoint of this step, if there is none yet. A failure is an error only where no later step can make up
        for it."""
        step = self.state.progress.step
        if self.saved_step == step:
            return
        writes = self.engine.is_main or self.engine.is_sharded
        problem = self._write(step) if writes else "see the first process"
        self.engine.barrier()
        saved = self.engine.from_main(self.saved_step if self.saved_step is not None else -1)
        self.saved_step = saved if saved >= 0 else None
        if final and self.saved_step != step:
            raise RunError(f"could not save the last step in {self.run.checkpoints}: {problem}")

    def _write(self, step: int) -> str:
        """What was in the way, or nothing."""
        problem = ""
        try:
            contents = self.state.contents(self.engine.world_size, self.fingerprint)
            if broken := broken_tensors(self.state.tensors(), self.engine):
                raise OSError(f"{broken[0]} is not finite")
            if self.engine.is_sharded:
                sharding.write(self.run.checkpoints, step, contents, self.engine.device)
            else:
                checkpoint.write(self.run.checkpoints, step, contents)
            self.saved_step = step
        except OSError as error:
            problem = str(error)
            self.notify(f"warning: could not save step {step} ({problem}); the last checkpoint is unharmed")
        if self.engine.is_main:
            self._prune()
        return problem

    def _prune(self) -> None:
        try:
            checkpoint.prune(self.run.checkpoints, self.state.task.config.checkpoint.keep)
        except OSError as error:
            self.notify(f"warning: could not delete an old checkpoint ({error})")

    def write_pointer(self, name: str, step: int | None) -> None:
        """Let `latest` or `best` name a checkpoint that exists; nothing depends on it, so that it may be lost."""
        folder = checkpoint.folder_of(self.run.checkpoints, step or 0)
        if folder.is_dir():
            self.run.best_effort_write(
                f"checkpoints/{name}", partial(checkpoint.write_pointer, self.run.checkpoints, name, folder)
            )

    def set_newer_aside(self, why: str) -> None:
        """Take checkpoints that the run no longer follows out of the row."""
        for newer in checkpoint.steps(self.run.checkpoints):
            if checkpoint.step_of(newer) > self.state.progress.step:
                checkpoint.set_aside(newer, why)


class NonFiniteGuard:
    """Non-finite steps are skipped, counted and named; too many in a row end the run. All ranks must call its methods
    together."""

    def __init__(self, run: Run, engine: Engine, state: TrainingState, saver: Saver, notify: Callable[[str], None]):
        self.run = run
        self.engine = engine
        self.state = state
        self.saver = saver
        self.notify = notify

    def note_nonfinite_step(self, batches: Sequence[Batch]) -> None:
        """A step was skipped: name what is to blame, and roll back or stop where there were too many."""
        progress, limit = self.state.progress, self.state.task.config.train.max_nonfinite_steps
        progress.bad_steps += 1
        progress.bad_steps_in_a_row += 1
        kind, names = self._culprits(batches)
        where = "loss or gradient" if kind == "items" else "weights or optimizer state"
        self.notify(f"step {progress.step}: non-finite {where}, step skipped; {kind}: {', '.join(names)}")
        if self.engine.is_main:
            self.run.write_metrics({"step": progress.step, "train/bad_steps": progress.bad_steps, kind: names})
        if progress.bad_steps_in_a_row >= limit and not self._roll_back():
            self._give_up()

    def check(self, may_roll_back: bool) -> None:
        """Find a broken tensor that no loss has met yet, such as a code that nobody uses."""
        if self._broken() and not (may_roll_back and self._roll_back()):
            self._give_up()

    def _culprits(self, batches: Sequence[Batch]) -> tuple[str, list[str]]:
        """What to name for a bad step: broken tensors of the run itself, else items."""
        broken = self._broken()
        if broken:
            more = [f"and {len(broken) - 3} more"] if len(broken) > 3 else []
            return "tensors", [*broken[:3], *more]
        gather, device = collectives.gather_names, self.engine.device
        names = gather([name for batch in batches for name in batch.nonfinite_items()], device)
        # Where no item holds a non-finite number itself, any of them may have caused one.
        return "items", names or gather([name for batch in batches for name in batch.names], device)

    def _broken(self) -> list[str]:
        return broken_tensors(self.state.tensors(), self.engine)

    def _roll_back(self) -> bool:
        """Go back to the last good checkpoint, and on with the items that come next; False if it may not be."""
        progress, limit = self.state.progress, self.state.task.config.train.max_rollbacks
        if progress.rollbacks >= limit:
            return False
        step = self.engine.from_main(newest_good(self.run.checkpoints) if self.engine.is_main else -1)
        if step < 0:
            return False
        self.state.restore(checkpoint.folder_of(self.run.checkpoints, step))
        self.state.progress = replace(progress, bad_steps_in_a_row=0, rollbacks=progress.rollbacks + 1)
        self.notify(
            f"rolled back to the weights of step {step}, on with other items "
            f"({self.state.progress.rollbacks} of {limit} roll-backs)"
        )
        return True

    def _give_up(self) -> None:
        progress, saved = self.state.progress, self.saver.saved_step
        broken = self._broken()
        if broken:
            last = f"step {saved} is the newest saved and is finite" if saved else "none was saved"
            raise RunError(
                f"step {progress.step}: the run's own tensors are not finite any more ({broken[0]}) and were not "
                f"saved; {last}; lower optim.lr, or let the run go back by itself with train.max_rollbacks"
            )
        self.saver.save()
        raise RunError(
            f"{progress.bad_steps_in_a_row} non-finite steps in a row (train.max_nonfinite_steps); weights are finite and "
            f"saved at step {progress.step}; look at the items named in {self.run.log_file}, or lower optim.lr"
        )


def largest_moment(optimizer: Optimizer) -> Tensor | None:
    """The largest magnitude in an optimizer's moments in this process, non-finite if any element is; None before the
    first step.

    The largest element rather than the norm: squares of squared gradients overflow long before the moments do.
    """
    moments = [
        sharding.local_tensor(value)
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.ndim and sharding.local_tensor(value).numel()
    ]
    return nn.utils.get_total_norm(moments, norm_type=torch.inf, foreach=True) if moments else None


def broken_tensors(groups: Mapping[str, Mapping[str, Tensor]], engine: Engine) -> list[str]:
    """The names of the tensors that hold a non-finite number, as `group: tensor`; of a sharded state on any rank."""
    broken = [
        f"{group}: {name}"
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not bool(sharding.local_tensor(tensor).isfinite().all())
    ]
    return list(dict.fromkeys(collectives.gather_names(broken, engine.device))) if engine.is_sharded else broken
