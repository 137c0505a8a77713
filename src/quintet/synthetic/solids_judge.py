"""The judge of the dataset `solids`: geometry without learned weights that recognises the class of a mesh.

The bounding box of a mesh gives its proportions. Scaled to a cube, the mesh is rendered as depth maps from six sides,
and the class is that of the nearest example, among examples made by the builders of the dataset. Depth maps are robust
to vertices that are off by one coordinate bin, to a missing face and to the triangulation. `match` compares a finding
with the attributes of a caption.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quintet.media.mesh import Mesh
from quintet.synthetic.judges import Judge, Row, Scores
from quintet.synthetic.solids import CLASSES, draw_solid

FloatArray = npt.NDArray[np.float64]

GRID = 24  # pixels along a side of a depth map; the thinnest leg of the dataset is wider than one
EXAMPLES = 32  # number of examples per class
EXAMPLE_SEED = 2**40  # far from the seeds of datasets
MAX_DISTANCE = 0.14  # from the nearest example; beyond it, the mesh is of no class
MIN_EXTENT = 1e-3  # of the longest side, below which a box is flat


@dataclass(frozen=True)
class Finding:
    """The recognised class, None if no class is near; `height` and `breadth` as in `SolidClass`; `distance` is the mean
    difference of depth maps to the nearest example, 0 to 1."""

    kind: str | None
    height: float
    breadth: float
    distance: float

    def proportions(self, kind: str | None = None) -> dict[str, str]:
        """The words for its proportions, for the class `kind` or for its own class."""
        kind = kind or self.kind
        if kind is None:
            return {}
        return {name: measure.word(getattr(self, name)) for name, measure in CLASSES[kind].measures.items()}


def judge(mesh: Mesh) -> Finding:
    """Recognise the class of a mesh by its form, independent of scale and of the order of vertices and faces."""
    corners = np.asarray(mesh.vertices, np.float64)[mesh.faces].reshape(-1, 3, 3)
    if not len(corners) or not np.isfinite(corners).all():
        return Finding(None, 0.0, 0.0, 1.0)
    low, high = corners.min(axis=(0, 1)), corners.max(axis=(0, 1))
    extent = np.maximum(high - low, MIN_EXTENT * max(float((high - low).max()), 1e-12))
    kinds, examples = _examples()
    distances = np.abs(examples - _depths((corners - low) / extent)).mean(axis=1)
    nearest = int(np.argmin(distances))
    width, height, depth = extent.tolist()
    return Finding(
        kind=kinds[nearest] if distances[nearest] <= MAX_DISTANCE else None,
        height=height / math.sqrt(width * depth),
        breadth=width / depth,
        distance=float(distances[nearest]),
    )


def match(kind: str, proportions: Mapping[str, str], finding: Finding) -> dict[str, bool]:
    """Whether the class was recognised (`class`), and each proportion by its name.

    Proportions are judged for the class of the caption: a tall table recognised as a stool is still tall.
    """
    found = finding.proportions(kind)
    return {"class": finding.kind == kind} | {name: found.get(name) == word for name, word in proportions.items()}


@functools.cache
def _examples() -> tuple[tuple[str, ...], FloatArray]:
    """The classes (examples,) and depth maps (examples, pixels) of the examples."""
    kinds, depths = [], []
    for number, kind in enumerate(CLASSES):
        for example in range(EXAMPLES):
            mesh = draw_solid(np.random.default_rng([EXAMPLE_SEED, number, example]), kind).mesh
            low, high = mesh.vertices.min(axis=0), mesh.vertices.max(axis=0)
            kinds.append(kind)
            depths.append(_depths(((mesh.vertices - low) / (high - low))[mesh.faces]))
    return tuple(kinds), np.stack(depths)


def _depths(corners: FloatArray) -> FloatArray:
    """Depth maps of the unit cube from its six sides, concatenated; 1 where nothing is hit."""
    views = []
    for axis in range(3):
        nearest, farthest = _reach(corners[..., [axis - 2, axis - 1, axis]])
        views += [nearest, 1.0 - farthest]
    return np.concatenate(views)


def _reach(corners: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The minimum and maximum third coordinate at each pixel of the first two; 1 and 0 where nothing is hit."""
    centres = (np.arange(GRID) + 0.5) / GRID
    x, y = (grid.ravel() for grid in np.meshgrid(centres, centres))
    a, b, c = (corners[:, corner, :, None] for corner in range(3))
    doubled = (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (c[:, 0] - a[:, 0])
    facing = np.abs(doubled[:, 0]) > 1e-12  # the others are parallel to the view
    a, b, c, doubled = a[facing], b[facing], c[facing], doubled[facing]
    weight_b = ((x - a[:, 0]) * (c[:, 1] - a[:, 1]) - (y - a[:, 1]) * (c[:, 0] - a[:, 0])) / doubled
    weight_c = ((b[:, 0] - a[:, 0]) * (y - a[:, 1]) - (b[:, 1] - a[:, 1]) * (x - a[:, 0])) / doubled
    weight_a = 1.0 - weight_b - weight_c
    inside = np.minimum(np.minimum(weight_a, weight_b), weight_c) >= -1e-9
    depth = np.clip(weight_a * a[:, 2] + weight_b * b[:, 2] + weight_c * c[:, 2], 0.0, 1.0)
    nearest = np.where(inside, depth, 1.0).min(axis=0, initial=1.0)
    farthest = np.where(inside, depth, 0.0).max(axis=0, initial=0.0)
    return nearest, farthest


class SolidsJudge(Judge[Mesh]):
    """Judge of meshes: whether each has the class of its caption and the proportions that it mentions."""

    splits = ("validation",)

    def knows(self, row: Row) -> bool:
        kind, proportions = row.get("class"), row.get("proportions")
        return isinstance(kind, str) and kind in CLASSES and isinstance(proportions, dict)

    def score(self, media: Mesh, row: Row) -> Scores:
        found = match(row["class"], row["proportions"], judge(media))
        proportions = [float(found.get(name, math.nan)) for name in ("height", "breadth")]
        return {"match_class": float(found["class"]), "match_proportions": proportions}
