"""`MeshAutoencoderTrainer`: trains a `MeshAutoencoder` from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from quintet.data.mesh import python_mesh_splits
from quintet.data.splits import Splits
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.model import MeshAutoencoder
from quintet.families.mesh_autoencoder.task import MeshAutoencoderTask
from quintet.training.options import TrainerOptions
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class MeshAutoencoderTrainer(PythonTrainer):
    """Train a `MeshAutoencoder` on a folder or a dataset object.

        MeshAutoencoderTrainer(MeshAutoencoder(bins=128), data="meshes/", out="runs/tok", steps=10_000).train()

    Items of a dataset hold `vertices` and `faces`. Training meshes of triangles are stretched and shifted at random,
    in folders and in datasets, unless `config={"data.augment": False}`.

    Any configuration key can be set through `config={"optim.lr": 1e-4}`.
    """

    config_class = MeshAutoencoderConfig
    task_class = MeshAutoencoderTask
    model_class = MeshAutoencoder

    def __init__(self, model: MeshAutoencoder, **options: Unpack[TrainerOptions]) -> None:
        super().__init__(model, **options)

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        config: MeshAutoencoderConfig = task.config
        corners, bins = config.model.vertices_per_face, config.model.bins
        return python_mesh_splits(data, config.data, corners, bins, validation=validation, declared=declared)
