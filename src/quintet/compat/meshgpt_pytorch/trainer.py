"""Trainers with the keywords of meshgpt-pytorch."""

from __future__ import annotations

from typing import Any

from quintet.compat.translation import own_arguments
from quintet.families.mesh_autoencoder.trainer import MeshAutoencoderTrainer as OwnMeshAutoencoderTrainer
from quintet.families.mesh_transformer.trainer import MeshTransformerTrainer as OwnMeshTransformerTrainer


class MeshAutoencoderTrainer(OwnMeshAutoencoderTrainer):
    """quintet's `MeshAutoencoderTrainer` that also accepts the keywords of meshgpt-pytorch."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(**own_arguments("MeshAutoencoderTrainer", positional, keywords))


class MeshTransformerTrainer(OwnMeshTransformerTrainer):
    """quintet's `MeshTransformerTrainer` that also accepts the keywords of meshgpt-pytorch."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(**own_arguments("MeshTransformerTrainer", positional, keywords, self.config_class.FROZEN_KEYS))
