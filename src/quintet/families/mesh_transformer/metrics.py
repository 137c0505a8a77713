"""Metrics of generated meshes: whether each is valid, and how their set compares with a set of real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from quintet.media.mesh import Mesh
from quintet.media.mesh_measures import cloud, compare_sets, is_valid, is_watertight

CLOUDS = ("made", "real")
"""The points of generated meshes and of those that they are compared with."""


def soundness(meshes: Sequence[Mesh], ended: Sequence[bool]) -> dict[str, Tensor]:
    """Sums over meshes as they were generated, nothing mended; one that had to be cut off is not sound."""
    found = {
        "valid": [end and is_valid(mesh) for mesh, end in zip(meshes, ended, strict=True)],
        "watertight": [end and is_watertight(mesh) for mesh, end in zip(meshes, ended, strict=True)],
        "ended": list(ended),
    }
    return {name: torch.tensor(float(sum(values)), dtype=torch.float64) for name, values in found.items()}


def clouds(meshes: Sequence[Mesh]) -> Tensor:
    """Points (meshes, points, 3), the same for the same mesh."""
    return torch.from_numpy(np.stack([cloud(mesh) for mesh in meshes]).astype(np.float32))


def set_figures(rows: Mapping[str, Tensor]) -> dict[str, float]:
    made, real = (rows[name].cpu().numpy() for name in CLOUDS)
    return compare_sets(made, real)._asdict()
