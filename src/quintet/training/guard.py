"""The guard against non-finite steps: they are skipped, counted and named; too many in a row end the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from quintet.common import collectives
from quintet.common.batch import Batch
from quintet.common.weights import checkpoint
from quintet.errors import RunError
from quintet.training.engine import Engine
from quintet.training.finite import broken_tensors
from quintet.training.run_folder import Run
from quintet.training.saver import Saver
from quintet.training.state import TrainingState, newest_good


class NonFiniteGuard:
    """Watches over the state of one run. All ranks must call its methods together."""

    def __init__(self, run: Run, engine: Engine, state: TrainingState, saver: Saver, say: Callable[[str], None]):
        self.run = run
        self.engine = engine
        self.state = state
        self.saver = saver
        self.say = say

    def note_bad_step(self, batches: Sequence[Batch]) -> None:
        """A step was skipped: name what is to blame, and roll back or stop where there were too many."""
        progress, limit = self.state.progress, self.state.task.config.train.max_bad_steps
        progress.bad_steps += 1
        progress.bad_steps_in_a_row += 1
        kind, names = self._culprits(batches)
        where = "loss or gradient" if kind == "items" else "weights or optimizer state"
        self.say(f"step {progress.step}: non-finite {where}, step skipped; {kind}: {', '.join(names)}")
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
        names = gather([name for batch in batches for name in batch.suspects()], device)
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
        self.say(
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
            f"{progress.bad_steps_in_a_row} non-finite steps in a row (train.max_bad_steps); weights are finite and "
            f"saved at step {progress.step}; look at the items named in {self.run.log_file}, or lower optim.lr"
        )
