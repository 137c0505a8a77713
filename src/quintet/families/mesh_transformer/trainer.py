"""`MeshTransformerTrainer`: trains a `MeshTransformer` on a tokenizer's codes from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from quintet.data.splits import Splits
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.data import python_splits
from quintet.families.mesh_transformer.model import MeshTransformer
from quintet.families.mesh_transformer.task import MeshTransformerTask
from quintet.pipelines.base import PipelineLike, as_tokenizer
from quintet.training.options import TrainerOptions
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class MeshTransformerTrainer(PythonTrainer):
    """Train a `MeshTransformer` on the codes of a folder of captioned meshes, or of a dataset object.

        tokenizer = MeshAutoencoderPipeline.from_pretrained("runs/tok")
        model = MeshTransformer(num_codes=tokenizer.model.num_codes, tokens_per_face=tokenizer.model.tokens_per_face)
        MeshTransformerTrainer(model, tokenizer=tokenizer, data="meshes/", out="runs/mesh", steps=10_000).train()

    Items of a dataset hold `vertices` and `faces`, or `codes` (faces, tokens_per_face) of this tokenizer; and
    optionally `texts`, or `text_embeds` (words, dim) for a model with `text="vectors"`. Training meshes of triangles
    are stretched and shifted at random, in folders and in datasets, unless `config={"data.augment": False}`.

    Any configuration key can be set through `config={"optim.lr": 1e-4}`.
    """

    config_class = MeshTransformerConfig
    task_class = MeshTransformerTask
    model_class = MeshTransformer
    needs = ("model", "tokenizer")

    def __init__(
        self, model: MeshTransformer, *, tokenizer: PipelineLike | None = None, **options: Unpack[TrainerOptions]
    ) -> None:
        super().__init__(model, tokenizer=tokenizer, **options)

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        config: MeshTransformerConfig = task.config
        tokenizer = as_tokenizer(task.frozen["tokenizer"])
        return python_splits(data, config, tokenizer, validation=validation, declared=declared)
