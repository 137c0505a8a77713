"""Mesh file formats: detection of the format by content, and the vertices and faces of a file.

Common readers guess in damaged files, misread indices counted from the end, fail on triangles mixed with larger faces,
or take gigabytes for what a few bytes declare, so every format is parsed here: text and STL in `mesh_text`, PLY in
`mesh_ply`, glTF in `mesh_gltf`. No other file is opened, except the buffers of a glTF file in its own folder. Every
problem is an `UnreadableItem`, and a mesh that needs more memory than the budget is one of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from quintet.errors import UnreadableItem
from quintet.media.files import Blob, MediaRef, check_file, decoding, open_file
from quintet.media.mesh_gltf import MAGIC as GLB_MAGIC
from quintet.media.mesh_gltf import read_gltf
from quintet.media.mesh_ply import read_ply
from quintet.media.mesh_text import (
    Faces,
    Vertices,
    check_mesh_size,
    read_obj,
    read_off,
    read_text_stl,
    separate_triangles,
)

MAX_BYTES = 2**29
"""Largest file; more takes minutes to read."""

_HEAD = 2**16
"""Bytes at the start of a file that decide its format."""
_STL_HEADER = 84
_STL_FACE = np.dtype([("normal", "<f4", 3), ("vertices", "<f4", (3, 3)), ("attributes", "<u2")])
_STL_ROWS = 2**14
_OFF = re.compile(rb"(?:ST)?C?N?OFF\b")
_SOLID = re.compile(rb"solid\b", re.IGNORECASE)
_NUMBER_STARTS = tuple(bytes([sign]) for sign in b"-+.0123456789")
_OBJ_WORDS = (b"#", b"o ", b"g ", b"mtllib ", b"v", b"f ")


@dataclass(frozen=True, slots=True)
class Soup:
    """Raw content of a file, nothing merged: vertices (n, 3) and faces (m, 3) or (m, 4)."""

    format: str
    vertices: Vertices
    faces: Faces


def read_soup(media: MediaRef, corners: int = 3) -> Soup:
    """All faces of a file, in one coordinate system.

    Larger faces are split into triangles. With `corners=4` the file must have quads only.
    """
    with decoding(damage):
        size = check_file(media)
        if size > MAX_BYTES:
            raise UnreadableItem(f"{size / 2**20:.0f} MiB, more than {MAX_BYTES // 2**20}; reduce the mesh first")
        with open_file(media) as stream, np.errstate(all="ignore"):
            name = _format_of(stream.read(_HEAD), size, media.suffix.lower())
            stream.seek(0)
            vertices, polygons = _parsed(name, stream, media)
            faces = _triangles(polygons) if corners == 3 else _uniform_faces(polygons, corners)
            return Soup(name, *_checked(vertices, faces))


def _parsed(name: str, stream: IO[bytes], media: MediaRef) -> tuple[Vertices, list[Faces]]:
    held = len(media.content) if isinstance(media, Blob) else 0
    if name in ("GLB", "glTF"):
        return read_gltf(stream, held, None if isinstance(media, Blob) else media.parent)
    if name == "STL":
        return _read_stl(stream, held)
    return {"OBJ": read_obj, "OFF": read_off, "PLY": read_ply}[name](stream, held)


def _format_of(head: bytes, size: int, suffix: str) -> str:
    """The format by content; the extension decides only what the content leaves open."""
    # Binary files contain zeros, texts do not; a text may start with a byte order mark.
    text = b"" if b"\0" in head[:1024] else head.removeprefix(b"\xef\xbb\xbf").lstrip()
    lines = [line for each in text.splitlines() if (line := each.lstrip())]
    content = next((line for line in lines if not line.startswith(b"#")), b"")
    signs = {
        "GLB": head.startswith(GLB_MAGIC),
        "PLY": head.startswith(b"ply") and head[3:4].isspace(),
        "STL": _is_binary_stl(head, size) or _SOLID.match(text),
        "glTF": text.startswith(b"{"),
        "OFF": _OFF.match(content),
        "OBJ": any(map(_is_vertex, lines)) or (suffix == ".obj" and any(line.startswith(_OBJ_WORDS) for line in lines)),
    }
    found = next((name for name, sign in signs.items() if sign), None)
    if found is not None:
        return found
    if suffix == ".stl" and size >= _STL_HEADER and not text:
        raise UnreadableItem(f"truncated or damaged: its header promises {_stl_count(head)} faces")
    raise UnreadableItem("not a mesh: the content is of no known mesh format")


def _is_vertex(line: bytes) -> bool:
    """Whether a line of text looks like a vertex of an OBJ."""
    return line[:1] == b"v" and line[1:2].isspace() and line[1:].lstrip().startswith(_NUMBER_STARTS)


def _checked(vertices: Vertices, faces: Faces) -> tuple[Vertices, Faces]:
    if not len(faces):
        found = f"{len(vertices)} points and no faces" if len(vertices) else "no faces"
        raise UnreadableItem(f"{found} in it")
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise UnreadableItem(f"damaged: a face names a vertex that is not among its {len(vertices)}")
    if not np.isfinite(vertices).all() and not np.isfinite(vertices[np.unique(faces)]).all():
        raise UnreadableItem("some of its coordinates are not finite numbers")
    return vertices, faces


def damage(error: Exception) -> str | None:
    """The reason of an unexpected error of a parser, in one short line; None for that of any file."""
    if isinstance(error, MemoryError):
        return "not enough memory to read it"
    if isinstance(error, OSError) and error.strerror:
        return None
    message = " ".join(str(error).split())[:120]
    return f"damaged: {message or type(error).__name__}"


def _uniform_faces(polygons: Sequence[Faces], corners: int) -> Faces:
    """The faces of a file in which all have `corners` vertices."""
    found = sorted({each.shape[1] for each in polygons})
    if found not in ([], [corners]):
        numbers = " and ".join(map(str, found))
        raise UnreadableItem(f"its faces have {numbers} vertices; model.vertices_per_face={corners} takes no others")
    return _joined(polygons, corners)


def _triangles(polygons: Sequence[Faces]) -> Faces:
    """Polygons as triangle fans."""
    return _joined([_fan(group) for group in polygons], 3)


def _fan(polygons: Faces) -> Faces:
    if polygons.shape[1] == 3:
        return polygons
    first = np.broadcast_to(polygons[:, :1], polygons[:, 2:].shape)
    return np.stack([first, polygons[:, 1:-1], polygons[:, 2:]], axis=-1).reshape(-1, 3)


def _joined(groups: Sequence[Faces], corners: int) -> Faces:
    if len(groups) == 1:
        return groups[0]
    return np.concatenate(groups) if groups else np.empty((0, corners), np.intc)


# --- STL --------------------------------------------------------------------------------------------------------


def _stl_count(head: bytes) -> int:
    return int.from_bytes(head[_STL_HEADER - 4 : _STL_HEADER], "little")


def _is_binary_stl(head: bytes, size: int) -> bool:
    return size >= _STL_HEADER and size == _STL_HEADER + _STL_FACE.itemsize * _stl_count(head)


def _read_stl(stream: IO[bytes], held: int) -> tuple[Vertices, list[Faces]]:
    head = stream.read(_STL_HEADER)
    size = stream.seek(0, os.SEEK_END)
    if not _is_binary_stl(head, size):
        stream.seek(0)
        return read_text_stl(stream, held)
    count = _stl_count(head)
    check_mesh_size(3 * count, count, held)
    vertices = np.empty((count, 3, 3))
    stream.seek(_STL_HEADER)
    for start in range(0, count, _STL_ROWS):
        rows = min(_STL_ROWS, count - start)
        block = np.frombuffer(stream.read(_STL_FACE.itemsize * rows), _STL_FACE)
        vertices[start : start + rows] = block["vertices"]
    return vertices.reshape(-1, 3), [separate_triangles(count)]
