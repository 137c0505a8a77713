"""Evaluation: metrics over the validation items, and sample artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch
from quintet.common.inference import inference_mode
from quintet.common.statistics import Statistics
from quintet.training.distributed.sharding import unsharded
from quintet.training.engine import Engine
from quintet.training.loader import Loader
from quintet.training.phase import Modules
from quintet.training.task import Task


def evaluate(
    task: Task[Any],
    modules: Modules,
    loader: Loader,
    engine: Engine,
    batch_size: int,
    batches: int | None = None,
    generated: int = 0,
    extra_splits: Mapping[str, Loader] | None = None,
) -> dict[str, float]:
    """The metrics of a task over the validation items, with fixed random numbers, on all ranks.

    If `generated` is not 0, media are generated from the first `generated` items (rounded up to full batches) of the
    validation split and of each of the `extra_splits`, and judged.
    """
    total = Statistics()
    with inference_mode(modules), unsharded(modules.values()):
        # Autocast covers the models only, not the decoding of media in the loader.
        for loaded, is_counted in loader.validation(batch_size, batches):
            engine.pass_point()
            with engine.autocast():
                measured = task.measure(modules, loaded.batch.to(engine.device, engine.dtype))
            total = total + (measured if is_counted else measured.zeros_like())
        for split, items in {"validation": loader, **(extra_splits or {})}.items():
            for loaded, is_counted in items.validation(batch_size, -(-generated // batch_size)):
                engine.pass_point()
                with engine.autocast():
                    measured = task.measure_generated(modules, loaded.batch.to(engine.device, engine.dtype), split)
                total = total + (measured if is_counted else measured.zeros_like())
        return task.summarise(total.over_ranks())


def make_artifacts(task: Task[Any], modules: Modules, batch: Batch, engine: Engine) -> list[Artifact]:
    """Sample artifacts of a batch."""
    with inference_mode(modules), unsharded(modules.values()), engine.autocast():
        return task.sample(modules, batch)
