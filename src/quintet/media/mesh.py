"""Meshes: reading a file as a clean mesh in the unit box, canonical order, quantisation, face adjacency, and writing.

Vertices are float64 (n, 3) in (-1, 1); faces are int64 (m, 3), or (m, 4) for quads, counter-clockwise from outside.
Axes are never rotated, and y is up by convention of glTF. A mesh that cannot be used raises `UnreadableItem` with the
reason. Importing this module imports neither torch nor trimesh.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quintet.common.files import replace_bytes
from quintet.errors import UnreadableItem, UsageError
from quintet.media.budget import check_memory
from quintet.media.files import MediaFile, media_ref
from quintet.media.mesh_formats import Soup, read_soup
from quintet.media.mesh_text import Faces, Vertices

EXTENSIONS = frozenset({".obj", ".ply", ".stl", ".off", ".glb", ".gltf"})
BINS = 128
LIMIT = 0.98
"""Half the longest side of a mesh as read; below 1, so that no vertex is in an outermost bin."""
MAX_FACES_AN_EDGE = 16
"""Most faces of one edge that count as adjacent; a thousand faces on one edge would be a million pairs."""
WRITABLE = (".glb", ".obj", ".ply")

_BLOCK = 2**16
"""Faces that are computed at once where the intermediate results are many times as large."""
# In bins. Halves, quarters and zero lie exactly between two bins, where rounding errors would separate equal vertices
# of different files.
_NUDGE = 1e-6


@dataclass(frozen=True, eq=False, slots=True)
class Mesh:
    """Vertices (n, 3), and triangles (m, 3) or quads (m, 4) of vertex indices."""

    vertices: Vertices
    faces: Faces


@dataclass(frozen=True, slots=True)
class MeshFacts:
    """Properties of a cleaned mesh. Edges with one face are open, edges with more than two are non-manifold."""

    vertices: int
    faces: int
    format: str
    open_edges: int
    non_manifold_edges: int

    @property
    def watertight(self) -> bool:
        return not self.open_edges and not self.non_manifold_edges


# --- reading ----------------------------------------------------------------------------------------------------


def read_mesh(
    path: MediaFile,
    *,
    bins: int = BINS,
    max_faces: int | None = None,
    decimate: bool = False,
    corners: int = 3,
) -> Mesh:
    """The mesh of a file, in the unit box, cleaned at the resolution of the bins, in canonical order.

    A mesh with more than `max_faces` faces is decimated with `decimate`, and an error otherwise. With `corners=4` the
    file must have quads only, which are kept.
    """
    return _mesh_of(read_soup(media_ref(path), corners), bins, max_faces, decimate)


def count_faces(path: MediaFile, *, bins: int = BINS, corners: int = 3) -> int:
    """The number of faces of a file after cleaning, before any decimation."""
    return len(_mesh_of(read_soup(media_ref(path), corners), bins, None, decimate=False).faces)


def probe_mesh(path: MediaFile, *, bins: int = BINS) -> MeshFacts:
    """Properties of a file, after reading it as training does."""
    soup = read_soup(media_ref(path))
    mesh = _mesh_of(soup, bins, None, decimate=False)
    counts = edge_counts(mesh.faces)
    return MeshFacts(
        len(mesh.vertices), len(mesh.faces), soup.format, int((counts == 1).sum()), int((counts > 2).sum())
    )


def _mesh_of(soup: Soup, bins: int, max_faces: int | None, decimate: bool) -> Mesh:
    mesh = clean(normalise(Mesh(soup.vertices, soup.faces), out=soup.vertices), bins)
    if max_faces is not None and len(mesh.faces) > max_faces:
        if mesh.faces.shape[1] != 3:
            raise UnreadableItem(f"{len(mesh.faces)} faces, more than {max_faces} (data.max_faces)")
        if not decimate:
            count = len(mesh.faces)
            raise UnreadableItem(
                f"{count} faces, more than {max_faces} (data.max_faces); data.decimate=true reduces it"
            )
        mesh = _decimated(mesh, bins, max_faces, soup.vertices.nbytes + soup.faces.nbytes)
    if not len(mesh.faces):
        raise UnreadableItem(f"no face of it has an area at {bins} bins a side")
    return canonical(mesh, bins)


def normalise(mesh: Mesh, out: Vertices | None = None) -> Mesh:
    """The mesh with its bounding box centred at 0 and its longest side from -LIMIT to LIMIT; `out` are the vertices to
    overwrite, if any."""
    mask = _used_mask(len(mesh.vertices), mesh.faces)
    used = mesh.vertices if mask.all() else mesh.vertices[mask]
    low, high = used.min(axis=0), used.max(axis=0)
    with np.errstate(over="ignore"):
        extent = float((high - low).max())
    if not np.isfinite(extent):
        raise UnreadableItem("its coordinates are too far apart")
    if extent == 0.0:
        raise UnreadableItem("all of its vertices lie in one point")
    with np.errstate(all="ignore"):  # vertices without a face may overflow
        # In this order, because the sum of two large numbers may overflow.
        centred = np.subtract(mesh.vertices, low + (high - low) / 2, out=out)
        centred /= extent
        centred *= 2 * LIMIT
        return Mesh(centred, mesh.faces)


def _decimated(mesh: Mesh, bins: int, max_faces: int, held: int) -> Mesh:
    import fast_simplification

    _check_merged(len(mesh.vertices), len(mesh.faces), held, decimated=True)
    before, target = len(mesh.faces), max_faces
    # Cleaning removes faces, and the simplifier stops where it would break the shape, so try a few times.
    for _ in range(4):
        count = len(mesh.faces)
        vertices, faces = fast_simplification.simplify(
            mesh.vertices.astype(np.float32), mesh.faces.astype(np.int32), target_count=target, agg=9.0
        )
        mesh = clean(Mesh(vertices.astype(np.float64), faces.astype(np.int64)), bins)
        if len(mesh.faces) <= max_faces:
            return mesh
        if len(mesh.faces) > 0.9 * count:  # the next attempt would take as long and reach as little
            break
        target = int(target * 0.9)
    raise UnreadableItem(f"{before} faces, and no fewer than {len(mesh.faces)} by decimation; {max_faces} are allowed")


# --- shape ------------------------------------------------------------------------------------------------------


def quantise(vertices: Vertices, bins: int = BINS) -> Faces:
    """The bin (0 to bins - 1) of each coordinate in (-1, 1), in the shape of `vertices`."""
    bin_indices = np.floor((np.asarray(vertices, np.float64) + 1.0) * (bins / 2) + _NUDGE)
    return np.clip(bin_indices, 0, bins - 1).astype(np.int64)


def dequantise(bin_indices: Faces, bins: int = BINS) -> Vertices:
    """The coordinates of the centres of bins."""
    return (np.asarray(bin_indices, np.float64) + 0.5) * (2.0 / bins) - 1.0


def clean(mesh: Mesh, bins: int = BINS) -> Mesh:
    """Merge the vertices of each bin at their mean; remove degenerate and duplicate faces, and unused vertices.

    Vertices are not moved to the centres of bins, so that a mesh can be scaled and cleaned again.
    """
    mesh = _used_only(mesh.vertices, mesh.faces)  # unused vertices must not change a mean
    keys, merged = np.unique(_bin_keys(mesh.vertices, bins), return_inverse=True)
    faces = merged.reshape(-1)[mesh.faces]
    faces = faces[_has_area(faces, keys, bins)]
    _check_merged(len(keys), len(faces), mesh.vertices.nbytes * 3 // 2 + mesh.faces.nbytes)
    faces = faces[np.sort(_first_of_each(np.sort(faces, axis=1)))]
    return _used_only(_means(mesh.vertices, merged.reshape(-1), len(keys)), faces)


def _check_merged(vertices: int, faces: int, held: int, *, decimated: bool = False) -> None:
    """Check the memory of sorting, or of decimating, a mesh with merged vertices; measured for each vertex and face."""
    vertex_bytes, face_bytes = (250, 400) if decimated else (60, 130)
    check_memory(vertex_bytes * vertices + face_bytes * faces + held, f"a mesh of {faces} faces at this resolution")


def _bin_keys(vertices: Vertices, bins: int) -> Faces:
    """One number for the bin of each vertex; they sort by z, then y, then x."""
    keys = np.zeros(len(vertices), np.int64)
    for axis in (2, 1, 0):
        keys *= bins
        keys += quantise(vertices[:, axis], bins)
    return keys


def canonical(mesh: Mesh, bins: int | None = BINS) -> Mesh:
    """Sort vertices by z, then y, then x; start each face at its lowest vertex, with the same winding; sort the faces.

    Coordinates are compared in bins, as a model sees them, or with `bins=None` as they are.
    """
    bin_indices = mesh.vertices if bins is None else quantise(mesh.vertices, bins)
    # Ties within a bin, which a clean mesh does not have, are broken by the coordinates.
    order = np.lexsort((*mesh.vertices.T, *bin_indices.T))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    faces = ranks[mesh.faces]
    corners = faces.shape[1]
    turned = (faces.argmin(axis=1)[:, None] + np.arange(corners)) % corners
    faces = np.take_along_axis(faces, turned, axis=1)
    return Mesh(mesh.vertices[order], faces[np.lexsort(faces.T[::-1])])


def _has_area(faces: Faces, keys: Faces, bins: int) -> Any:
    """Mask of faces with an area, exact because it is computed in integer bins. Both triangles of a quad need an area,
    and it must not be folded onto itself."""
    mask = np.empty(len(faces), bool)
    for start in range(0, len(faces), _BLOCK):
        block = keys[faces[start : start + _BLOCK]]
        corners = np.stack([block % bins, block // bins % bins, block // bins**2], axis=-1)
        edges = corners[:, 1:] - corners[:, :1]
        with_area = np.any(np.cross(edges[:, :-1], edges[:, 1:]), axis=2)
        folded = (corners[:, 1] == corners[:, -1]).all(axis=1)
        mask[start : start + _BLOCK] = np.all(with_area, axis=1) & ~folded
    return mask


def _first_of_each(rows: Faces) -> Faces:
    """The index of the first of each set of equal rows."""
    order = np.lexsort(rows.T[::-1])
    is_first = np.ones(len(rows), bool)
    for start in range(1, len(rows), _BLOCK):
        block = rows[order[start - 1 : start + _BLOCK]]
        is_first[start : start + _BLOCK] = (block[1:] != block[:-1]).any(axis=1)
    return order[is_first]


def _means(vertices: Vertices, groups: Faces, count: int) -> Vertices:
    sizes = np.bincount(groups, minlength=count)
    sums = [np.bincount(groups, vertices[:, axis], count) for axis in range(3)]
    return np.stack(sums, axis=1) / sizes[:, None]


def _used_only(vertices: Vertices, faces: Faces) -> Mesh:
    used = _used_mask(len(vertices), faces)
    if used.all():
        return Mesh(vertices, faces)
    ranks = np.cumsum(used, dtype=np.intc)
    ranks -= 1
    return Mesh(vertices[used], ranks[faces].astype(faces.dtype, copy=False))


def _used_mask(count: int, faces: Faces) -> Any:
    """Mask of the vertices that a face has."""
    used = np.zeros(count, bool)
    used[faces] = True
    return used


# --- neighbours -------------------------------------------------------------------------------------------------


def face_adjacency(faces: Faces) -> Faces:
    """Pairs of faces that share an edge, (2, pairs): each pair once, the lower index first, no face with itself."""
    edges, owners = _sorted_edges(faces)
    found = []
    for distance in range(1, MAX_FACES_AN_EDGE):
        same = np.flatnonzero(edges[distance:] == edges[:-distance])
        if not len(same):
            break
        found.append(np.stack([owners[same], owners[same + distance]]))
    if not found:
        return np.empty((2, 0), np.int64)
    pairs = np.sort(np.concatenate(found, axis=1), axis=0)
    # Two faces on the same three vertices share three edges: keep one pair, and no pair of a face with itself.
    span = max(len(faces), 1)
    keys = np.unique((pairs[0] * span + pairs[1])[pairs[0] != pairs[1]])
    return np.stack([keys // span, keys % span])


def edge_counts(faces: Faces) -> Faces:
    """The number of faces of each edge, (edges,)."""
    edges = _edge_keys(faces)
    edges.sort()
    starts = np.flatnonzero(np.concatenate([[True], edges[1:] != edges[:-1], [True]])) if len(edges) else edges
    return np.diff(starts)


def _sorted_edges(faces: Faces) -> tuple[Faces, Faces]:
    """A sorted key for each side of each face, equal for equal edges, and the face of each."""
    keys = _edge_keys(faces)
    order = np.argsort(keys, kind="stable")
    return keys[order], order // faces.shape[1]


def _edge_keys(faces: Faces) -> Faces:
    """A key for each side of each face, in the order of the faces."""
    faces = np.asarray(faces, np.int64)
    keys = np.empty(faces.shape, np.int64)
    span = int(faces.max(initial=0)) + 1
    for corner in range(faces.shape[1]):
        one, other = faces[:, corner], faces[:, (corner + 1) % faces.shape[1]]
        np.minimum(one, other, out=keys[:, corner])
        keys[:, corner] *= span
        keys[:, corner] += np.maximum(one, other)
    return keys.reshape(-1)


# --- writing ----------------------------------------------------------------------------------------------------


def write_mesh(mesh: Mesh, path: str | os.PathLike[str]) -> Path:
    """Write GLB, OBJ or PLY atomically, depending on the path's extension, with vertices shared between faces."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in WRITABLE:
        raise UsageError(f"cannot write {path}: '{path.suffix}' is not among {', '.join(WRITABLE)}")
    content: Any
    if suffix == ".obj":
        content = _obj_text(mesh).encode()
    else:
        import trimesh

        built = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
        options: dict[str, Any] = {"include_normals": False} if suffix == ".glb" else {"vertex_normal": False}
        content = built.export(file_type=suffix[1:], **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(path, content, durable=False)
    return path


def _obj_text(mesh: Mesh) -> str:
    lines = [f"v {x:.9g} {y:.9g} {z:.9g}\n" for x, y, z in mesh.vertices.tolist()]
    lines += [f"f {a + 1} {b + 1} {c + 1}\n" for a, b, c in mesh.faces.tolist()]
    return "".join(lines)
