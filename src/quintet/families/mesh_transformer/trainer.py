"""Owns `MeshTransformerTrainer`: the loop bound to the recipe `mesh-transformer`, for use in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quintet.data.mesh import python_mesh_splits
from quintet.data.splits import Splits
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.data import coded
from quintet.families.mesh_transformer.model import MeshTransformer
from quintet.families.mesh_transformer.task import MeshTransformerTask
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class MeshTransformerTrainer(PythonTrainer):
    """Train a `MeshTransformer` on the codes of a folder of captioned meshes, or of a data set object.

        tokenizer = open_link("runs/tok")
        model = MeshTransformer(num_codes=tokenizer.model.num_codes, tokens_per_face=tokenizer.model.tokens_per_face)
        MeshTransformerTrainer(model, tokenizer=tokenizer, data="meshes/", out="runs/mesh", steps=10_000).train()

    `open_link` is that of `quintet.runs`. Any configuration key goes through `config={"optim.lr": 1e-4}`. The keywords
    of the trainer in meshgpt-pytorch are accepted too; docs/migration.md says what becomes of each.
    """

    config_class = MeshTransformerConfig
    task_class = MeshTransformerTask
    model_class = MeshTransformer
    needs = ("model", "tokenizer")

    @classmethod
    def splits_of(cls, recipe: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        config: MeshTransformerConfig = recipe.config
        tokenizer = recipe.links["tokenizer"]
        corners, bins = tokenizer.model.vertices_per_face, tokenizer.model.bins
        meshes = python_mesh_splits(data, config.data, corners, bins, validation=validation, declared=declared)
        return coded(config, tokenizer, meshes)
