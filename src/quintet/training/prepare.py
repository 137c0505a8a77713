"""Owns what is checked and fixed before the first step, so that nothing is written for a run that cannot work."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import quintet
from quintet.common.batch import Dataset
from quintet.common.device import own_device
from quintet.common.weights import checkpoint
from quintet.config import RunConfig
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.training.engine import check_world
from quintet.training.optim import learning_rate
from quintet.training.run_folder import Run
from quintet.training.task import Task


def open_splits(task: Task[Any]) -> Splits:
    """The data that the configuration names. Where it has to be encoded, that is done on the device."""
    frozen_to_device(task)
    return task.splits()


def frozen_to_device(task: Task[Any]) -> None:
    """The frozen models of a task, to the device of this process."""
    device = own_device(task.config.engine)
    for pipeline in task.frozen.values():
        pipeline.to(device)


def check_sharding(task: Task[Any]) -> None:
    """Refuse what parts of a model cannot do, also where one process has all of it: the run may go on in several."""
    if not task.config.engine.fsdp:
        return
    if not task.traits.shardable:
        raise UsageError(
            f"engine.fsdp=true is for generators, whose only large part is a transformer; recipe {task.name} needs "
            "engine.fsdp=false"
        )
    if task.config.engine.compile:
        raise UsageError("engine.compile=true and engine.fsdp=true do not go together; choose one")
    if any(phase.optim.name == "muon" for phase in task.phases):
        raise UsageError(
            "optim.name=muon turns whole matrices, and engine.fsdp=true leaves each process some of their rows; use "
            "optim.name=adamw or lion"
        )


def check_task(task: Task[Any]) -> None:
    """Refuse a family whose parts do not fit each other, which would be found only when the run is used."""
    family, known = type(task).__name__, ", ".join(task.modules)
    if task.config.recipe != task.name:
        raise UsageError(f"{family} is of recipe '{task.config.recipe}', but its pipeline of '{task.name}'")
    if task.traits.best[1] not in ("max", "min"):
        raise UsageError(f"{family}: the second value of Traits.best is 'max' or 'min', not {task.traits.best[1]!r}")
    named = {"the pipeline exports": [task.pipeline_class.exported]}
    named |= {f"phase '{phase.name}' trains": list(phase.modules) for phase in task.phases}
    for who, modules in named.items():
        for name in modules:
            if name not in task.modules:
                raise UsageError(f"{family}: {who} '{name}', and the task has the modules {known}")


def check_processes(task: Task[Any], world_size: int) -> None:
    """Refuse, before any data is read, a batch that the processes or the task do not fit."""
    train, batch = task.config.train, task.config.train.batch_size
    check_world(task.config.engine, world_size)
    if batch % (world_size * train.grad_accum_steps):
        raise UsageError(
            f"train.batch_size={batch} is not divisible by {world_size} processes x train.grad_accum_steps={train.grad_accum_steps}"
        )
    if batch < task.traits.minimum_batch:
        raise UsageError(
            f"recipe {task.name} needs train.batch_size of at least {task.traits.minimum_batch} (got {batch}): it "
            "compares the items of a batch with each other"
        )
    if train.grad_accum_steps > 1 and task.traits.minimum_batch > 1 and type(task).backward is Task.backward:
        raise UsageError(
            f"recipe {task.name} compares the items of a batch with each other, and train.grad_accum_steps="
            f"{train.grad_accum_steps} would leave only {batch // train.grad_accum_steps} at a time to compare with: it needs a "
            "backward pass over the whole batch (training/grad_cache.py), or train.grad_accum_steps=1"
        )


def check_data(task: Task[Any], splits: Splits) -> None:
    """Refuse, before anything is written, a batch that the data does not fit."""
    batch = task.config.train.batch_size
    if batch > len(splits.train):
        raise UsageError(
            f"train.batch_size={batch} is larger than the training data of {len(splits.train)} items; "
            f"use train.batch_size={max(1, len(splits.train))} or fewer, or add data"
        )
    wanted = task.config.eval.batch_size or 1
    if wanted > len(splits.validation):
        raise UsageError(
            f"eval.batch_size={wanted} is larger than the validation set of {len(splits.validation)} items; lower it, "
            "raise data.validation_fraction, or set data.validation_fraction=0 to validate on the training items"
        )


def resolve(config: RunConfig, num_items: int) -> RunConfig:
    """Fix what follows from the data and the length once and for all, so that a resumed run cannot move it."""
    fixed: dict[str, Any] = {}
    steps = config.train.steps
    if config.train.epochs is not None:
        steps = max(1, math.ceil(config.train.epochs * num_items / config.train.batch_size))
        fixed["train.steps"] = steps
    if config.optim.decay_steps is None:
        fixed["optim.decay_steps"] = steps
    return config.changed(fixed) if fixed else config


def ends_with_zero_lr(config: RunConfig, step: int) -> bool:
    """Whether a run is to go on where its schedule has come down to nothing."""
    horizon, steps = config.optim.decay_steps, config.train.steps
    return horizon is not None and step < steps > horizon and not learning_rate(config.optim, steps - 1)


def data_record(splits: Splits) -> dict[str, Any]:
    """What `data.json` holds: the items, frozen, by name or by an index and their number; and what was passed over."""
    sides: dict[str, Dataset] = {"train": splits.train, "validation": splits.validation}
    return {
        "fingerprint": splits.fingerprint,
        **splits.about,
        "skipped": splits.skipped,
        **{name: names_of(source) if splits.listed else len(source) for name, source in sides.items()},
    }


def changed_data(run: Run, splits: Splits) -> str:
    """How the data differs from what the run began with; nothing where it does not."""
    known = read_data_record(run)
    if known["fingerprint"] == splits.fingerprint:
        splits.skipped.update(known["skipped"])
        return ""
    sides = (splits.train, splits.validation)
    recorded = [known["train"], known["validation"]]
    if not splits.listed or not all(isinstance(names, list) for names in recorded):
        count = sum(len(names) if isinstance(names, list) else names for names in recorded)
        return f"{count} items then, {sum(map(len, sides))} now, by another index"
    before = {name for names in recorded for name in names}
    after = {name for source in sides for name in names_of(source)}
    added, removed = sorted(after - before), sorted(before - after)
    return f"{len(added)} items added{_first(added)}, {len(removed)} removed{_first(removed)}, others may have changed"


def refuse_other_version(folder: Path, meta: Mapping[str, Any]) -> None:
    """Another version may compute something else from the same checkpoint, and nobody would know."""
    was, now = meta.get("quintet"), quintet.__version__
    if was != now:
        raise UsageError(
            f"{folder} was written by quintet {was} and this is {now}: the curve may bend here; install quintet {was} "
            "again, or go on all the same with --force"
        )


def read_data_record(run: Run) -> dict[str, Any]:
    try:
        known = json.loads(checkpoint.read_regular(run.data_file))
        for name, kind in (("fingerprint", str), ("skipped", dict), ("train", list), ("validation", list)):
            counted = kind is list and type(known[name]) is int
            named = isinstance(known[name], kind) and all(isinstance(each, str) for each in known[name])
            if not counted and not named:
                raise ValueError(f"'{name}' is not what quintet writes")
        return dict(known)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{run.data_file} is missing or damaged ({error}), so nobody can tell whether the data is what it was; "
            f"put it back, or start a new run with --init {run.folder}"
        ) from None


def names_of(source: Dataset) -> list[str]:
    return [source.name(item) for item in range(len(source))]


def _first(names: list[str]) -> str:
    return f" such as {names[0]}" if names else ""
