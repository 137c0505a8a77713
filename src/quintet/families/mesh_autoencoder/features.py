"""Owns what the encoder is told of a face: coordinates, angles, area and normal, each cut into bins and embedded.

The angles are the face's own and do not change when the mesh is moved. The area is cut on a logarithmic scale, because
most faces are small. All of it is for faces of any number of corners, with the triangle as the case of three.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from quintet.families.mesh_autoencoder.config import MeshAutoencoderModelConfig

SMALLEST_AREA = 2.0**-18
"""Under half of the smallest face on a grid of 256 bins."""
LARGEST_AREA = 4.0
"""A square that fills the box from -1 to 1."""


class FaceFeatures(nn.Module):
    """Corners `(faces, vertices of a face, 3)` to one vector a face."""

    def __init__(self, config: MeshAutoencoderModelConfig, dim: int) -> None:
        super().__init__()
        self.bins = config.bins
        self.coordinates = nn.Embedding(config.bins, config.coordinate_dim)
        self.angles = nn.Embedding(config.bins, config.angle_dim)
        self.area = nn.Embedding(config.bins, config.area_dim)
        self.normal = nn.Embedding(config.bins, config.normal_dim)
        corners = config.vertices_per_face
        total = corners * (3 * config.coordinate_dim + config.angle_dim) + config.area_dim + 3 * config.normal_dim
        self.project = nn.Linear(total, dim)
        with torch.no_grad():
            for table in (self.coordinates, self.angles, self.area, self.normal):
                table.weight.copy_(waves(config.bins, table.embedding_dim))

    def forward(self, corners: Tensor) -> Tensor:
        with torch.no_grad():
            crossed = crossed_diagonals(corners)
            places = (
                (self.coordinates, coordinate_bins(corners.flatten(1), self.bins)),
                (self.angles, binned(corner_angles(corners), 0, math.pi, self.bins)),
                (self.area, binned(log_area(crossed), 0, 1, self.bins)),
                (self.normal, binned(nn.functional.normalize(crossed, dim=-1), -1, 1, self.bins)),
            )
        embedded = [table(bins).flatten(1) for table, bins in places]
        out: Tensor = self.project(torch.cat(embedded, dim=-1))
        return out


def waves(bins: int, count: int) -> Tensor:
    """Smooth functions of a bin's number, `(bins, count)`: cosines of no less than eight bins a wave, of power one.

    What begins as these knows which bins lie beside each other, and need not learn it from the data.
    """
    places = (torch.arange(bins) + 0.5) / bins
    half_waves = torch.arange(1, count + 1) * min(1.0, bins / (4 * count))
    return math.sqrt(2) * torch.cos(math.pi * places[:, None] * half_waves)


def binned(values: Tensor, low: float, high: float, bins: int) -> Tensor:
    """The number of the bin of each value; what is outside goes to the nearest, what is no number to the first."""
    shares = (values - low) / (high - low) * bins
    return shares.nan_to_num(0).clamp(0, bins - 1).long()


def coordinate_bins(coordinates: Tensor, bins: int) -> Tensor:
    """As `media.mesh.quantise` cuts them: a number a hair below the edge of a bin is meant to be on it."""
    return binned(coordinates.double() + 2e-6 / bins, -1, 1, bins)


def bin_centres(places: Tensor, bins: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The coordinates in the middle of bins."""
    return (places.to(dtype) + 0.5) * (2 / bins) - 1


def corner_angles(corners: Tensor) -> Tensor:
    """The angle at each corner, `(faces, vertices of a face)`, 0 to pi; 0 where two corners are one."""
    forth = corners.roll(-1, 1) - corners
    back = corners.roll(1, 1) - corners
    # Unlike the arc cosine of a quotient this is exact near 0 and pi, and divides by nothing.
    return torch.atan2(torch.linalg.cross(forth, back).norm(dim=-1), (forth * back).sum(-1))


def crossed_diagonals(corners: Tensor) -> Tensor:
    """A vector along the normal, twice as long as the area: of two sides of a triangle, or a quad's diagonals."""
    first, second = ((0, 1), (0, 2)) if corners.shape[1] == 3 else ((0, 2), (1, 3))
    one, other = (corners[:, end] - corners[:, start] for start, end in (first, second))
    crossed: Tensor = torch.linalg.cross(one, other)
    return crossed


def log_area(crossed: Tensor) -> Tensor:
    """The area `(faces, 1)` on a logarithmic scale from 0, the smallest worth telling apart, to 1, the largest."""
    area: Tensor = torch.linalg.vector_norm(crossed, dim=-1, keepdim=True) / 2
    return (area.clamp(min=SMALLEST_AREA) / SMALLEST_AREA).log() / math.log(LARGEST_AREA / SMALLEST_AREA)
