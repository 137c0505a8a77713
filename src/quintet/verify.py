"""`quintet verify`: replays the steps between two checkpoints of a run and compares the results byte by byte.

Nothing is written to the run: the replay uses a temporary folder.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import quintet
from quintet import config as configs
from quintet.common.weights import checkpoint, tensor_groups
from quintet.common.weights.loading import read_meta
from quintet.common.weights.pruning import again_if_pruned, reading
from quintet.config import RunConfig
from quintet.errors import CheckpointError, PrunedError, RunError, UsageError
from quintet.registry import read_config
from quintet.runs import initial_weights, task_in
from quintet.training.edits import edited_keys
from quintet.training.prepare import changed_data, open_splits
from quintet.training.run_folder import Run
from quintet.training.state import Progress, environment, environment_changes
from quintet.training.trainer import Trainer

NOT_EXACT = ("train.grad_accum_steps", "loss.logit_chunk", "engine.")
"""Keys that may change when a run is resumed, and that change the rounding of a step."""
HARMLESS = tuple(key for key in configs.RESUMABLE if key not in NOT_EXACT)
"""Keys that may differ between the two checkpoints, because they do not affect the arithmetic of a step."""


@dataclass(frozen=True)
class Verdict:
    """The result of a replay."""

    start: int
    end: int
    files: int
    """Number of compared files with weights and optimizer state."""
    differences: list[str]
    notes: list[str]
    """Differences between the current environment and that of the training."""


def check_run(folder: Path, start: int | None = None, end: int | None = None) -> Verdict:
    """Verify the hashes of every checkpoint, then replay; `RunError` if a checkpoint is damaged or not reproduced."""
    run = Run.open(folder)
    with tempfile.TemporaryDirectory(prefix="quintet-verify-") as temporary:
        start, end, valid, problems = again_if_pruned(
            lambda: _copy_checkpoints(run, start, end, Path(temporary)), start is not None or end is not None
        )
        verdict = _replay(run, start, end, Path(temporary))
    if problems:
        raise RunError(f"damaged checkpoints: {'; '.join(problems)}; `quintet resume` would use step {valid[-1]}")
    if verdict.differences:
        reason = f" ({'; '.join(verdict.notes)})" if verdict.notes else ""
        raise RunError(
            f"steps {verdict.start} to {verdict.end} were not reproduced{reason}: {'; '.join(verdict.differences)}"
        )
    return verdict


def _valid_steps(run: Run) -> tuple[list[int], list[str]]:
    """The steps of all valid checkpoints, oldest first, and the errors of the others."""
    valid: list[int] = []
    problems: list[str] = []
    for folder in checkpoint.steps(run.checkpoints):
        try:
            with reading(folder):
                checkpoint.verify(folder)
            valid.append(checkpoint.step_of(folder))
        except PrunedError:  # there are newer ones by now
            return _valid_steps(run)
        except CheckpointError as error:
            problems.append(str(error))
    return valid, problems


def _copy_checkpoints(
    run: Run, start: int | None, end: int | None, copies: Path
) -> tuple[int, int, list[int], list[str]]:
    """Select both steps and copy their checkpoints, which a training may delete at any time; the steps, and the results
    of `_valid_steps`. By default these are the last two checkpoints; step 0 is the initial state."""
    valid, problems = _valid_steps(run)
    end = _select_step(run, valid, end, valid[-1:])
    start = 0 if start == 0 else _select_step(run, valid, start, [step for step in (0, *valid) if step < end][-1:])
    if start >= end:
        raise UsageError(f"--from {start} must be before --to {end}")
    for step in (start, end):
        source = checkpoint.folder_of(run.checkpoints, step)
        if step:
            with reading(source):
                shutil.copytree(source, copies / source.name, dirs_exist_ok=True)
    return start, end, valid, problems


def _replay(run: Run, start: int, end: int, copies: Path) -> Verdict:
    """Replay the steps from checkpoint `start` (0: the initial state) to `end`."""
    target = checkpoint.folder_of(copies, end)
    current = read_config(run.config_file)
    edited_keys(run, current)
    moved = current.data  # the folders may have moved since; the items must be the same
    config = read_config(target / "config.yaml").changed(
        {"data.path": moved.path, "data.validation_path": moved.validation_path}
    )
    meta = read_meta(target, config.recipe)
    _check_comparable(run, config, meta, checkpoint.folder_of(copies, start) if start else None)
    trainer = _trainer_at(run, config, meta, start, end, copies)
    try:
        while trainer.step < end:
            trainer.train_step()
    finally:
        trainer.close()
    replayed = copies / "replayed"
    checkpoint.write_folder(replayed, trainer.state.contents(1, trainer.splits.fingerprint))
    return Verdict(start, end, *_compare(replayed, target), _notes(meta, trainer.device))


def _select_step(run: Run, valid: list[int], step: int | None, default: list[int]) -> int:
    if step is None and not default:
        raise UsageError(f"{run.folder} has no valid checkpoint to compare with; train it first")
    selected = default[0] if step is None else step
    if selected and selected not in valid:
        raise UsageError(
            f"{run.folder} has no valid checkpoint of step {selected}; it has {', '.join(map(str, valid))}"
        )
    return selected


def _check_comparable(run: Run, config: RunConfig, meta: Mapping[str, Any], start: Path | None) -> None:
    if meta.get("world_size") != 1:
        raise UsageError(
            f"{run.folder} was trained by {meta.get('world_size')} processes; a replay in one process agrees only "
            "up to rounding errors, so it cannot be compared byte by byte"
        )
    if start is not None:
        before = read_config(start / "config.yaml")
        changed = [key for key in configs.differences(before, config) if not key.startswith(HARMLESS)]
        if _extends_later(before, config, checkpoint.step_of(start)):
            changed.remove("optim.decay_extensions")
        if changed:
            step = checkpoint.step_of(start)
            raise UsageError(f"{', '.join(changed)} changed after step {step}; choose other steps with --from and --to")


def _extends_later(before: RunConfig, after: RunConfig, start: int) -> bool:
    """Whether the schedule was stretched after step `start`: the learning rates before that are the same."""
    ours, theirs = before.optim.decay_extensions, after.optim.decay_extensions
    return ours != theirs and theirs[: len(ours)] == ours and theirs[len(ours)][0] >= start


def _trainer_at(run: Run, config: RunConfig, meta: Mapping[str, Any], start: int, end: int, copies: Path) -> Trainer:
    """A trainer in its own folder, with the state of the run at step `start`."""
    overrides = {"train.steps": end, "train.minutes": None, "log.trackers": [], "engine.threads": meta["threads"]}
    task = task_in(run.folder, config.changed(overrides))
    splits = open_splits(task)
    difference = changed_data(run, splits)
    if difference:
        raise UsageError(f"the data differs from the training data of {run.folder} ({difference})")
    copy = Run(copies / "replay")
    copy.checkpoints.mkdir(parents=True)
    if start:
        checkpoint.folder_of(copies, start).rename(checkpoint.folder_of(copy.checkpoints, start))
    shutil.copy(run.data_file, copy.data_file)
    init = initial_weights(config) if config.init and not start else None
    return Trainer(task, copy, splits=splits, resume=True, force=True, init=init, silent=True)


def _notes(meta: Mapping[str, Any], device: torch.device) -> list[str]:
    return environment_changes(meta, {"quintet": quintet.__version__, **environment(device)})


def _compare(replayed: Path, target: Path) -> tuple[int, list[str]]:
    """The number of tensor files, and the differences in tensors and counters."""
    ours, theirs = (
        {name: value for name, value in checkpoint.hashes(folder).items() if name.endswith(".safetensors")}
        for folder in (replayed, target)
    )
    differences = [
        _difference(replayed, target, name.removesuffix(".safetensors"))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    counts = [name for name in asdict(Progress()) if not name.startswith("best")]
    again, saved = (checkpoint.read_json(folder, "meta") for folder in (replayed, target))
    differences += [
        f"{name} is {again[name]} in the replay and {saved.get(name)} in the run"
        for name in counts
        if again[name] != saved.get(name, again[name])
    ]
    return len(theirs), differences


def _difference(replayed: Path, target: Path, name: str) -> str:
    ours, theirs = (tensor_groups.read_tensors(folder, name) for folder in (replayed, target))
    if ours.keys() != theirs.keys():
        return f"{name} has different tensors"
    differing = [key for key in ours if not torch.equal(ours[key], theirs[key])]
    if not differing:
        return f"{name} has equal tensors, but the files differ"
    most = max(float((ours[key].double() - theirs[key].double()).abs().max()) for key in differing)
    return f"{name}: {len(differing)} of {len(ours)} tensors differ, by up to {most:.3g}"
