"""`Scan`: the point cloud that generated meshes follow, from a file, an array or a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.data.mesh_points import CloudSettings, chosen_points
from quintet.errors import UnreadableItem
from quintet.media.mesh import Mesh
from quintet.media.mesh_measures import compare_with_points
from quintet.media.points import (
    MAX_POINTS,
    Placement,
    PointCloud,
    make_cloud,
    normalise_cloud,
    read_points,
    sample_surface,
    spread,
)

MEASURED = 4096
"""Points of a scan to which the distance of a mesh is measured."""


@dataclass(frozen=True)
class Scan:
    """A point cloud in the unit box, and where it was."""

    cloud: PointCloud
    placement: Placement

    def clouds(self, rng: ItemRNG, count: int) -> Tensor:
        """`count` random points for each item, (items, count, 6)."""
        items = (ItemRNG(rng.seed, [epoch], [item]) for epoch, item in zip(rng.epochs, rng.items, strict=True))
        settings = CloudSettings(count)
        return torch.stack([chosen_points(self.cloud.points, self.cloud.normals, item, settings) for item in items])

    def distance(self, mesh: Mesh) -> float:
        """The Chamfer distance of a mesh in the unit box, where the longest side of the scan is 1."""
        rows = spread(len(self.cloud.points), MEASURED)
        return compare_with_points(mesh, self.cloud.points[rows], self.cloud.normals[rows]).chamfer


def read_scan(points: str | Path | Mesh | ArrayLike) -> Scan:
    """The scan of a file of points or of a mesh, of a mesh, or of an array (n, 3), or (n, 6) with normals."""
    if isinstance(points, str | Path):
        cloud = read_points(points)
    elif isinstance(points, Mesh):
        cloud = sample_surface(points, MAX_POINTS)
    else:
        rows = np.asarray(points, np.float64)
        if rows.ndim != 2 or rows.shape[1] not in (3, 6):
            raise UnreadableItem(f"an array of shape {rows.shape} is neither (n, 3) nor (n, 6)")
        rows = rows[spread(len(rows), MAX_POINTS)]
        cloud = make_cloud(rows[:, :3], rows[:, 3:] if rows.shape[1] == 6 else None)
    return Scan(*normalise_cloud(cloud))
