"""`Saver` writes the checkpoints of a run in a thread while training continues, never one with non-finite values.

At a save the training loop copies the whole state to the memory of the CPU. A thread then writes the copy, hashes it,
flushes it to disk, renames it and deletes old checkpoints. One save is in flight at a time: the next one waits for it.
Sharded states (FSDP) are written in the training loop, because the processes agree on the parts of a checkpoint by
collectives, which must not be called from a second thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
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
        """Step of the newest checkpoint of this run that was written; other ranks than 0 learn it in `finish`."""
        self._begun_step: int | None = None
        """Step of the save that `finish` has not waited for; the same on all ranks."""
        self._problem = "see the log of rank 0"
        self._thread = ThreadPoolExecutor(1, "quintet-save")
        self._in_flight: Future[_Result] | None = None

    def save(self, final: bool = False, best: bool = False) -> None:
        """Save a checkpoint of this step, unless it exists, and point `best` to it if it is the best one.

        Training may go on while it is written. Only for the `final` step this waits, and raises RunError if the
        checkpoint could not be written."""
        step = self.state.progress.step
        if final or self._begun_step != step:
            self.finish()
        if step not in (self.saved_step, self._begun_step):
            self._begin(step, best)
        elif best:
            self.finish()
            if self.saved_step == step:
                self.write_pointer("best", step)
        if final:
            self.finish()
            if self.saved_step != step:
                raise RunError(f"could not save the final checkpoint in {self.run.checkpoints}: {self._problem}")

    def _begin(self, step: int, best: bool) -> None:
        self._begun_step = step
        if not (self.engine.is_main or self.engine.is_sharded):
            return
        config = self.state.task.config.checkpoint
        contents = self.state.contents(self.engine.world_size, self.fingerprint)
        background = config.background and not self.engine.is_sharded
        if background:
            contents.tensors = snapshot(contents.tensors)
        nonfinite = nonfinite_tensors(self.state.tensors(), self.engine)
        root, keep = self.run.checkpoints, config.keep if self.engine.is_main else None
        if nonfinite:
            write: Callable[[], object] = partial(_refuse, nonfinite[0])
        elif self.engine.is_sharded:
            write = partial(sharding.write, root, step, contents, self.engine.device)
        else:
            write = partial(checkpoint.write, root, step, contents)
        work = partial(_write, write, root, step, keep, best and self.engine.is_main)
        if background:
            self._in_flight = self._thread.submit(work)
        else:
            self._report(work())

    def poll(self) -> None:
        """Report what became of the save in flight if it has ended, without waiting."""
        if self._in_flight is not None and self._in_flight.done():
            self.join()

    def join(self) -> None:
        """Wait for the save in flight of this rank, and report what became of it."""
        if self._in_flight is not None:
            future, self._in_flight = self._in_flight, None
            self._report(future.result())

    def finish(self) -> None:
        """Wait for the save in flight and agree on what was saved. All ranks must call this together."""
        if self._begun_step is None:
            return
        self.join()
        self.engine.barrier()
        saved = self.engine.from_main(self.saved_step if self.saved_step is not None else -1)
        self.saved_step = saved if saved >= 0 else None
        self._begun_step = None

    def close(self) -> None:
        """Wait for the save in flight of this rank, and end the thread."""
        try:
            self.join()
        finally:
            self._thread.shutdown()

    def _report(self, result: _Result) -> None:
        """Record and report the result of a write, in the thread of the training loop."""
        self._problem = result.problem
        if result.problem:
            text = f"could not save step {result.step} ({result.problem})"
            self.notify(f"warning: {text}; the previous checkpoint is intact")
        else:
            self.saved_step = result.step
        if result.not_deleted:
            self.notify(f"warning: could not delete an old checkpoint ({result.not_deleted})")
        if result.point_best is not None:
            self.run.best_effort_write("checkpoints/best", result.point_best)

    def write_pointer(self, name: str, step: int | None) -> None:
        """Point `latest` or `best` to a checkpoint, if it exists. Errors are ignored: resuming needs no pointer."""
        folder = checkpoint.folder_of(self.run.checkpoints, step or 0)
        if self.engine.is_main and folder.is_dir():
            self.run.best_effort_write(
                f"checkpoints/{name}", partial(checkpoint.write_pointer, self.run.checkpoints, name, folder)
            )

    def set_newer_aside(self, reason: str) -> None:
        """Set aside all checkpoints of later steps, which the run no longer follows."""
        for newer in checkpoint.steps(self.run.checkpoints):
            if checkpoint.step_of(newer) > self.state.progress.step:
                checkpoint.set_aside(newer, reason)


@dataclass(frozen=True)
class _Result:
    """The result of a write."""

    step: int
    problem: str = ""
    """Why the checkpoint could not be written; empty if it was."""
    not_deleted: str = ""
    """Why an old checkpoint could not be deleted."""
    point_best: Callable[[], None] | None = None
    """Raises the error of pointing `best` to the checkpoint, if that failed; None if it was not tried."""


def _write(write: Callable[[], object], root: Path, step: int, keep: int | None, best: bool) -> _Result:
    """Write a checkpoint, delete all but the newest `keep` and point `best` to it. Runs in the thread."""
    problem, not_deleted, point_best = "", "", None
    try:
        write()
    except OSError as error:
        problem = str(error)
    if keep is not None:
        try:
            checkpoint.prune(root, keep)
        except OSError as error:
            not_deleted = str(error)
    if best and not problem:
        point_best = _attempt(partial(checkpoint.write_pointer, root, "best", checkpoint.folder_of(root, step)))
    return _Result(step, problem, not_deleted, point_best)


def _attempt(work: Callable[[], None]) -> Callable[[], None]:
    """Do the work; the result raises its OSError, if there was one."""
    try:
        work()
    except OSError as error:
        return partial(_raise, error)
    return _do_nothing


def _raise(error: OSError) -> None:
    raise error


def _do_nothing() -> None:
    pass


def _refuse(name: str) -> None:
    raise OSError(f"{name} is not finite")


def snapshot(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Copies of all tensors in the memory of the CPU, which training does not change."""
    return {group: {name: _copy(tensor) for name, tensor in tensors.items()} for group, tensors in groups.items()}


