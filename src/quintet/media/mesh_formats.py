"""Mesh file formats: detection of the format by content, and parsers that return vertices and faces.

The text formats, PLY and STL are parsed here: common readers guess in damaged files, misread indices counted from the
end, or fail on triangles mixed with larger faces. trimesh reads glTF, with its scenes and transforms, after checks of
the declared sizes. No other file is opened, except the buffers of a glTF file in its own folder. Every problem is an
`UnreadableItem`.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from quintet.errors import UnreadableItem
from quintet.media.files import Blob, MediaRef, check_file, decoding, read_file

Vertices = npt.NDArray[np.float64]
Faces = npt.NDArray[np.int64]
Polygons = Iterable[npt.ArrayLike]
"""Faces of a file: arrays (count, corners), one for each number of corners."""

MAX_BYTES = 2**29
"""Largest file: about five million faces as text; more takes minutes and gigabytes to read."""
MAX_FACES = 5_000_000
MAX_NODES = 10_000
"""Most nodes of a glTF scene; each may be another instance of the same mesh."""

_STL_HEADER = 84
_STL_FACE = np.dtype([("normal", "<f4", 3), ("vertices", "<f4", (3, 3)), ("attributes", "<u2")])
_GLB_MAGIC, _GLB_JSON = b"glTF", b"JSON"
_UNREADABLE_EXTENSIONS = ("KHR_draco_mesh_compression", "EXT_meshopt_compression")
_PLY_TYPES = {
    **{"char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1"},
    **{"short": "i2", "int16": "i2", "ushort": "u2", "uint16": "u2"},
    **{"int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4"},
    **{"float": "f4", "float32": "f4", "double": "f8", "float64": "f8"},
}
_FACE_LISTS = ("vertex_indices", "vertex_index")
# trimesh logs errors that it also raises; without a handler Python would print them.
logging.getLogger("trimesh").addHandler(logging.NullHandler())


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
    with decoding(_reason):
        data = _content(media)
        name = _format_of(data, media.suffix.lower())
        with np.errstate(all="ignore"):
            vertices, polygons = _READERS[name](data, media)
            faces = _triangles(polygons) if corners == 3 else _uniform_faces(polygons, corners)
        return Soup(name, *_checked(vertices, faces))


def _content(media: MediaRef) -> bytes:
    size = check_file(media)
    if size > MAX_BYTES:
        raise UnreadableItem(f"{size / 2**20:.0f} MiB, more than {MAX_BYTES // 2**20}; reduce the mesh first")
    return read_file(media)


def _format_of(data: bytes, suffix: str) -> str:
    """The format by content; the extension decides only what the content leaves open."""
    # Binary files contain zeros, texts do not; a text may start with a byte order mark.
    text = b"" if b"\0" in data[:1024] else data[:65536].removeprefix(b"\xef\xbb\xbf").lstrip()
    signs = {
        "GLB": data.startswith(_GLB_MAGIC),
        "PLY": re.match(rb"ply\s", data),
        "STL": _is_binary_stl(data) or re.match(rb"solid\b", text, re.IGNORECASE),
        "glTF": text.startswith(b"{"),
        "OFF": re.match(rb"(#.*\s+)*(ST)?C?N?OFF\b", text),
        "OBJ": re.search(rb"^\s*v\s+[-+.\d]", text, re.MULTILINE)
        or (suffix == ".obj" and re.search(rb"^\s*(#|o |g |mtllib |v|f )", text, re.MULTILINE)),
    }
    found = next((name for name, sign in signs.items() if sign), None)
    if found is not None:
        return found
    if suffix == ".stl" and len(data) >= _STL_HEADER and not text:
        raise UnreadableItem(f"truncated or damaged: its header promises {_stl_count(data)} faces")
    raise UnreadableItem("not a mesh: the content is of no known mesh format")


def _checked(vertices: Vertices, faces: Faces) -> tuple[Vertices, Faces]:
    if not len(faces):
        found = f"{len(vertices)} points and no faces" if len(vertices) else "no faces"
        raise UnreadableItem(f"{found} in it")
    if len(faces) > MAX_FACES:
        raise UnreadableItem(f"{len(faces)} faces, more than {MAX_FACES}; reduce the mesh first")
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise UnreadableItem(f"damaged: a face names a vertex that is not among its {len(vertices)}")
    if not np.isfinite(vertices[np.unique(faces)]).all():
        raise UnreadableItem("some of its coordinates are not finite numbers")
    return vertices, faces


def _reason(error: Exception) -> str | None:
    if isinstance(error, MemoryError):
        return "not enough memory to read it"
    if isinstance(error, OSError) and error.strerror:
        return None
    message = " ".join(str(error).split())[:120]
    return f"damaged: {message or type(error).__name__}"


def _uniform_faces(polygons: Polygons, corners: int) -> Faces:
    """The faces of a file in which all have `corners` vertices."""
    groups = [
        each for group in polygons if (each := np.asarray(group, np.int64)).shape[1] > 2
    ]  # without points and lines
    found = sorted({each.shape[1] for each in groups})
    if found not in ([], [corners]):
        numbers = " and ".join(map(str, found))
        raise UnreadableItem(f"its faces have {numbers} vertices; model.vertices_per_face={corners} takes no others")
    return np.concatenate(groups) if groups else np.empty((0, corners), np.int64)


def _triangles(polygons: Polygons) -> Faces:
    """Polygons as triangle fans."""
    fans = [_fan(np.asarray(group, np.int64)) for group in polygons]
    return np.concatenate(fans) if fans else np.empty((0, 3), np.int64)


def _fan(polygons: Faces) -> Faces:
    if polygons.shape[1] < 3:  # a point or a line
        return np.empty((0, 3), np.int64)
    first = np.broadcast_to(polygons[:, :1], polygons[:, 2:].shape)
    return np.stack([first, polygons[:, 1:-1], polygons[:, 2:]], axis=-1).reshape(-1, 3)


# --- OBJ and OFF ------------------------------------------------------------------------------------------------


def _read_obj(data: bytes, media: MediaRef) -> tuple[Vertices, Polygons]:
    rows: list[list[bytes]] = []
    polygons: dict[int, list[list[int]]] = defaultdict(list)
    for line in data.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ").splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == b"v":
            rows.append(words[1:4])
        elif words[0] == b"f":
            corners = [int(word.partition(b"/")[0]) for word in words[1:]]
            # Indices count from 1, or, if negative, backwards from the last vertex.
            polygons[len(corners)].append([each - 1 if each > 0 else len(rows) + each for each in corners])
    return _table(rows), polygons.values()


def _table(rows: Sequence[Sequence[bytes]]) -> Vertices:
    return np.array(rows, np.float64).reshape(-1, 3) if rows else np.empty((0, 3))


def _read_off(data: bytes, media: MediaRef) -> tuple[Vertices, Polygons]:
    lines = [words for line in data.splitlines() if (words := line.partition(b"#")[0].split())]
    header = lines[0][1:] or lines[1]
    body = lines[1 if lines[0][1:] else 2 :]
    vertices, faces = int(header[0]), int(header[1])
    if min(vertices, faces) < 0 or len(body) < vertices + faces:
        raise UnreadableItem(
            f"truncated: {vertices} vertices and {faces} faces promised, {len(body)} lines of them there"
        )
    polygons: dict[int, list[list[int]]] = defaultdict(list)
    for words in body[vertices : vertices + faces]:
        count = int(words[0])
        polygons[count].append([int(word) for word in words[1 : count + 1]])
    return _table([words[:3] for words in body[:vertices]]), polygons.values()


# --- STL --------------------------------------------------------------------------------------------------------


def _stl_count(data: bytes) -> int:
    return int.from_bytes(data[_STL_HEADER - 4 : _STL_HEADER], "little")


def _is_binary_stl(data: bytes) -> bool:
    return len(data) >= _STL_HEADER and len(data) == _STL_HEADER + _STL_FACE.itemsize * _stl_count(data)


def _read_stl(data: bytes, media: MediaRef) -> tuple[Vertices, Polygons]:
    if _is_binary_stl(data):
        corners = np.frombuffer(data, _STL_FACE, offset=_STL_HEADER)["vertices"].reshape(-1, 3).astype(np.float64)
    else:
        corners = _table(re.findall(rb"\bvertex\s+(\S+)\s+(\S+)\s+(\S+)", data, re.IGNORECASE))
        if not re.search(rb"endsolid\b[^\n]*\s*\Z", data, re.IGNORECASE) or len(corners) % 3:
            raise UnreadableItem("truncated: its text ends before 'endsolid'")
    return corners, [np.arange(len(corners), dtype=np.int64).reshape(-1, 3)]


# --- PLY --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Property:
    name: str
    type: str
    count_type: str | None = None
    """Type of the length before a list; None for a scalar."""


@dataclass(frozen=True, slots=True)
class _Element:
    name: str
    count: int
    properties: list[_Property]

    @property
    def is_plain(self) -> bool:
        return all(each.count_type is None for each in self.properties)


def _read_ply(data: bytes, media: MediaRef) -> tuple[Vertices, Polygons]:
    end = re.search(rb"^end_header[^\n]*\n", data[:65536], re.MULTILINE)
    if end is None:
        raise UnreadableItem("truncated: its header has no end")
    layout, elements = _ply_header(data[: end.start()].decode("ascii", "replace"))
    body = data[end.end() :]
    columns = _ply_text(body, elements) if layout == "ascii" else _ply_binary(body, elements, layout)
    vertices = np.stack([np.asarray(columns["vertex", axis], np.float64) for axis in "xyz"], axis=1)
    lists: Iterable[Any] = next((columns["face", name] for name in _FACE_LISTS if ("face", name) in columns), ())
    polygons: dict[int, list[Any]] = defaultdict(list)
    for corners in lists:
        polygons[len(corners)].append(corners)
    return vertices, polygons.values()


def _ply_header(text: str) -> tuple[str, list[_Element]]:
    """`ascii` or the byte order of a binary file, and the elements that follow."""
    layout, elements = "", list[_Element]()
    for line in text.splitlines()[1:]:
        match line.split():
            case ["format", name, *_]:
                layout = {"ascii": "ascii", "binary_little_endian": "<", "binary_big_endian": ">"}[name]
            case ["element", name, count]:
                elements.append(_Element(name, int(count), []))
            case ["property", "list", count_type, kind, name]:
                elements[-1].properties.append(_Property(name, _PLY_TYPES[kind], _PLY_TYPES[count_type]))
            case ["property", kind, name]:
                elements[-1].properties.append(_Property(name, _PLY_TYPES[kind]))
    if not layout or any(element.count < 0 for element in elements):
        raise UnreadableItem("damaged: a PLY header without format, or with negative counts")
    return layout, elements


def _ply_text(body: bytes, elements: Sequence[_Element]) -> dict[tuple[str, str], Any]:
    lines = [words for line in body.splitlines() if (words := line.split())]
    columns: dict[tuple[str, str], Any] = {}
    for element in elements:
        rows, lines = lines[: element.count], lines[element.count :]
        if len(rows) < element.count:
            raise UnreadableItem(f"truncated: {element.count} of {element.name} promised, {len(rows)} there")
        if element.is_plain:
            for position, each in enumerate(element.properties):
                columns[element.name, each.name] = [float(words[position]) for words in rows]
            continue
        for each in element.properties:
            columns[element.name, each.name] = []
        for words in rows:
            position = 0
            for each in element.properties:
                count = 1 if each.count_type is None else int(words[position])
                position += each.count_type is not None
                numbers = [int(float(word)) for word in words[position : position + count]]
                columns[element.name, each.name].append(numbers)
                position += count
    return columns


def _ply_binary(body: bytes, elements: Sequence[_Element], order: str) -> dict[tuple[str, str], Any]:
    columns: dict[tuple[str, str], Any] = {}
    start = 0
    for element in elements:
        if element.is_plain:
            row = np.dtype([(f"{position}", order + each.type) for position, each in enumerate(element.properties)])
            end = start + row.itemsize * element.count
            if end > len(body):
                raise UnreadableItem(f"truncated: {element.count} of {element.name} promised, the file ends before")
            table = np.frombuffer(body, row, element.count, start)
            columns.update({(element.name, each.name): table[f"{at}"] for at, each in enumerate(element.properties)})
            start = end
        else:
            start = _ply_lists(body, start, element, order, columns)
    return columns


def _ply_lists(body: bytes, start: int, element: _Element, order: str, columns: dict[tuple[str, str], Any]) -> int:
    """Read an element whose rows differ in length; returns its end."""
    if element.count > len(body) - start:  # each row has at least one byte for its length
        raise UnreadableItem(f"truncated: {element.count} of {element.name} promised, the file ends before")
    lists = [columns.setdefault((element.name, each.name), []) for each in element.properties]
    kinds = [np.dtype(order + each.type) for each in element.properties]
    counters = [
        each.count_type and struct.Struct(order + np.dtype(each.count_type).char) for each in element.properties
    ]
    for _ in range(element.count):
        for kind, counter, rows in zip(kinds, counters, lists, strict=True):
            count = 1
            if counter:
                (count,) = counter.unpack_from(body, start)
                start += counter.size
            rows.append(np.frombuffer(body, kind, count, start) if count > 0 else ())
            start += kind.itemsize * max(count, 0)
    return start


# --- glTF -------------------------------------------------------------------------------------------------------


def _read_gltf(data: bytes, media: MediaRef) -> tuple[Vertices, Polygons]:
    import trimesh

    binary = data.startswith(_GLB_MAGIC)
    _check_gltf(json.loads(_glb_header(data) if binary else data))
    scene = trimesh.load_scene(
        io.BytesIO(data),
        file_type="glb" if binary else "gltf",
        resolver=_folder_only(None if isinstance(media, Blob) else media.parent),
        skip_materials=True,
        process=False,
    )
    parts = [
        (np.asarray(geometry.vertices, np.float64), np.asarray(geometry.faces, np.int64), transform)
        for transform, geometry in _scene_parts(scene)
        if isinstance(geometry, trimesh.Trimesh) and len(geometry.faces)
    ]
    if sum(len(faces) for _, faces, _ in parts) > MAX_FACES:
        raise UnreadableItem(f"a scene of more than {MAX_FACES} faces; reduce it first")
    starts = np.cumsum([0, *(len(vertices) for vertices, _, _ in parts)])
    for vertices, faces, _ in parts:
        _checked(vertices, faces)  # an index that is too large must not reach the vertices of the next part
    return (
        np.concatenate([vertices @ at[:3, :3].T + at[:3, 3] for vertices, _, at in parts] or [np.empty((0, 3))]),
        [_outwards(faces, at) + start for (_, faces, at), start in zip(parts, starts, strict=False)],
    )


def _scene_parts(scene: Any) -> list[tuple[Vertices, Any]]:
    """Every part of a scene with its transform; a file without a scene is a list of parts."""
    nodes = scene.graph.nodes_geometry
    if not nodes:
        return [(np.eye(4), geometry) for geometry in scene.geometry.values()]
    placed = [scene.graph[node] for node in nodes]
    return [(np.asarray(transform, np.float64), scene.geometry[name]) for transform, name in placed]


def _outwards(faces: Faces, transform: Vertices) -> Faces:
    """Reverse the winding of a mirrored part, so that its outside stays outside."""
    return faces[:, ::-1] if np.linalg.det(transform[:3, :3]) < 0 else faces


def _glb_header(data: bytes) -> bytes:
    if len(data) < 20 or data[16:20] != _GLB_JSON or int.from_bytes(data[8:12], "little") > len(data):
        raise UnreadableItem("truncated: the file is shorter than its header says")
    return data[20 : 20 + int.from_bytes(data[12:16], "little")]


def _check_gltf(header: Any) -> None:
    """Check the declared sizes: a few bytes can declare gigabytes."""
    if not isinstance(header, dict) or "asset" not in header:
        raise UnreadableItem("not a mesh: JSON, but no glTF")
    for name in _UNREADABLE_EXTENSIONS:
        if name in header.get("extensionsRequired", ()):
            raise UnreadableItem(f"compressed ({name}), which is not read; save it without compression")
    if not header.get("meshes"):
        raise UnreadableItem("no faces in it: a glTF file without meshes")
    if len(header.get("nodes", ())) > MAX_NODES:
        raise UnreadableItem(f"a scene of {len(header['nodes'])} nodes, more than {MAX_NODES}; join its meshes first")
    counts = [int(accessor.get("count", 0)) for accessor in header.get("accessors", ())]
    if sum(counts) > 12 * MAX_FACES or min(counts, default=0) < 0:
        raise UnreadableItem(f"declares {sum(counts)} numbers, more than a mesh of {MAX_FACES} faces has")


def _folder_only(folder: Path | None) -> Any:
    """Resolver of trimesh for the buffers of a glTF file: it reads files in the folder only."""
    from trimesh.resolvers import Resolver

    class FolderOnly(Resolver):
        def __init__(self) -> None:
            """No state."""

        def get(self, key: str) -> bytes:
            return _read_buffer(folder, key)

        def keys(self) -> Iterable[str]:
            return ()

        # Abstract methods of the class, which reading does not call.
        def write(self, name: str, data: Any) -> None:
            raise UnreadableItem(f"asks to write {name[:80]!r}; nothing is written")

        def namespaced(self, namespace: str) -> Any:
            raise UnreadableItem(f"takes its numbers from {namespace[:80]!r}, which is not followed")

    return FolderOnly()


def _read_buffer(folder: Path | None, name: str) -> bytes:
    if folder is None:
        raise UnreadableItem(f"its buffer {name[:80]!r} is another file, which a shard does not hold; save it as GLB")
    root = os.path.realpath(folder)
    target = os.path.realpath(os.path.join(root, unquote(name)))
    if "://" in name or os.path.commonpath([root, target]) != root:
        raise UnreadableItem(f"takes its numbers from outside of its folder ({name[:80]!r}); not followed")
    if not os.path.isfile(target):
        raise UnreadableItem(f"its buffer {name[:80]!r} is missing")
    return _content(Path(target))


_READERS: dict[str, Callable[[bytes, MediaRef], tuple[Vertices, Polygons]]] = {
    "OBJ": _read_obj,
    "OFF": _read_off,
    "STL": _read_stl,
    "PLY": _read_ply,
    "GLB": _read_gltf,
    "glTF": _read_gltf,
}
