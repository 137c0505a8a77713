"""Owns the proof that a run is what it says: the steps between two of its checkpoints, taken again and compared.

Nothing is written to the run: the replay has a temporary folder of its own.
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
from quintet.common.weights import checkpoint
from quintet.common.weights.loading import read_meta
from quintet.config import RunConfig
from quintet.errors import CheckpointError, RunError, UsageError
from quintet.registry import read_config
from quintet.runs import initial_weights, task_in
from quintet.training.prepare import changed_data, open_splits
from quintet.training.run_folder import Run
from quintet.training.state import Progress, environment
from quintet.training.trainer import Trainer

HARMLESS = tuple(key for key in configs.RESUMABLE if key not in ("train.grad_accum_steps", "engine."))
"""Keys that may differ between the two checkpoints: they do not take part in the arithmetic of a step."""


@dataclass(frozen=True)
class Verdict:
    """What a replay showed."""

    start: int
    end: int
    files: int
    """How many files of weights and optimizer state were compared."""
    differences: list[str]
    notes: list[str]
    """What is not as it was when the run was trained."""


def check_run(folder: Path, start: int | None = None, end: int | None = None) -> Verdict:
    """Check every checkpoint's hashes, then replay; `RunError` if a checkpoint is damaged or not reproduced."""
    run = Run.open(folder)
    sound, problems = _sound_steps(run)
    verdict = _replay(run, start, end, sound)
    if problems:
        raise RunError(f"damaged: {'; '.join(problems)}; `quintet resume` would use step {sound[-1]}")
    if verdict.differences:
        because = f" ({'; '.join(verdict.notes)})" if verdict.notes else ""
        raise RunError(
            f"steps {verdict.start} to {verdict.end} were not reproduced{because}: {'; '.join(verdict.differences)}"
        )
    return verdict


def _sound_steps(run: Run) -> tuple[list[int], list[str]]:
    """The steps whose checkpoints are whole, oldest first, and what is wrong with the others."""
    sound: list[int] = []
    problems: list[str] = []
    for folder in checkpoint.steps(run.checkpoints):
        try:
            checkpoint.verify(folder)
            sound.append(checkpoint.step_of(folder))
        except CheckpointError as error:
            problems.append(str(error))
    return sound, problems


def _replay(run: Run, start: int | None, end: int | None, sound: list[int]) -> Verdict:
    """Take the steps from checkpoint `start` (0: the beginning) to `end` again; by default the last two."""
    end = _chosen(run, sound, end, sound[-1:])
    start = 0 if start == 0 else _chosen(run, sound, start, [step for step in (0, *sound) if step < end][-1:])
    if start >= end:
        raise UsageError(f"step {start} does not lie before step {end}; there would be nothing to replay")
    target = checkpoint.folder_of(run.checkpoints, end)
    moved = read_config(run.config_file).data  # the folders may have moved since; the items may not
    config = read_config(target / "config.yaml").changed(
        {"data.path": moved.path, "data.validation_path": moved.validation_path}
    )
    meta = read_meta(target, config.recipe)
    _check_comparable(run, config, meta, start)
    with tempfile.TemporaryDirectory(prefix="quintet-verify-") as temporary:
        trainer = _trainer_at(run, config, meta, start, end, Path(temporary) / "replay")
        try:
            while trainer.step < end:
                trainer.train_step()
        finally:
            trainer.close()
        made = Path(temporary) / "made"
        checkpoint.write_folder(made, trainer.state.contents(1, trainer.splits.fingerprint))
        return Verdict(start, end, *_compared(made, target), _notes(meta))


def _chosen(run: Run, sound: list[int], step: int | None, default: list[int]) -> int:
    if step is None and not default:
        raise UsageError(f"{run.folder} has no sound checkpoint to compare with; train it first")
    chosen = default[0] if step is None else step
    if chosen and chosen not in sound:
        raise UsageError(f"{run.folder} has no sound checkpoint of step {chosen}; it has {', '.join(map(str, sound))}")
    return chosen


def _check_comparable(run: Run, config: RunConfig, meta: Mapping[str, Any], start: int) -> None:
    if meta.get("world_size") != 1:
        raise UsageError(
            f"{run.folder} was trained by {meta.get('world_size')} processes; one process agrees with them to "
            "rounding, not to the byte, so a replay would prove nothing"
        )
    if start:
        before = read_config(checkpoint.folder_of(run.checkpoints, start) / "config.yaml")
        changed = [key for key in configs.differences(before, config) if not key.startswith(HARMLESS)]
        if changed:
            raise UsageError(
                f"{', '.join(changed)} changed after step {start}; choose other steps with --from and --to"
            )


def _trainer_at(run: Run, config: RunConfig, meta: Mapping[str, Any], start: int, end: int, folder: Path) -> Trainer:
    """A trainer in a folder of its own that stands where the run stood."""
    here = {"train.steps": end, "train.minutes": None, "log.trackers": [], "engine.threads": meta["threads"]}
    task = task_in(run.folder, config.changed(here))
    splits = open_splits(task)
    difference = changed_data(run, splits)
    if difference:
        raise UsageError(f"the data is not what {run.folder} was trained on ({difference})")
    copy = Run(folder)
    if start:
        source = checkpoint.folder_of(run.checkpoints, start)
        shutil.copytree(source, copy.checkpoints / source.name)
    folder.mkdir(exist_ok=True)
    shutil.copy(run.data_file, copy.data_file)
    init = initial_weights(config) if config.init and not start else None
    return Trainer(task, copy, splits=splits, resume=True, force=True, init=init, silent=True)


def _notes(meta: Mapping[str, Any]) -> list[str]:
    now = {"quintet": quintet.__version__, **environment()}
    return [f"{name} was {meta.get(name)} and is {value}" for name, value in now.items() if meta.get(name) != value]


def _compared(made: Path, target: Path) -> tuple[int, list[str]]:
    """How many files of tensors there are, and what differs, in them and in the counts."""
    ours, theirs = (
        {name: value for name, value in checkpoint.hashes(folder).items() if name.endswith(".safetensors")}
        for folder in (made, target)
    )
    differences = [
        _difference(made, target, name.removesuffix(".safetensors"))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    counts = [name for name in asdict(Progress()) if not name.startswith("best")]
    again, saved = (checkpoint.read_json(folder, "meta") for folder in (made, target))
    differences += [
        f"{name} is {again[name]} in the replay and {saved.get(name)} in the run"
        for name in counts
        if again[name] != saved.get(name, again[name])
    ]
    return len(theirs), differences


def _difference(made: Path, target: Path, name: str) -> str:
    ours, theirs = (checkpoint.read_tensors(folder, name) for folder in (made, target))
    if ours.keys() != theirs.keys():
        return f"{name} holds other tensors"
    differing = [key for key in ours if not torch.equal(ours[key], theirs[key])]
    if not differing:
        return f"{name} holds the same tensors, written differently"
    most = max(float((ours[key].double() - theirs[key].double()).abs().max()) for key in differing)
    return f"{name}: {len(differing)} of {len(ours)} tensors differ, by up to {most:.3g}"
