"""`PointEncoder`: point clouds to a few vectors for cross-attention (Perceiver, Jaegle et al. 2021, 2103.03206)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.positions import EMBEDDING_SCALE
from quintet.nn.transformer import Transformer, make_norm

OCTAVES = 7
"""Frequencies of the Fourier features; a half wave of the highest one is a bin of 128."""
CHANNELS = 6
"""Numbers of a point: its coordinates and its normal."""


class PointEncoder(nn.Module):
    """Points with normals (batch, points, 6), in random order, to vectors (batch, latents, out_dim).

    Learned latents attend to all points, and then to each other. The order of the points does not matter, and their
    number may differ from that of training.
    """

    frequencies: Tensor

    def __init__(self, dim: int, out_dim: int, latents: int, depth: int, heads: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, dim) * EMBEDDING_SCALE)
        self.embed = nn.Linear(CHANNELS + 3 * 2 * OCTAVES, dim)
        self.norm = make_norm("layer", dim)
        self.read = Transformer(dim, 1, heads, dim // heads, context_dim=dim)
        self.mix = Transformer(dim, depth, heads, dim // heads)
        self.project = nn.Linear(dim, out_dim)
        self.register_buffer("frequencies", math.pi * 2.0 ** torch.arange(OCTAVES), persistent=False)

    def forward(self, points: Tensor) -> Tensor:
        if points.dim() != 3 or points.shape[2] != CHANNELS:
            raise UsageError(f"points of shape {tuple(points.shape)} are not (batch, points, {CHANNELS})")
        context = self.norm(self.embed(self._features(points)))
        latents = self.read(self.latents.expand(len(points), -1, -1), context=context)
        vectors: Tensor = self.project(self.mix(latents))
        return vectors

    def _features(self, points: Tensor) -> Tensor:
        """Coordinates and normals as they are, and the coordinates at several frequencies."""
        angles = (points[..., :3, None] * self.frequencies).flatten(-2)
        return torch.cat([points, angles.sin(), angles.cos()], dim=-1)
