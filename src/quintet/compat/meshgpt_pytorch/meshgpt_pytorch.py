"""The names of the module `meshgpt_pytorch` of meshgpt-pytorch."""

from __future__ import annotations

from quintet.compat.meshgpt_pytorch import MeshAutoencoder, MeshTransformer

__all__ = ["MeshAutoencoder", "MeshTransformer"]
