"""Trainers for new and resumed runs, from a configuration or a run folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from quintet import config as configs
from quintet import registry
from quintet.common import collectives
from quintet.common.memory import building
from quintet.common.rank import RankInfo
from quintet.common.weights import checkpoint
from quintet.common.weights.loading import Weights
from quintet.common.weights.pruning import again_if_pruned
from quintet.config import RunConfig
from quintet.config.budget import Budget
from quintet.errors import UsageError
from quintet.pipelines.base import Pipeline
from quintet.pipelines.loading import is_fixed, open_frozen, open_pipeline, read_weights
from quintet.training import prepare
from quintet.training.budget import choose
from quintet.training.distributed.deferred import build_deferred
from quintet.training.edits import edited_keys
from quintet.training.engine import may_be_restarted
from quintet.training.run_folder import Run, next_folder
from quintet.training.task import Task
from quintet.training.trainer import Trainer


def new_trainer(
    config: RunConfig, out: Path | None = None, silent: bool = False, budget: Budget | None = None
) -> Trainer:
    """A trainer for a new run. Nothing is written before data and configuration are checked.

    With a budget, the keys that the user has not set are chosen so that the training takes that time."""
    if config.train.lora is not None and not config.init:
        raise UsageError(f"train.lora={config.train.lora} adapts trained weights: name them with --init RUN")
    folder = out or next_folder(config.recipe)
    if may_be_restarted() and Run(folder).config_file.is_file():
        return _restarted_trainer(config, folder, silent, budget is not None)
    # Only rank 0 checks the folder: it may create it before the other ranks get here.
    run = Run.new(folder, config.FROZEN_KEYS) if RankInfo.from_environment().rank == 0 else Run(folder)
    start, weights = None, None
    if config.init:
        start, weights = _open_start(config)
        # Record the exact checkpoint, so that a restarted run uses the same weights.
        config = config.changed({"init": _origin(start)})
    frozen = open_frozen(config)
    config = config.changed({name: _origin(pipeline) for name, pipeline in frozen.items()})
    if start is not None:
        _refuse_other_frozen(frozen, start)
    if budget is None:
        return Trainer(make_task(config, frozen), run, init=weights, silent=silent)
    chosen = choose(config, budget, lambda candidate: make_task(candidate, frozen))
    task = make_task(chosen.config, frozen)
    trainer = Trainer(task, run, splits=chosen.splits, engine=chosen.engine, init=weights, silent=silent)
    trainer.pace = chosen.pace
    trainer.print(budget.describe(trainer.config))
    return trainer


def _origin(pipeline: Pipeline[Any]) -> str:
    assert pipeline.origin is not None
    return pipeline.origin.reference


def _restarted_trainer(config: RunConfig, folder: Path, silent: bool, has_budget: bool) -> Trainer:
    """The launcher restarted the same command after a failure: resume the run. What a budget has chosen stays."""
    old = registry.read_config(folder / "config.yaml")
    if old.recipe != config.recipe:
        raise UsageError(f"{folder} is a run of recipe '{old.recipe}', not of '{config.recipe}'; choose another --out")
    references = {name: (getattr(config, name), getattr(old, name)) for name in ("init", *old.FROZEN_KEYS)}
    overrides = {name: new for name, (new, known) in references.items() if _folder_of(new) != _folder_of(known)}
    if not overrides and not has_budget:
        # The configuration of a new start, with the keys that follow from the frozen models, whose copies are in the
        # run folder.
        task = task_in(folder, config.changed({name: known for name, (_, known) in references.items()}))
        config = task.config
        derived = {"train.steps"} if config.train.epochs is not None else set()
        derived |= {"optim.decay_steps"} if config.optim.decay_steps is None else set()
        derived |= {"optim.decay_extensions"} if not config.optim.decay_extensions else set()
        changes = configs.differences(old, config).items()
        overrides = {
            key: new
            for key, (_, new) in changes
            if key not in derived and not (new is None and key in task.derived_keys)
        }
    return resumed_trainer(folder, overrides, silent=silent)


def _folder_of(reference: str | None) -> str | None:
    """The folder of a reference, without the step, which the start of a run adds to it."""
    if reference is None:
        return None
    path = reference if os.path.exists(reference) else reference.rpartition("@")[0] or reference
    return str(Path(path).resolve()) if os.path.exists(path) else path


def _refuse_other_frozen(frozen: Mapping[str, Pipeline[Any]], start: Pipeline[Any]) -> None:
    """Raise UsageError if `--init` was trained with other frozen models: its weights would be meaningless."""
    for name, pipeline in frozen.items():
        other = start.frozen.get(name)
        if other is not None and other.digest != pipeline.digest:
            raise UsageError(
                f"--init {_origin(start)} was trained with another {name} ({other.reference}) than {pipeline.reference}"
            )


def resumed_trainer(folder: Path, overrides: Mapping[str, Any], force: bool = False, silent: bool = False) -> Trainer:
    """A trainer that resumes a run from its newest valid checkpoint, or from the start if there is none.

    `force` allows changed keys, an edited `config.yaml`, changed data and another version of quintet.
    """
    run = Run.open(folder)
    old = registry.read_config(run.config_file)
    edits = edited_keys(run, old, force)
    if "optim.decay_steps" in overrides and old.optim.decay_extensions:
        overrides = {"optim.decay_extensions": [], **overrides}  # another end replaces them; refused unless forced
    new = prepare.resumed_config(old, overrides)
    if not force:
        configs.refuse_changes(old, new)
    saved = checkpoint.steps(run.checkpoints)
    has_checkpoint = bool(saved)
    if has_checkpoint and "train.steps" in overrides and new.train.steps < checkpoint.step_of(saved[-1]):
        raise UsageError(f"train.steps={new.train.steps}, but {folder} is at step {checkpoint.step_of(saved[-1])}")
    new = prepare.extend_schedule(old, new, checkpoint.step_of(saved[-1]) if saved else 0)
    latest = run.checkpoints / "latest"
    if not has_checkpoint and latest.exists():
        raise UsageError(
            f"the checkpoints of {folder} are missing ({latest} refers to "
            f"{latest.read_text(errors='replace').strip()[:20]}); restore them, or start a new run with "
            "`quintet train` and another --out"
        )
    init = initial_weights(new) if new.init and not has_checkpoint else None
    trainer = Trainer(task_in(folder, new), run, resume=True, force=force, init=init, silent=silent)
    for key, (before, after) in edits.items():
        trainer.print(f"edited in {run.config_file}: {key}: {before!r} -> {after!r}")
    for key, (before, after) in configs.differences(old, new).items():
        trainer.print(f"changed: {key}: {before!r} -> {after!r}")
    return trainer


def make_task(config: RunConfig, frozen: Mapping[str, Pipeline[Any]]) -> Task[Any]:
    """The task with new weights, which depend only on `train.seed`."""
    task_class = registry.find(config.recipe).task_class()
    build = partial(task_class, config, frozen)
    world_size = max(RankInfo.from_environment().world_size, collectives.world_size())
    torch.manual_seed(config.train.seed)
    with building(config):
        if config.engine.fsdp and world_size > 1 and task_class.traits.shardable:
            return build_deferred(build, config.train.seed)
        return build()


def open_start(config: RunConfig) -> Pipeline[Any]:
    """The pipeline of `--init`, whose weights fine-tuning starts from."""
    assert config.init is not None
    pipeline = open_pipeline(config.init)
    if pipeline.origin is None or pipeline.origin.builtin:
        raise UsageError(
            f"--init {config.init} is a built-in model without trained weights; use a run or an exported folder"
        )
    if pipeline.recipe != config.recipe:
        raise UsageError(
            f"the recipe of --init {config.init} is '{pipeline.recipe}', the recipe of this run is '{config.recipe}'"
        )
    return pipeline


def _open_start(config: RunConfig) -> tuple[Pipeline[Any], Weights]:
    """The pipeline of `--init` and all its weights."""

    def read() -> tuple[Pipeline[Any], Weights]:
        pipeline = open_start(config)
        return pipeline, read_weights(pipeline)

    return again_if_pruned(read, fixed=is_fixed(str(config.init)))


def initial_weights(config: RunConfig) -> Weights:
    """The weights of `--init`."""
    return _open_start(config)[1]


def task_in(folder: Path, config: RunConfig) -> Task[Any]:
    """The task of a run with new weights, and with the copies of frozen models in its folder."""
    return make_task(config, open_frozen(config, folder))
