"""The trainers of meshgpt-pytorch, by their own keywords."""

from __future__ import annotations

from typing import Any

from quintet.compat.translation import own_arguments
from quintet.families.mesh_autoencoder.trainer import MeshAutoencoderTrainer as OwnMeshAutoencoderTrainer
from quintet.families.mesh_transformer.trainer import MeshTransformerTrainer as OwnMeshTransformerTrainer


class MeshAutoencoderTrainer(OwnMeshAutoencoderTrainer):
    """quintet's `MeshAutoencoderTrainer`, called as that of meshgpt-pytorch or with quintet's own names."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(**own_arguments("MeshAutoencoderTrainer", positional, keywords))


class MeshTransformerTrainer(OwnMeshTransformerTrainer):
    """quintet's `MeshTransformerTrainer`, called as that of meshgpt-pytorch or with quintet's own names."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(**own_arguments("MeshTransformerTrainer", positional, keywords, self.config_class.FROZEN_KEYS))
