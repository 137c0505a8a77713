"""The public names of meshgpt-pytorch 1.8.1."""

from __future__ import annotations

from quintet.compat.meshgpt_pytorch.autoencoder import MeshAutoencoder
from quintet.compat.meshgpt_pytorch.data import (
    DatasetFromTransforms,
    cache_face_edges_for_dataset,
    cache_text_embeds_for_dataset,
)
from quintet.compat.meshgpt_pytorch.trainer import MeshAutoencoderTrainer, MeshTransformerTrainer
from quintet.compat.meshgpt_pytorch.transformer import MeshTransformer

__all__ = [
    "DatasetFromTransforms",
    "MeshAutoencoder",
    "MeshAutoencoderTrainer",
    "MeshTransformer",
    "MeshTransformerTrainer",
    "cache_face_edges_for_dataset",
    "cache_text_embeds_for_dataset",
]
