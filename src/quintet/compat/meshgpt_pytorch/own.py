"""quintet's own trainers of meshes, on the meshes of a user's data set as they are.

They have the names of quintet's trainers, which messages show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quintet.compat.meshgpt_pytorch.given import GivenCaptionedMeshes, GivenMeshes
from quintet.data.mesh import python_mesh_splits
from quintet.data.splits import Splits
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.trainer import MeshAutoencoderTrainer as OwnMeshAutoencoderTrainer
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.data import python_splits
from quintet.families.mesh_transformer.trainer import MeshTransformerTrainer as OwnMeshTransformerTrainer
from quintet.pipelines.base import as_tokenizer
from quintet.training.task import Task


class MeshAutoencoderTrainer(OwnMeshAutoencoderTrainer):
    """quintet's trainer on the meshes of a Python data set as they are."""

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        config: MeshAutoencoderConfig = task.config
        model = config.model
        return python_mesh_splits(
            data,
            config.data,
            model.vertices_per_face,
            model.bins,
            validation=validation,
            declared=declared,
            kind=GivenMeshes,
        )


class MeshTransformerTrainer(OwnMeshTransformerTrainer):
    """quintet's trainer on the meshes of a Python data set as they are, read and encoded at every step."""

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        own: MeshTransformerConfig = task.config
        config = own.changed({"data.max_faces": own.model.max_faces})
        tokenizer = as_tokenizer(task.frozen["tokenizer"])
        return python_splits(
            data,
            config,
            tokenizer,
            validation=validation,
            declared=declared,
            kind=GivenCaptionedMeshes,
            cache=False,
        )
