"""`FaceFeatures`: quantized and embedded coordinates, angles, area and normal of a face, the input of the encoder.

The angles are those between the edges of a face and do not change when the mesh is moved. The area is quantized on a
logarithmic scale, because most faces are small. Works for triangles and quads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from quintet.common.precision import as_float64
from quintet.families.mesh_autoencoder.config import MeshAutoencoderModelConfig
from quintet.nn.positions import waves

SMALLEST_AREA = 2.0**-18
"""Less than half of the smallest face on a grid of 256 bins."""
LARGEST_AREA = 4.0
"""The area of a square across the box from -1 to 1."""
NUDGE = 1e-3
"""In bins: a measure that is less than this below the edge of a bin counts as on it.

Angles of 45 degrees, and the normals of tilted planes, lie on edges. This is more than the rounding of fp32 coordinates
changes them, and much more than the order of a batch changes the last bits of a vectorised function in fp64.
"""


class FaceFeatures(nn.Module):
    """Corners (faces, vertices_per_face, 3) to one vector per face (faces, dim)."""

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

    def forward(self, corners: Tensor, features: FeatureBins | None = None) -> Tensor:
        """Vectors (faces, dim) of faces with these corners; `features` are those of `feature_bins`, if known."""
        tables = (self.coordinates, self.angles, self.area, self.normal)
        features = feature_bins(corners, self.bins) if features is None else features
        embedded = [table(bins).flatten(1) for table, bins in zip(tables, features, strict=True)]
        out: Tensor = self.project(torch.cat(embedded, dim=-1))
        return out


class FeatureBins(NamedTuple):
    """The bins of the features of faces, (faces, …)."""

    coordinate: Tensor
    angle: Tensor
    area: Tensor
    normal: Tensor


@torch.no_grad()
def feature_bins(corners: Tensor, bins: int) -> FeatureBins:
    """The bins of coordinates, angles, area and normal of each face, the same in every batch."""
    exact = as_float64(corners)
    crossed = crossed_diagonals(exact)
    coordinates = coordinate_bins(exact.flatten(1), bins)
    angles = binned(corner_angles(exact), 0, math.pi, bins, NUDGE)
    area = binned(log_area(crossed), 0, 1, bins, NUDGE)
    normal = binned(nn.functional.normalize(crossed, dim=-1), -1, 1, bins, NUDGE)
    device = corners.device
    return FeatureBins(coordinates.to(device), angles.to(device), area.to(device), normal.to(device))


def binned(values: Tensor, low: float, high: float, bins: int, nudge: float = 0.0) -> Tensor:
    """The bin index of each value; values outside go to the nearest bin, NaN to the first.

    A value that is less than `nudge` bins below the edge of a bin counts as on it.
    """
    positions = (values - low) / (high - low) * bins + nudge
    return positions.nan_to_num(0).clamp(0, bins - 1).long()


def coordinate_bins(coordinates: Tensor, bins: int) -> Tensor:
    """Bin indices as those of `media.mesh.quantise`: a value just below the edge of a bin counts as on it."""
    return binned(as_float64(coordinates) + 2e-6 / bins, -1, 1, bins).to(coordinates.device)


def bin_centres(indices: Tensor, bins: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The coordinates of the centres of bins."""
    return (indices.to(dtype) + 0.5) * (2 / bins) - 1


def corner_angles(corners: Tensor) -> Tensor:
    """The angle at each corner, (faces, vertices_per_face), from 0 to pi; 0 where two corners coincide."""
    forth = corners.roll(-1, 1) - corners
    back = corners.roll(1, 1) - corners
    # Unlike the arc cosine of a quotient this is exact near 0 and pi, and does not divide by zero.
    return torch.atan2(torch.linalg.cross(forth, back).norm(dim=-1), (forth * back).sum(-1))


def crossed_diagonals(corners: Tensor) -> Tensor:
    """Cross product (faces, 3) of two edges of a triangle, or of the diagonals of a quad: twice the area long."""
    first, second = ((0, 1), (0, 2)) if corners.shape[1] == 3 else ((0, 2), (1, 3))
    one, other = (corners[:, end] - corners[:, start] for start, end in (first, second))
    crossed: Tensor = torch.linalg.cross(one, other)
    return crossed


def log_area(crossed: Tensor) -> Tensor:
    """The area (faces, 1) on a logarithmic scale from 0, `SMALLEST_AREA`, to 1, `LARGEST_AREA`."""
    area: Tensor = torch.linalg.vector_norm(crossed, dim=-1, keepdim=True) / 2
    return (area.clamp(min=SMALLEST_AREA) / SMALLEST_AREA).log() / math.log(LARGEST_AREA / SMALLEST_AREA)
