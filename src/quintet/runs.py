"""Trainers for new runs and for runs that go on: from a configuration or a folder to the training loop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from quintet import config as configs
from quintet import registry
from quintet.common.rank import RankInfo
from quintet.common.weights import checkpoint
from quintet.config import RunConfig
from quintet.errors import UsageError
from quintet.pipelines.base import Pipeline
from quintet.pipelines.loading import open_frozen, open_pipeline, read_weights
from quintet.training.engine import may_be_restarted
from quintet.training.run_folder import Run, next_folder
from quintet.training.session import Weights
from quintet.training.task import Task
from quintet.training.trainer import Trainer


def new_trainer(config: RunConfig, out: Path | None = None, silent: bool = False) -> Trainer:
    """A trainer for a new run. Nothing is written before data and configuration have been found to fit."""
    folder = out or next_folder(config.recipe)
    if may_be_restarted() and Run(folder).config_file.is_file():
        return _started_again(config, folder, silent)
    # Only the process that will write looks: it may make the folder before the others get here.
    run = Run.new(folder, config.FROZEN_KEYS) if RankInfo.from_environment().rank == 0 else Run(folder)
    start = None
    if config.init:
        start = open_start(config)
        # The very checkpoint, so that a run that begins again begins from the same weights.
        config = config.changed({"init": _origin(start)})
    frozen = open_frozen(config)
    config = config.changed({name: _origin(pipeline) for name, pipeline in frozen.items()})
    if start is not None:
        _refuse_other_frozen(frozen, start)
    task = make_task(config, frozen)
    return Trainer(task, run, init=None if start is None else read_weights(start), silent=silent)


def _origin(pipeline: Pipeline[Any]) -> str:
    assert pipeline.origin is not None
    return pipeline.origin.reference


def _started_again(config: RunConfig, folder: Path, silent: bool) -> Trainer:
    """The same command again, by a launcher that was told to do so after a failure: the run goes on."""
    old = registry.read_config(folder / "config.yaml")
    if old.recipe != config.recipe:
        raise UsageError(f"{folder} is a run of recipe '{old.recipe}', not of '{config.recipe}'; choose another --out")
    named = {name: (getattr(config, name), getattr(old, name)) for name in ("init", *old.FROZEN_KEYS)}
    overrides = {name: asked for name, (asked, known) in named.items() if _folder_named(asked) != _folder_named(known)}
    if not overrides:
        # As a new start would have it: with what follows from the data and from what it stands on, whose copy lies in
        # the run's folder.
        config = task_in(folder, config.changed({name: known for name, (_, known) in named.items()})).config
        found = {"train.steps"} if config.train.epochs is not None else set()
        found |= {"optim.decay_steps"} if config.optim.decay_steps is None else set()
        changes = configs.differences(old, config).items()
        overrides = {key: asked for key, (_, asked) in changes if key not in found}
    return resumed_trainer(folder, overrides, silent=silent)


def _folder_named(reference: str | None) -> str | None:
    """Of a reference, without the step, which the start of a run adds to it."""
    if reference is None:
        return None
    path = reference if os.path.exists(reference) else reference.rpartition("@")[0] or reference
    return str(Path(path).resolve()) if os.path.exists(path) else path


def _refuse_other_frozen(frozen: Mapping[str, Pipeline[Any]], start: Pipeline[Any]) -> None:
    """Weights that were trained on one tokenizer mean nothing on another."""
    for name, pipeline in frozen.items():
        other = start.frozen.get(name)
        if other is not None and other.digest != pipeline.digest:
            raise UsageError(
                f"--init {_origin(start)} stands on another {name} ({other.reference}) than {pipeline.reference}"
            )


def resumed_trainer(folder: Path, overrides: Mapping[str, Any], force: bool = False, silent: bool = False) -> Trainer:
    """A trainer that continues a run from its newest sound checkpoint, or from its start where there is none yet.

    With `force` also under other keys, on other data, or by another version.
    """
    run = Run.open(folder)
    old = registry.read_config(run.config_file)
    new = old.changed(overrides)
    if not force:
        configs.refuse_changes(old, new)
    saved = checkpoint.steps(run.checkpoints)
    begun = bool(saved)
    if begun and "train.steps" in overrides and new.train.steps < checkpoint.step_of(saved[-1]):
        raise UsageError(f"train.steps={new.train.steps}, but {folder} is at step {checkpoint.step_of(saved[-1])}")
    latest = run.checkpoints / "latest"
    if not begun and latest.exists():
        raise UsageError(
            f"the checkpoints of {folder} are gone ({latest} names {latest.read_text(errors='replace').strip()[:20]}); "
            "put them back, or start anew with `quintet train` and another --out"
        )
    init = initial_weights(new) if new.init and not begun else None
    trainer = Trainer(task_in(folder, new), run, resume=True, force=force, init=init, silent=silent)
    for key, (before, after) in configs.differences(old, new).items():
        trainer.print(f"changed: {key}: {before!r} -> {after!r}")
    return trainer


def make_task(config: RunConfig, frozen: Mapping[str, Pipeline[Any]]) -> Task[Any]:
    """The task with fresh weights, the same for the same seed."""
    torch.manual_seed(config.train.seed)
    return registry.find(config.recipe).task_class()(config, frozen)


def open_start(config: RunConfig) -> Pipeline[Any]:
    """The pipeline whose weights a fine-tuning starts from."""
    assert config.init is not None
    pipeline = open_pipeline(config.init)
    if pipeline.origin is None or pipeline.origin.builtin:
        raise UsageError(f"--init {config.init}: there is nothing learned in it to start from")
    if pipeline.recipe != config.recipe:
        raise UsageError(f"--init {config.init} is of recipe '{pipeline.recipe}', this run is of '{config.recipe}'")
    return pipeline


def initial_weights(config: RunConfig) -> Weights:
    return read_weights(open_start(config))


def task_in(folder: Path, config: RunConfig) -> Task[Any]:
    """The task of a run, with fresh weights, over the copies of frozen models in its folder."""
    return make_task(config, open_frozen(config, folder))
