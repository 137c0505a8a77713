"""`EmbeddingTask`: the task of a `PhenakiTrainer` whose items have text embeddings.

quintet's own recipe trains either on texts or on embeddings. A `Phenaki` of this package takes both: a projection
beside the text encoder maps embeddings to the context, and is trained as the module `projection`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch
from quintet.common.statistics import Statistics
from quintet.families.phenaki.task import PhenakiTask
from quintet.nn.text import mask_dropped
from quintet.pipelines.base import Pipeline
from quintet.training.phase import Loss, Modules, Output, Phase

PROJECTION = "projection"


class EmbeddingTask(PhenakiTask):
    """Embeddings of texts become the context of the model by a `projection`."""

    _projection: nn.Module
    """That of the pass that runs: wrapped in training, the average in validation."""

    def make_modules(self, tokenizer: Pipeline[Any] | None, modules: Mapping[str, nn.Module] | None) -> None:
        assert modules is not None
        super().make_modules(tokenizer, modules)
        self.modules[PROJECTION] = self._projection = modules[PROJECTION]

    def make_phases(self) -> list[Phase]:
        generator, *rest = super().make_phases()
        return [replace(generator, modules=(*generator.modules, PROJECTION)), *rest]

    def texts(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        if "vectors" not in batch:
            return super().texts(batch, keep)
        context = self._projection(batch["vectors"])
        return {"context": context, "context_mask": mask_dropped(batch["words"], keep)}

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        self._projection = modules[PROJECTION]
        return super().forward(modules, batch, step)

    def critic_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        if "critic" in modules:  # another phase trains the projection
            detached = {name: value.detach() for name, value in output["conditioning"].items()}
            output = Output({**output.values, "conditioning": detached})
        return super().critic_loss(modules, batch, output, step)

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        self._projection = modules[PROJECTION]
        return super().measure(modules, batch)

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        self._projection = modules[PROJECTION]
        return super().measure_generated(modules, batch, split)

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        self._projection = modules[PROJECTION]
        return super().sample(modules, batch)
