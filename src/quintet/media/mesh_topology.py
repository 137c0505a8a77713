"""Defects of meshes that no single face shows: edges and vertices that are not manifold, faces that cross each other,
and the number of separate parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from quintet.media.mesh import Mesh, edge_counts
from quintet.media.mesh_measures import as_triangles
from quintet.media.mesh_text import Faces, Vertices

_PAIRS = 2**18
"""Pairs of triangles whose boxes, or whose sides, are compared at once."""

Mask = npt.NDArray[np.bool_]


def is_manifold(mesh: Mesh) -> bool:
    """Whether no edge has more than two faces, and the faces at each vertex are connected by edges at that vertex."""
    if not len(mesh.faces) or (edge_counts(mesh.faces) > 2).any():
        return False
    # Each corner of a face is a node; the corners at both ends of a shared edge are joined.
    faces = mesh.faces
    nodes = np.arange(faces.size).reshape(faces.shape)
    sides = np.stack([faces, np.roll(faces, -1, axis=1)], axis=-1).reshape(-1, 2)
    corners = np.stack([nodes, np.roll(nodes, -1, axis=1)], axis=-1).reshape(-1, 2)
    swapped = sides[:, 0] > sides[:, 1]
    sides[swapped], corners[swapped] = sides[swapped, ::-1], corners[swapped, ::-1]
    order = np.lexsort(sides.T)
    same = (sides[order[1:]] == sides[order[:-1]]).all(axis=1)
    joined = np.stack([corners[order[:-1]][same], corners[order[1:]][same]], axis=-1)
    fans = component_labels(faces.size, joined.reshape(-1, 2))
    return len(np.unique(fans)) == len(np.unique(faces))


def count_components(mesh: Mesh) -> int:
    """The number of parts of a mesh that share no vertex."""
    if not len(mesh.faces):
        return 0
    edges = np.concatenate([mesh.faces[:, [0, corner]] for corner in range(1, mesh.faces.shape[1])])
    labels = component_labels(int(mesh.faces.max()) + 1, edges)
    return len(np.unique(labels[mesh.faces[:, 0]]))


def component_labels(count: int, edges: Faces) -> Faces:
    """The lowest node of the connected component of each of `count` nodes, given edges (n, 2)."""
    labels = np.arange(count)
    while True:
        lowest = labels[edges].min(axis=1)
        before = labels.copy()
        for end in (0, 1):
            np.minimum.at(labels, before[edges[:, end]], lowest)
        labels = labels[labels]
        if (labels == before).all():
            return labels


def has_crossing_faces(mesh: Mesh) -> bool:
    """Whether a side of a face passes through the inside of another one.

    Faces that only touch, or that overlap in one plane, do not count: parts that stand on each other are no defect.
    """
    triangles = as_triangles(mesh.faces)
    corners = mesh.vertices[triangles]
    return any(_cross(corners, triangles, pairs).any() for pairs in _near_pairs(corners))


def _near_pairs(corners: Vertices) -> Iterator[Faces]:
    """Pairs (n, 2) of triangles whose bounding boxes overlap, the first one below the second."""
    low, high = corners.min(axis=1), corners.max(axis=1)
    rows = max(1, _PAIRS // max(len(corners), 1))
    for start in range(0, len(corners), rows):
        part = slice(start, start + rows)
        near = np.ones((len(corners[part]), len(corners)), bool)
        for axis in range(3):
            near &= low[part, None, axis] <= high[None, :, axis]
            near &= high[part, None, axis] >= low[None, :, axis]
        first, second = np.nonzero(np.triu(near, start + 1))
        for at in range(0, len(first), _PAIRS):
            yield np.stack([first[at : at + _PAIRS] + start, second[at : at + _PAIRS]], axis=1)


def _cross(corners: Vertices, triangles: Faces, pairs: Faces) -> Mask:
    """Which pairs (n, 2) of triangles have a side of one that passes through the inside of the other."""
    crossing = np.zeros(len(pairs), bool)
    for one, other in ((0, 1), (1, 0)):
        target = corners[pairs[:, other]]
        for side in range(3):
            ends = corners[pairs[:, one]][:, [side, (side + 1) % 3]]
            crossing |= _pierces(ends, target)
    return crossing


def _pierces(ends: Vertices, triangles: Vertices) -> Mask:
    """Which segments (n, 2, 3) pass through the inside of their triangle (n, 3, 3).

    Signs of volumes, which are exact for coordinates on a grid whose spacing is a power of 2. An end on the plane of
    the triangle, such as a shared vertex, has the volume 0 and passes through nothing.
    """
    first, last = ends[:, 0], ends[:, 1]
    a, b, c = triangles[:, 0], triangles[:, 1], triangles[:, 2]
    apart = _side(a, b, c, first) * _side(a, b, c, last) < 0
    turns = np.stack([_side(first, last, a, b), _side(first, last, b, c), _side(first, last, c, a)])
    passes: Mask = apart & (np.abs(turns.sum(axis=0)) == 3)
    return passes


def _side(a: Vertices, b: Vertices, c: Vertices, point: Vertices) -> Vertices:
    """The sign of the volume of each tetrahedron: on which side of a plane through three points a fourth one is."""
    sign: Vertices = np.sign((np.cross(b - a, c - a) * (point - a)).sum(axis=-1))
    return sign
