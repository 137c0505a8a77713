"""The models of meshgpt-pytorch under the path of their original module."""

from __future__ import annotations

from quintet.compat.meshgpt_pytorch.autoencoder import MeshAutoencoder
from quintet.compat.meshgpt_pytorch.transformer import MeshTransformer

__all__ = ["MeshAutoencoder", "MeshTransformer"]
