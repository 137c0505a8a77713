"""Writing the checkpoints of a run: when one is there already, what to do when it fails, and which ones stay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quintet.common.weights import checkpoint
from quintet.errors import RunError
from quintet.training.distributed import sharding
from quintet.training.engine import Engine
from quintet.training.finite import broken_tensors
from quintet.training.run_folder import Run
from quintet.training.state import TrainingState


class Saver:
    """Saves one state to one run. A failure is said, and leaves the last checkpoint as it was."""

    def __init__(self, run: Run, engine: Engine, state: TrainingState, fingerprint: str, say: Callable[[str], None]):
        self.run = run
        self.engine = engine
        self.state = state
        self.fingerprint = fingerprint
        self.say = say
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
            self.say(f"warning: could not save step {step} ({problem}); the last checkpoint is unharmed")
        if self.engine.is_main:
            self._prune()
        return problem

    def _prune(self) -> None:
        try:
            checkpoint.prune(self.run.checkpoints, self.state.task.config.checkpoint.keep)
        except OSError as error:
            self.say(f"warning: could not delete an old checkpoint ({error})")

    def point(self, name: str, step: int | None) -> None:
        """Let `latest` or `best` name a checkpoint that exists; nothing depends on it, so that it may be lost."""
        folder = checkpoint.folder_of(self.run.checkpoints, step or 0)
        if folder.is_dir():
            self.run.observe(f"checkpoints/{name}", partial(checkpoint.point, self.run.checkpoints, name, folder))

    def set_newer_aside(self, why: str) -> None:
        """Take checkpoints that the run no longer follows out of the row."""
        for newer in checkpoint.steps(self.run.checkpoints):
            if checkpoint.step_of(newer) > self.state.progress.step:
                checkpoint.set_aside(newer, why)
