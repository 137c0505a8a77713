"""`Saver` writes the checkpoints of a run, never one with NaN or infinite values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from quintet.common import collectives
from quintet.common.weights import checkpoint
from quintet.errors import RunError
from quintet.training.distributed import sharding
from quintet.training.engine import Engine
from quintet.training.run_folder import Run
from quintet.training.state import TrainingState


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


def nonfinite_tensors(groups: Mapping[str, Mapping[str, Tensor]], engine: Engine) -> list[str]:
    """The names of tensors with NaN or infinite values, as `group: tensor`; for a sharded state, on any rank."""
    nonfinite = [
        f"{group}: {name}"
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not bool(sharding.local_tensor(tensor).isfinite().all())
    ]
    return list(dict.fromkeys(collectives.gather_names(nonfinite, engine.device))) if engine.is_sharded else nonfinite
