"""`EvalSession`: a trained model with its validation data, for `quintet eval` and for samples without prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from quintet import registry
from quintet.common.artifact import Artifact
from quintet.common.batch import Dataset
from quintet.common.weights.pruning import again_if_pruned
from quintet.errors import UsageError
from quintet.pipelines.base import Pipeline
from quintet.pipelines.loading import is_fixed, load_live, open_pipeline
from quintet.training.engine import Engine
from quintet.training.evaluate import evaluate, make_artifacts
from quintet.training.loader import Loader
from quintet.training.prepare import open_splits
from quintet.training.task import Task


def open_with_live(reference: str) -> tuple[Pipeline[Any], dict[str, nn.Module] | None]:
    """A pipeline, and the modules with the live weights of the same checkpoint; see `load_live`."""

    def read() -> tuple[Pipeline[Any], dict[str, nn.Module] | None]:
        pipeline = open_pipeline(reference)
        return pipeline, load_live(pipeline)

    return again_if_pruned(read, fixed=is_fixed(reference))


@dataclass
class EvalSession:
    """Evaluates the EMA weights of a pipeline and, if `live` is set, also these live weights."""

    pipeline: Pipeline[Any]
    live: dict[str, nn.Module] | None
    task: Task[Any]
    engine: Engine
    loader: Loader
    extra_splits: dict[str, Loader]
    """Loaders of further splits, whose items are used neither for training nor for validation."""

    @classmethod
    def open(
        cls, pipeline: Pipeline[Any], data: str | None = None, live: dict[str, nn.Module] | None = None
    ) -> EvalSession:
        """`data` replaces the data folder of the run; all of its items are then evaluated."""
        if data is not None:
            pipeline = pipeline.with_keys({"data.path": data, "data.validation_path": data})
        elif pipeline.config.data.path is None:
            origin = pipeline.origin
            without = origin is not None and (origin.builtin or origin.pinned)
            reason = "has no training data" if without else "was trained on a data set object in Python"
            raise UsageError(f"{pipeline.reference} {reason}; pass a folder with --data")
        task_class = registry.find(pipeline.recipe).task_class()
        task = task_class(pipeline.config, pipeline.frozen, live or pipeline.modules)
        engine = Engine(task.config.engine, task.config.train.seed)
        for modules in (pipeline.modules, live or {}):
            engine.to_device(modules)
        splits = open_splits(task)

        def loader(dataset: Dataset) -> Loader:
            return Loader(dataset, task.config.train.seed, task.collate, engine, workers=0)

        extra = {split: loader(dataset) for split, dataset in splits.extra_splits.items()}
        validation = loader(splits.validation)
        if data is None:
            validation.check_validation()
        else:
            validation.check_readable(f"items of {data}")
        return cls(pipeline, live, task, engine, validation, extra)

    def metrics(self) -> dict[str, float]:
        """The metrics of `eval.json` over the full validation set; metrics of the live weights start with `live/`."""
        config = self.task.config
        size = config.eval.batch_size or config.train.batch_size // config.train.micro_batches
        metrics = evaluate(
            self.task,
            self.pipeline.modules,
            self.loader,
            self.engine,
            size,
            generated=config.eval.num_generated,
            extra_splits=self.extra_splits,
        )
        if self.live is not None:
            live = evaluate(self.task, self.live, self.loader, self.engine, size)
            metrics.update({f"live/{name}": value for name, value in live.items()})
        return metrics

    def artifacts(self, num: int) -> list[Artifact]:
        """Sample artifacts of the first `num` validation items."""
        batch = self.loader.first(num).batch.to(self.engine.device, self.engine.dtype)
        return make_artifacts(self.task, self.pipeline.modules, batch, self.engine)