def _copy(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU. That of a CUDA tensor is complete once the CPU has waited for the device."""
    source = tensor.detach()
    if source.device.type == "cuda":
        return torch.empty(source.shape, dtype=source.dtype, pin_memory=True).copy_(source, non_blocking=True)
    return torch.empty(source.shape, dtype=source.dtype).copy_(source)


def nonfinite_tensors(groups: Mapping[str, Mapping[str, Tensor]], engine: Engine) -> list[str]:
    """The names of tensors with NaN or infinite values, as `group: tensor`; for a sharded state, on any rank.

    Each device is read once, which waits for all work that it was given before."""
    found: dict[torch.device, list[tuple[str, Tensor]]] = defaultdict(list)
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            local = sharding.local_tensor(tensor)
            if local.is_floating_point():
                found[local.device].append((f"{group}: {name}", _is_finite(local)))
    nonfinite = [
        name
        for flags in found.values()
        for (name, _), finite in zip(flags, torch.stack([flag for _, flag in flags]).tolist(), strict=True)
        if not finite
    ]
    return list(dict.fromkeys(collectives.gather_names(nonfinite, engine.device))) if engine.is_sharded else nonfinite


def _is_finite(tensor: Tensor) -> Tensor:
    """Whether all elements are finite, as a tensor on the same device."""
    if tensor.device.type == "cpu" and tensor.numel():
        # One pass over the memory, a ninth of the time; both are NaN if any element is.
        return torch.stack(tensor.aminmax()).isfinite().all()
    return tensor.isfinite().all()
