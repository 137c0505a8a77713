"""Metrics of meshes: validity, watertightness, the distance between two surfaces, and the comparison of two sets.

Distances between two meshes go from points on one surface to the other surface itself, not to points on it, so equal
surfaces have the distance 0 and few points are enough. Sets have too many pairs for that: their distances go from
points to points.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.media.mesh import Mesh, dequantise, edge_counts, quantise
from quintet.media.mesh_text import Faces, Vertices

FloatArray = npt.NDArray[np.floating]

POINTS = 1024
"""Sampled points on each surface."""
CLOUD = 256
"""Sampled points on each mesh of a set, where all pairs are compared."""
_PAIRS_AT_ONCE = 2**19
_DISTANCES_AT_ONCE = 2**21


class SurfaceMetrics(NamedTuple):
    """`chamfer`: mean of the mean distances in both directions (Chamfer-L1 in arXiv 1812.03828), where the longest side
    of the first mesh is 1. `normals`: mean absolute cosine between the normals at a point and at the nearest point of
    the other surface."""

    chamfer: float
    normals: float


def compare(original: Mesh, other: Mesh, points: int = POINTS, seed: int = 0) -> SurfaceMetrics:
    """Compare a mesh with the original. The same seed samples the same points."""
    box = np.ptp(original.vertices[np.unique(original.faces)], axis=0)
    scale = 1 / max(float(box.max()), 1e-12)
    ours, theirs = (corners_of(mesh) * scale for mesh in (original, other))
    directions = [_one_way(ours, theirs, points, seed), _one_way(theirs, ours, points, seed)]
    return SurfaceMetrics(*np.mean(directions, axis=0).tolist())


def _one_way(source: Vertices, target: Vertices, points: int, seed: int) -> tuple[float, float]:
    positions, owners = surface_points(source, points, seed)
    distances, nearest = distances_to(positions, target)
    cosines = np.abs((face_normals(source)[owners] * face_normals(target)[nearest]).sum(-1))
    return float(distances.mean()), float(cosines.mean())


def compare_with_points(mesh: Mesh, points: Vertices, normals: Vertices, seed: int = 0) -> SurfaceMetrics:
    """Compare a mesh with points (n, 3) and their normals (n, 3) of a cloud whose longest side counts as 1.

    From the cloud to the surface the distance is exact. From the surface, to the nearest point, it is half the spacing
    of the points at best. Points with the normal 0 have no say in `normals`.
    """
    scale = 1 / max(float(np.ptp(points, axis=0).max()), 1e-12)
    surface, cloud = corners_of(mesh) * scale, points * scale
    to_surface, nearest = distances_to(cloud, surface)
    positions, owners = surface_points(surface, POINTS, seed)
    to_cloud, closest = _nearest_points(positions, cloud)
    of_faces = face_normals(surface)
    pairs = [(normals, of_faces[nearest]), (of_faces[owners], normals[closest])]
    cosines = [np.abs((ours * theirs).sum(-1)) for ours, theirs in pairs]
    known = [normals.any(axis=1), normals[closest].any(axis=1)]
    means = [float(each[mask].mean()) for each, mask in zip(cosines, known, strict=True) if mask.any()]
    chamfer = (to_surface.mean() + to_cloud.mean()) / 2
    return SurfaceMetrics(float(chamfer), float(np.mean(means)) if means else float("nan"))


def _nearest_points(points: Vertices, cloud: Vertices) -> tuple[Vertices, Faces]:
    """The distance of each point from the nearest one of a cloud, and the index of that one."""
    size = max(1, _PAIRS_AT_ONCE // len(cloud))
    blocks = [points[start : start + size] for start in range(0, len(points), size)]
    squares = (cloud**2).sum(-1)
    # Without the square of the point itself, which is the same for the whole cloud.
    nearest = np.concatenate([(squares - 2 * block @ cloud.T).argmin(axis=1) for block in blocks])
    return np.linalg.norm(points - cloud[nearest], axis=-1), nearest


def surface_points(triangles: Vertices, count: int, seed: int) -> tuple[Vertices, Faces]:
    """Points `(count, 3)` on `(triangles, 3, 3)`, uniform by area, and the triangle of each point."""
    generator = np.random.Generator(np.random.PCG64(seed))
    areas = np.linalg.norm(_cross_products(triangles), axis=-1)
    masses = areas if areas.sum() > 0 else np.ones(len(triangles))
    # Stratified: one point in each of `count` equal parts of the area.
    parts = (np.arange(count) + generator.random(count)) / count
    owners = np.minimum(np.searchsorted(np.cumsum(masses) / masses.sum(), parts, side="right"), len(triangles) - 1)
    along, across = generator.random((2, count))
    root = np.sqrt(along)
    weights = np.stack([1 - root, root * (1 - across), root * across], axis=-1)
    return np.einsum("pc,pcx->px", weights, triangles[owners]), owners


def distances_to(points: Vertices, triangles: Vertices) -> tuple[Vertices, Faces]:
    """The distance of each point from the nearest triangle, and the index of that triangle."""
    size = max(1, _PAIRS_AT_ONCE // len(triangles))
    squares = [_squared_distances(points[start : start + size], triangles) for start in range(0, len(points), size)]
    nearest = np.concatenate([part.argmin(axis=1) for part in squares])
    return np.sqrt(np.concatenate([part.min(axis=1) for part in squares])), nearest


def _squared_distances(points: Vertices, triangles: Vertices) -> Vertices:
    """`(points, triangles)`: to the plane if the projection is inside the triangle, else to the nearest side."""
    first, one, two = triangles[:, 0], triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    one_one, one_two, two_two = (one * one).sum(-1), (one * two).sum(-1), (two * two).sum(-1)
    along_one = points @ one.T - (first * one).sum(-1)
    along_two = points @ two.T - (first * two).sum(-1)
    to_first = (points**2).sum(-1)[:, None] - 2 * points @ first.T + (first**2).sum(-1)

    best = np.minimum(_to_side(to_first, along_one, one_one), _to_side(to_first, along_two, two_two))
    to_second = to_first - 2 * along_one + one_one
    opposite = _to_side(to_second, along_two - along_one - one_two + one_one, one_one - 2 * one_two + two_two)
    best = np.minimum(best, opposite)

    size = one_one * two_two - one_two**2
    flat = size <= 1e-18
    scale = 1 / np.where(flat, 1, size)
    weight_one = (two_two * along_one - one_two * along_two) * scale
    weight_two = (one_one * along_two - one_two * along_one) * scale
    inside = (weight_one >= 0) & (weight_two >= 0) & (weight_one + weight_two <= 1) & ~flat
    to_plane = to_first - weight_one * along_one - weight_two * along_two
    return np.maximum(np.where(inside, to_plane, best), 0)


def _to_side(to_start: Vertices, along: Vertices, length: Vertices) -> Vertices:
    fraction = np.clip(along / np.maximum(length, 1e-18), 0, 1)
    return to_start - 2 * fraction * along + fraction**2 * length


# --- validity ----------------------------------------------------------------------------------


def merge_vertices(corners: Vertices, bins: int) -> Mesh:
    """Mesh of faces with separate corners `(faces, corners, 3)`: corners of one bin become one vertex at its centre.
    Invalid faces are kept."""
    cells, faces = np.unique(quantise(corners, bins).reshape(-1, 3), axis=0, return_inverse=True)
    return Mesh(dequantise(cells, bins), faces.reshape(corners.shape[:2]).astype(np.int64))


def is_valid(mesh: Mesh) -> bool:
    """Whether every face has distinct vertices and an area, and no face is a duplicate."""
    if not len(mesh.faces):
        return False
    ordered = np.sort(mesh.faces, axis=1)
    distinct = (ordered[:, 1:] != ordered[:, :-1]).all()
    once = len(np.unique(ordered, axis=0)) == len(ordered)
    return bool(distinct and once and (np.linalg.norm(_cross_products(corners_of(mesh)), axis=-1) > 1e-9).all())


def is_watertight(mesh: Mesh) -> bool:
    """Whether every edge has exactly two faces."""
    return len(mesh.faces) > 0 and bool((edge_counts(mesh.faces) == 2).all())


def as_triangles(faces: Faces) -> Faces:
    """Faces (m, corners) as triangle fans (triangles, 3)."""
    fans = [faces[:, [0, corner, corner + 1]] for corner in range(1, faces.shape[1] - 1)]
    return np.stack(fans, axis=1).reshape(-1, 3)


def corners_of(mesh: Mesh) -> Vertices:
    """The triangles as coordinates, `(triangles, 3, 3)`."""
    corners: Vertices = mesh.vertices[as_triangles(mesh.faces)]
    return corners


def _cross_products(triangles: Vertices) -> Vertices:
    return np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])


def face_normals(triangles: Vertices) -> Vertices:
    """The unit normals `(triangles, 3)` of `(triangles, 3, 3)`; 0 for those without an area."""
    products = _cross_products(triangles)
    normals: Vertices = products / np.maximum(np.linalg.norm(products, axis=-1, keepdims=True), 1e-12)
    return normals


# --- sets of meshes ----------------------------------------------------------------------------


class SetMetrics(NamedTuple):
    """Comparison of a set of generated meshes with real ones, by Chamfer distance (arXiv 1707.02392, 1906.12320).

    `coverage`: fraction of real meshes that are the nearest neighbour of a generated one. `mmd` (minimum matching
    distance): mean distance of the real meshes from their nearest generated one. `one_nna` (1-nearest-neighbour
    accuracy): fraction of all meshes whose nearest neighbour is of their own set; 0.5 if the sets cannot be
    distinguished, 1 if they are separate, 0 if one is a copy of the other.
    """

    coverage: float
    mmd: float
    one_nna: float


def compare_sets(generated: FloatArray, real: FloatArray) -> SetMetrics:
    """Compare two sets of point clouds (meshes, points, 3)."""
    count = len(generated)
    distances = chamfer_distances(np.concatenate([generated, real]))
    across = distances[:count, count:]
    # A mesh is not its own neighbour.
    nearest = np.where(np.eye(len(distances), dtype=bool), np.inf, distances)
    own = np.concatenate([nearest[:count, :count].min(axis=1), nearest[count:, count:].min(axis=1)])
    other = np.concatenate([across.min(axis=1), across.min(axis=0)])
    return SetMetrics(
        coverage=len(np.unique(across.argmin(axis=1))) / len(real),
        mmd=float(across.min(axis=0).mean()),
        one_nna=float((own < other).mean()),
    )


def point_cloud(mesh: Mesh, points: int = CLOUD, seed: int = 0) -> Vertices:
    """Points (points, 3) on a mesh whose bounding box is centred and has a longest side of 1."""
    corners = corners_of(mesh)
    low, high = corners.min(axis=(0, 1)), corners.max(axis=(0, 1))
    size = max(float((high - low).max()), 1e-12)
    return surface_points((corners - (low + high) / 2) / size, points, seed)[0]


def chamfer_distances(clouds: FloatArray) -> FloatArray:
    """Pairwise Chamfer distances (clouds, clouds): the sum of the mean squared nearest-neighbour distances in both
    directions."""
    distances = np.zeros((len(clouds), len(clouds)))
    size = max(1, _DISTANCES_AT_ONCE // clouds.shape[1] ** 2)
    for row, points in enumerate(clouds):
        for start in range(row + 1, len(clouds), size):
            part = clouds[start : start + size]
            distances[row, start : start + size] = _squared_chamfer(points, part)
    return distances + distances.T


def _squared_chamfer(points: FloatArray, others: FloatArray) -> FloatArray:
    flat = others.reshape(-1, 3)
    squares = (flat**2).sum(-1)[:, None] - 2 * flat @ points.T + (points**2).sum(-1)
    squares = np.maximum(squares, 0).reshape(len(others), -1, len(points))
    return np.asarray(squares.min(axis=1).mean(axis=1) + squares.min(axis=2).mean(axis=1))
