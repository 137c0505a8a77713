"""Checks and settings before the first step, so that nothing is written for a run that cannot work."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import quintet
from quintet.common import collectives, rank
from quintet.common.batch import Dataset
from quintet.common.device import own_device
from quintet.common.precision import choose_precision, has_bf16
from quintet.common.weights import checkpoint
from quintet.config import RunConfig, flatten
from quintet.data.index.entry import no_training_items
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.training.metrics import check_trackers
from quintet.training.run_folder import Run
from quintet.training.schedule import learning_rate
from quintet.training.task import Task


def open_splits(task: Task[Any]) -> Splits:
    """The data splits of the configuration. If the data is encoded by a frozen tokenizer, that runs on the device."""
    frozen_to_device(task)
    return task.splits()


def check_before_data(task: Task[Any]) -> None:
    """All checks that need no data, which can take hours to encode."""
    check_trackers(task.config.log.trackers)
    check_task(task)
    check_sharding(task)
    check_precision(task)
    check_processes(task, max(rank.RankInfo.from_environment().world_size, collectives.world_size()))


def frozen_to_device(task: Task[Any]) -> None:
    """Move the frozen models of a task to the device of this process."""
    device = own_device(task.config.engine)
    for pipeline in task.frozen.values():
        pipeline.to(device)


def check_sharding(task: Task[Any]) -> None:
    """Raise UsageError for options that FSDP does not support, also if there is only one process now."""
    if not task.config.engine.fsdp:
        return
    if not task.traits.shardable:
        raise UsageError(
            f"recipe {task.name} does not support engine.fsdp=true, which is for generators based on a transformer; "
            "set engine.fsdp=false"
        )


def check_task(task: Task[Any]) -> None:
    """Raise UsageError if the task, pipeline and phases of a family are inconsistent."""
    family, known = type(task).__name__, ", ".join(task.modules)
    if task.config.recipe != task.name:
        raise UsageError(
            f"the recipe of {family} is '{task.config.recipe}', but the recipe of its pipeline is '{task.name}'"
        )
    if task.traits.best[1] not in ("max", "min"):
        raise UsageError(
            f"{family}: the second value of Traits.best must be 'max' or 'min', not {task.traits.best[1]!r}"
        )
    named = {"the pipeline exports": [task.pipeline_class.exported]}
    named |= {f"phase '{phase.name}' trains": list(phase.modules) for phase in task.phases}
    for who, modules in named.items():
        for name in modules:
            if name not in task.modules:
                raise UsageError(f"{family}: {who} '{name}', but the modules of the task are {known}")


def check_processes(task: Task[Any], world_size: int) -> None:
    """Raise UsageError, before any data is read, if the batch size does not suit the processes or the task."""
    train, batch = task.config.train, task.config.train.batch_size
    rank.check_processes(task.config, world_size)
    if batch < task.traits.minimum_batch:
        raise UsageError(
            f"recipe {task.name} needs train.batch_size of at least {task.traits.minimum_batch} (got {batch}), because "
            "it compares the items of a batch with each other"
        )
    if train.micro_batches > 1 and task.traits.minimum_batch > 1 and type(task).backward is Task.backward:
        raise UsageError(
            f"recipe {task.name} compares the items of a batch with each other, and train.grad_accum_steps="
            f"{train.grad_accum_steps} reduces that to {batch // train.micro_batches} items at a time: implement "
            "`backward` over the full batch (training/grad_cache.py), or set train.grad_accum_steps=1"
        )


def check_data(task: Task[Any], splits: Splits, repeats_items: bool = False) -> None:
    """Raise UsageError, before anything is written, if there are fewer items than a batch needs.

    With `repeats_items`, the micro-batches of a step may have the same items, unless they are compared with each other.
    """
    batch = task.config.train.batch_size
    if not len(splits.train):
        raise no_training_items(splits.extra_splits or ["validation"])
    may_repeat = repeats_items and task.traits.minimum_batch == 1
    if (batch // task.config.train.micro_batches if may_repeat else batch) > len(splits.train):
        raise UsageError(
            f"train.batch_size={batch} is larger than the training data of {len(splits.train)} items; "
            f"use train.batch_size={max(1, len(splits.train))} or less, or add data"
        )
    eval_batch = task.config.eval.batch_size or 1
    if eval_batch > len(splits.validation):
        raise UsageError(
            f"eval.batch_size={eval_batch} is larger than the validation set of {len(splits.validation)} items; "
            "lower it, raise data.validation_fraction, or set data.validation_fraction=0 to validate on the training "
            "items"
        )


def resolve(config: RunConfig, num_items: int) -> RunConfig:
    """Set `train.steps`, `optim.decay_steps` and `engine.launch`, so that resuming cannot change them."""
    resolved: dict[str, Any] = {}
    steps = config.train.steps
    if config.train.epochs is not None:
        steps = max(1, math.ceil(config.train.epochs * num_items / config.train.batch_size))
        resolved["train.steps"] = steps
    if config.optim.decay_steps is None:
        resolved["optim.decay_steps"] = steps
    if config.engine.launch == "auto":  # not started by the command line
        resolved["engine.launch"] = 1
    return config.changed(resolved) if resolved else config


def fix_precision(task: Task[Any]) -> Any:
    """The configuration of a task with the precision of this device instead of `engine.precision=auto`, so that
    resuming elsewhere cannot change it."""
    config: RunConfig = task.config
    if config.engine.precision != "auto":
        return config
    chosen = choose_precision("auto", own_device(config.engine).type)
    return config.changed({"engine.precision": "fp32" if chosen == "fp16" and task.traits.takes_gradients else chosen})


def check_precision(task: Task[Any]) -> None:
    """Raise UsageError if the task cannot be trained in fp16 on this device."""
    engine = task.config.engine
    if engine.precision != "fp16":
        return
    if own_device(engine).type == "cpu":
        raise UsageError("engine.precision=fp16 needs a GPU, and this process uses the CPU; set engine.precision=fp32")
    if task.traits.takes_gradients:
        raise UsageError(
            f"recipe {task.name} cannot be trained in fp16, in which the gradients that balance its losses underflow; "
            "set engine.precision=fp32, or bf16 if the GPU has it"
        )


def precision_notes(config: RunConfig, device_type: str) -> list[str]:
    """A warning for a GPU that emulates the precision of the run."""
    is_emulated = config.engine.precision == "bf16" and device_type not in ("cpu", "mps") and not has_bf16(device_type)
    if not is_emulated:
        return []
    return [
        "warning: this GPU has no bf16 instructions and emulates them, which is slower than fp32: start a new run with "
        "engine.precision=auto"
    ]


def resumed_config(old: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """The configuration of a run with changed keys; `auto` is what was chosen when it started."""
    new = old.changed(overrides)
    chosen: dict[str, Any] = {}
    if new.engine.precision == "auto":
        chosen["engine.precision"] = old.engine.precision
    if new.train.grad_accum_steps == "auto":
        chosen["train.grad_accum_steps"] = old.train.grad_accum_steps
    return new.changed(chosen) if chosen else new


def change_length(config: RunConfig, step: int, steps: int) -> RunConfig:
    """The configuration of a run that ends at another step, decided at `step`: the schedule ends there too."""
    extensions = config.optim.decay_extensions
    if steps != config.train.steps:
        extensions = (*(pair for pair in extensions if pair[0] < step), (step, steps))
    return config.changed({"train.steps": steps, "optim.decay_extensions": extensions})


def extend_schedule(old: RunConfig, new: RunConfig, step: int) -> RunConfig:
    """Stretch the schedule of a run that is resumed at `step` with a larger `train.steps`, if the learning rate would
    be 0 at its new end; see docs/decisions/0030-longer-runs-stretch-their-schedule.md.

    A schedule that does not end with the run was chosen by the user (`optim.decay_steps`), and is kept."""
    ended_together = old.optim.decay_end(old.train.steps - 1) == old.train.steps
    if new.train.steps <= old.train.steps or not ended_together or not ends_with_zero_lr(new, step):
        return new
    kept = [pair for pair in new.optim.decay_extensions if pair[0] < step]
    return new.changed({"optim.decay_extensions": [*kept, (step, new.train.steps)]})


def ends_with_zero_lr(config: RunConfig, step: int) -> bool:
    """Whether the run continues past the end of a schedule that decays to a learning rate of 0."""
    steps = config.train.steps
    end = config.optim.decay_end(steps - 1)
    if config.optim.scheduler is not None:
        return False
    return end is not None and step < steps > end and not learning_rate(config.optim, steps - 1)


def schedule_notes(config: RunConfig, step: int) -> list[str]:
    """What a user should know about the schedules before step `step` is trained."""
    optim, steps = config.optim, config.train.steps
    notes = []
    if step < steps and optim.decay_extensions and optim.decay_extensions[-1][0] == step:
        before = optim.decay_end(step - 1)
        notes.append(
            f"the learning rate schedule, which ended at step {before}, is stretched to step "
            f"{optim.decay_end(step)}: the learning rate goes on at {learning_rate(optim, step):.3g}"
        )
    if ends_with_zero_lr(config, step):
        notes.append(
            f"warning: the schedule ends at step {optim.decay_end(steps - 1)} (optim.decay_steps), and the learning "
            "rate is 0 from there on (optim.final_lr)"
        )
    return notes


def unreached_notes(config: RunConfig) -> list[str]:
    """A warning for each key that names a step which the run does not reach."""
    values = flatten(config.model_dump(mode="json"))
    return [
        f"warning: {key}={values[key]}, and the run ends at step {config.train.steps} (train.steps): {consequence}"
        for key, consequence in config.unreached_keys().items()
    ]


def data_record(splits: Splits) -> dict[str, Any]:
    """The contents of `data.json`: fingerprint, skipped items, and the names or number of items of both splits."""
    datasets: dict[str, Dataset] = {"train": splits.train, "validation": splits.validation}
    return {
        "fingerprint": splits.fingerprint,
        **splits.about,
        "skipped": splits.skipped,
        **{name: names_of(dataset) if splits.listed else len(dataset) for name, dataset in datasets.items()},
    }


def changed_data(run: Run, splits: Splits) -> str:
    """A description of how the data differs from `data.json`; empty if it does not."""
    recorded = read_data_record(run)
    if recorded["fingerprint"] == splits.fingerprint:
        splits.skipped.update(recorded["skipped"])
        return ""
    datasets = (splits.train, splits.validation)
    recorded_names = [recorded["train"], recorded["validation"]]
    if not splits.listed or not all(isinstance(names, list) for names in recorded_names):
        count = sum(len(names) if isinstance(names, list) else names for names in recorded_names)
        return f"{count} items before, {sum(map(len, datasets))} now, and another index"
    before = {name for names in recorded_names for name in names}
    after = {name for dataset in datasets for name in names_of(dataset)}
    added, removed = sorted(after - before), sorted(before - after)
    return f"{len(added)} items added{_first(added)}, {len(removed)} removed{_first(removed)}, others may have changed"


def refuse_other_version(folder: Path, meta: Mapping[str, Any]) -> None:
    """Raise UsageError if another version wrote the checkpoint: it may compute different results."""
    was, now = meta.get("quintet"), quintet.__version__
    if was != now:
        raise UsageError(
            f"{folder} was written by quintet {was}, and this is quintet {now}, which may compute different results; "
            f"install quintet {was}, or continue with --force"
        )


def read_data_record(run: Run) -> dict[str, Any]:
    """Read and validate `data.json`."""
    try:
        known = json.loads(checkpoint.read_regular(run.data_file))
        for name, kind in (("fingerprint", str), ("skipped", dict), ("train", list), ("validation", list)):
            counted = kind is list and type(known[name]) is int
            named = isinstance(known[name], kind) and all(isinstance(each, str) for each in known[name])
            if not counted and not named:
                raise ValueError(f"'{name}' has an unexpected type")
        return dict(known)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{run.data_file} is missing or damaged ({error}), so the data cannot be checked for changes; "
            f"restore the file, or start a new run with --init {run.folder}"
        ) from None


def names_of(dataset: Dataset) -> list[str]:
    """The names of all items."""
    return [dataset.name(item) for item in range(len(dataset))]


def _first(names: list[str]) -> str:
    return f" such as {names[0]}" if names else ""
