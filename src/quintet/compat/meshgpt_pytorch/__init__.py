"""The public names of meshgpt-pytorch 1.8.1."""

from __future__ import annotations

from quintet.compat.meshgpt_pytorch.trainer import MeshAutoencoderTrainer, MeshTransformerTrainer

__all__ = ["MeshAutoencoderTrainer", "MeshTransformerTrainer"]
