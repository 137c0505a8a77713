"""Owns what is found in generated meshes: whether they are sound, and what the judge of the embedded data says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from quintet.media.mesh import Mesh
from quintet.media.mesh_measures import cloud, compare_sets, is_valid, is_watertight
from quintet.synthetic.solids_judge import judge, match

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


def judged(
    meshes: Sequence[Mesh], kinds: Sequence[str], promised: Sequence[Mapping[str, str]], suffix: str = ""
) -> dict[str, Tensor]:
    """How many meshes are of the class of their caption, how many proportions are as it says, and how many it names."""
    rights, asked = 0, 0
    of_class = 0
    for mesh, kind, proportions in zip(meshes, kinds, promised, strict=True):
        found = match(kind, proportions, judge(mesh))
        of_class += found.pop("class")
        rights, asked = rights + sum(found.values()), asked + len(found)
    counts = {f"match_class{suffix}": of_class, f"match_proportions{suffix}": rights, f"proportions{suffix}": asked}
    return {name: torch.tensor(float(value), dtype=torch.float64) for name, value in counts.items()}


def clouds(meshes: Sequence[Mesh]) -> Tensor:
    """Points (meshes, points, 3), the same for the same mesh."""
    return torch.from_numpy(np.stack([cloud(mesh) for mesh in meshes]).astype(np.float32))


def set_figures(rows: Mapping[str, Tensor]) -> dict[str, float]:
    made, real = (rows[name].cpu().numpy() for name in CLOUDS)
    return compare_sets(made, real)._asdict()
