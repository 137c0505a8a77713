"""Point clouds: reading a file as points with normals, or sampling the surface of a mesh, and the unit box.

Points are float64 (n, 3), and normals are unit vectors (n, 3), or 0 where they are unknown. A file is a PLY without
faces, a text of one point a line (`.xyz`, `.pts`, `.csv` and others, by content), or any mesh file, whose surface is
sampled. A large cloud is thinned out while it is read. A cloud that cannot be used raises `UnreadableItem` with the
reason. Importing this module imports neither torch nor trimesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from quintet.errors import UnreadableItem
from quintet.media.budget import check_memory
from quintet.media.files import MediaFile, check_file, decoding, media_ref, open_file
from quintet.media.mesh import LIMIT, Mesh
from quintet.media.mesh_formats import MAX_BYTES, damage, read_soup
from quintet.media.mesh_measures import corners_of, face_normals, surface_points
from quintet.media.mesh_ply import Element, read_header
from quintet.media.mesh_text import Vertices, lines

MAX_POINTS = 2**17
"""Most points of a cloud that are kept, spread evenly over the file; on the surface of a mesh, as many are sampled."""
MIN_POINTS = 16
UNIT_TOLERANCE = 0.1
"""Largest mean deviation from a length of 1 for columns 4 to 6 of a text to be normals, and not colours."""

_HEAD = 2**12
_ROWS = 2**14
"""Rows of a binary file that are read at once."""
_SAMPLING_BYTES = 300
"""Peak memory of sampling a surface, for each triangle."""


@dataclass(frozen=True, eq=False, slots=True)
class PointCloud:
    """Points (n, 3), and their normals (n, 3), unit vectors or 0."""

    points: Vertices
    normals: Vertices

    @property
    def has_normals(self) -> bool:
        return bool(self.normals.any())


@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """Where a cloud was before it was moved into the unit box."""

    centre: Vertices
    scale: float
    """Length in the original coordinates of 1 in the box."""

    def restored(self, mesh: Mesh) -> Mesh:
        """A mesh of the unit box in the original coordinates."""
        return Mesh(mesh.vertices * self.scale + self.centre, mesh.faces)


# --- reading ----------------------------------------------------------------------------------------------------


def read_points(path: MediaFile) -> PointCloud:
    """At most `MAX_POINTS` points of a file, in its own coordinates."""
    media = media_ref(path)
    with decoding(damage):
        size = check_file(media)
        if size > MAX_BYTES:
            raise UnreadableItem(f"{size / 2**20:.0f} MiB, more than {MAX_BYTES // 2**20}; thin out the cloud first")
        with open_file(media) as stream, np.errstate(all="ignore"):
            head = stream.read(_HEAD)
            stream.seek(0)
            if head.startswith(b"ply") and head[3:4].isspace():
                layout, elements = read_header(stream)
                if not any(each.name == "face" and each.count for each in elements):
                    return make_cloud(*_read_ply(stream, layout, elements))
            elif _is_text(head):
                return make_cloud(*_read_text(stream))
    try:
        soup = read_soup(media)
    except UnreadableItem as problem:
        raise UnreadableItem(f"neither a point cloud (PLY, or a text of x y z) nor a mesh: {problem}") from None
    return sample_surface(Mesh(soup.vertices, soup.faces), MAX_POINTS)


def make_cloud(points: Vertices, normals: Vertices | None = None) -> PointCloud:
    """A usable cloud: finite points in more than one place, with unit normals, or 0 where there are none."""
    if normals is None:
        normals = np.zeros_like(points)
    finite = np.isfinite(points).all(axis=1)
    if finite.sum() < MIN_POINTS:
        raise UnreadableItem(
            f"{finite.sum()} of its {len(points)} points have finite coordinates; a cloud needs at least {MIN_POINTS}"
        )
    points, normals = points[finite], normals[finite]
    if (points == points[0]).all():
        raise UnreadableItem("all of its points are in one place")
    lengths = np.linalg.norm(normals, axis=1, keepdims=True)
    known = np.isfinite(lengths) & (lengths > 0)
    return PointCloud(points, np.where(known, normals / np.where(known, lengths, 1), 0))


def sample_surface(mesh: Mesh, count: int, seed: int = 0) -> PointCloud:
    """Points on a mesh, uniform by area, with the normals of its faces."""
    check_memory(_SAMPLING_BYTES * len(mesh.faces), f"sampling the surface of {len(mesh.faces)} faces")
    corners = corners_of(mesh)
    points, owners = surface_points(corners, count, seed)
    return PointCloud(points, face_normals(corners[owners]))


def normalise_cloud(cloud: PointCloud) -> tuple[PointCloud, Placement]:
    """The cloud in the unit box, as meshes are: centred, its longest side from -LIMIT to LIMIT; and where it was."""
    low, high = cloud.points.min(axis=0), cloud.points.max(axis=0)
    with np.errstate(over="ignore"):
        scale = float((high - low).max()) / (2 * LIMIT)
    if not np.isfinite(scale) or scale < np.finfo(np.float64).tiny:
        raise UnreadableItem("its coordinates are too far apart" if scale else "all of its points are in one place")
    placement = Placement(low + (high - low) / 2, scale)
    return PointCloud((cloud.points - placement.centre) / scale, cloud.normals), placement


def spread(count: int, most: int) -> npt.NDArray[np.int64]:
    """The indices of at most `most` of `count` rows: one at random in each of as many equal parts, so that neither the
    order of a scan nor its period matters."""
    if count <= most:
        return np.arange(count)
    chances = np.random.Generator(np.random.PCG64(0)).random(most)
    # Two neighbouring parts may have the row at their border in common.
    return np.unique(((np.arange(most) + chances) * (count / most)).astype(np.int64))


# --- PLY --------------------------------------------------------------------------------------------------------


def _read_ply(stream: IO[bytes], layout: str, elements: Sequence[Element]) -> tuple[Vertices, Vertices | None]:
    before: list[Element] = []
    for element in elements:
        if element.name == "vertex":
            break
        before.append(element)
    else:
        raise UnreadableItem("a PLY without vertices")
    names = {each.name for each in element.properties}
    normals = ["nx", "ny", "nz"] if {"nx", "ny", "nz"} <= names else []
    columns = [element.position(name) for name in ("x", "y", "z", *normals)]
    if layout == "ascii":
        skipped = sum(each.count for each in before)
        filled = (line for line in lines(stream) if line.strip())
        rows = _text_rows(
            filled, skipped + spread(element.count, MAX_POINTS), columns, f"{element.count} vertices promised"
        )
    else:
        rows = _binary_rows(stream, layout, before, element, columns)
    return rows[:, :3], rows[:, 3:] if normals else None


def _binary_rows(
    stream: IO[bytes], order: str, before: Sequence[Element], element: Element, columns: Sequence[int]
) -> Vertices:
    if not all(each.is_plain for each in before):
        raise UnreadableItem("a PLY with lists before its vertices")
    start = stream.tell() + sum(each.count * _row_type(each, order).itemsize for each in before)
    row = _row_type(element, order)
    if start + element.count * row.itemsize > stream.seek(0, 2):
        raise UnreadableItem(f"truncated: {element.count} vertices promised, the file ends before")
    chosen = spread(element.count, MAX_POINTS)
    found = np.empty((len(chosen), len(columns)))
    for first in range(0, element.count, _ROWS):
        low, high = np.searchsorted(chosen, [first, first + _ROWS])
        if low == high:
            continue
        stream.seek(start + first * row.itemsize)
        block = np.frombuffer(stream.read(row.itemsize * min(_ROWS, element.count - first)), row)
        for at, column in enumerate(columns):
            found[low:high, at] = block[str(column)][chosen[low:high] - first]
    return found


def _row_type(element: Element, order: str) -> np.dtype[Any]:
    return np.dtype([(str(at), order + each.type) for at, each in enumerate(element.properties)])


# --- text -------------------------------------------------------------------------------------------------------


def _is_text(head: bytes) -> bool:
    """Whether the first line with content, besides a number of points, holds at least three numbers."""
    if b"\0" in head[:1024]:
        return False
    rows = [words for line in head.removeprefix(b"\xef\xbb\xbf").splitlines() if (words := _words(line))]
    return any(_are_numbers(words) for words in rows[: 2 if rows and len(rows[0]) == 1 else 1])


def _words(line: bytes) -> list[bytes]:
    """The words of a line; none of a comment."""
    if line.lstrip().startswith((b"#", b"//")):
        return []
    return line.replace(b",", b" ").replace(b";", b" ").split()


def _are_numbers(words: Sequence[bytes]) -> bool:
    try:
        return len(words) >= 3 and len([float(word) for word in words[:3]]) == 3
    except ValueError:
        return False


def _read_text(stream: IO[bytes]) -> tuple[Vertices, Vertices | None]:
    start = stream.tell()
    count = sum(1 for _ in _text_points(stream))
    stream.seek(start)
    width = len(_words(next(_text_points(stream))))
    stream.seek(start)
    rows = _text_rows(_text_points(stream), spread(count, MAX_POINTS), range(6 if width >= 6 else 3), f"{count} points")
    lengths = np.linalg.norm(rows[:, 3:], axis=1)
    known = lengths[np.isfinite(lengths)]
    are_normals = rows.shape[1] == 6 and known.size > 0 and np.abs(known - 1).mean() < UNIT_TOLERANCE
    return rows[:, :3], rows[:, 3:] if are_normals else None


def _text_points(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines of a text that hold points. The first one may hold their number instead."""
    is_first = True
    for line in lines(stream):
        content = line.removeprefix(b"\xef\xbb\xbf").strip() if is_first else line.strip()
        if not content or content.startswith((b"#", b"//")):
            continue
        if not is_first or len(_words(content)) > 1:
            yield content
        is_first = False


def _text_rows(rows: Iterator[bytes], chosen: npt.NDArray[np.int64], columns: Sequence[int], promised: str) -> Vertices:
    """These columns of the chosen rows of a text."""
    found = np.empty((len(chosen), len(columns)))
    wanted = iter(chosen.tolist())
    number = next(wanted, None)
    at = 0
    for position, line in enumerate(rows):
        if number is None:
            break
        if position == number:
            words = _words(line)
            if len(words) <= max(columns):
                raise UnreadableItem(f"damaged: {max(columns) + 1} numbers expected in row {position + 1}")
            found[at] = [float(words[column]) for column in columns]
            at, number = at + 1, next(wanted, None)
    if number is not None:
        raise UnreadableItem(f"truncated: {promised}, the file ends before")
    return found
