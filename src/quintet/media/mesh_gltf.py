"""Parser of glTF 2.0 files, as JSON or GLB: the triangles of the default scene, with the transforms of its nodes.

Only the bytes of coordinates and indices are read, from the file itself, from base64 in its JSON, or from files in its
own folder. What the JSON declares is compared with the bytes that exist, and the size of the scene, in which a mesh may
have many instances, is checked before anything is built.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from quintet.errors import UnreadableItem
from quintet.media.budget import check_memory
from quintet.media.files import open_file
from quintet.media.mesh_text import Faces, Vertices, check_mesh_size

MAGIC = b"glTF"
MAX_NODES = 10_000
"""Most nodes of a scene; each may be another instance of the same mesh."""
MAX_PARTS = 100_000
"""Most parts of a scene, over all instances of its meshes."""

MAX_DEPTH = 256
"""Most levels of the nodes of a scene."""

_JSON, _BINARY = b"JSON", b"BIN\0"
_UNREADABLE_EXTENSIONS = ("KHR_draco_mesh_compression", "EXT_meshopt_compression")
_TYPES = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
_TRIANGLES, _STRIP = 4, 5


class _Buffer(NamedTuple):
    """A part of an open file: its start and length."""

    stream: IO[bytes]
    start: int
    length: int

    def read(self, offset: int, size: int) -> bytes:
        if min(offset, size) < 0 or offset + size > self.length:
            raise UnreadableItem("truncated: its numbers are not all in its buffer")
        self.stream.seek(self.start + offset)
        return self.stream.read(size)


class _Chain(NamedTuple):
    """The transform of a node, and those of the nodes above it."""

    transform: Vertices
    above: _Chain | None
    depth: int

    def product(self) -> Vertices:
        """The transform from the node to the scene, multiplied from the node up: the order decides the last digits."""
        if self.above is None:
            return self.transform
        product: Vertices | None = None
        level: _Chain | None = self
        while level is not None:
            if np.abs(level.transform - np.eye(4)).max() > 1e-8:
                product = level.transform if product is None else np.dot(level.transform, product)
            level = level.above
        return np.eye(4) if product is None else product


class _Part(NamedTuple):
    """One primitive of a mesh in the scene."""

    primitive: dict[str, Any]
    transform: Vertices


def read_gltf(stream: IO[bytes], held: int, folder: Path | None) -> tuple[Vertices, list[Faces]]:
    """`folder` holds the files that it may name; None if there is none."""
    text, binary = _chunks(stream)
    held += 2 * len(text)  # its texts, and what is decoded from base64
    header = _parsed(text)
    del text
    document = _Document(header, binary, folder)
    try:
        return document.triangles(held)
    finally:
        document.close()


def _chunks(stream: IO[bytes]) -> tuple[bytes, _Buffer | None]:
    """The JSON, and the binary chunk of a GLB."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    start = stream.read(20)
    if not start.startswith(MAGIC):
        check_memory(5 * size, "its JSON")  # as bytes, as text, and base64 while it is decoded
        return start + stream.read(), None
    if len(start) < 20 or start[16:20] != _JSON or _integer(start[8:12]) > size or 20 + _integer(start[12:16]) > size:
        raise UnreadableItem("truncated: the file is shorter than its header says")
    check_memory(5 * _integer(start[12:16]), "its JSON")
    text = stream.read(_integer(start[12:16]))
    while len(head := stream.read(8)) == 8:
        length, position = _integer(head[:4]), stream.tell()
        if position + length > size:
            raise UnreadableItem("truncated: the file is shorter than its header says")
        if head[4:] == _BINARY:
            return text, _Buffer(stream, position, length)
        stream.seek(length, os.SEEK_CUR)  # a chunk of an unknown type
    return text, None


def _integer(content: bytes) -> int:
    return int.from_bytes(content, "little")


def _parsed(text: bytes) -> dict[str, Any]:
    # Upper bounds of what Python takes for an object, and for a list, a number or a text.
    objects, values = text.count(b"{"), sum(text.count(sign) for sign in (b"[", b",", b":"))
    check_memory(3 * len(text) + 256 * objects + 96 * values, "its JSON")
    header = json.loads(text)
    if not isinstance(header, dict) or "asset" not in header:
        raise UnreadableItem("not a mesh: JSON, but no glTF")
    for name in _UNREADABLE_EXTENSIONS:
        if name in header.get("extensionsRequired", ()):
            raise UnreadableItem(f"compressed ({name}), which is not read; save it without compression")
    if int(str(header["asset"].get("version", "2.0")).partition(".")[0]) < 2:
        raise UnreadableItem("glTF 1, which is not read; save it as glTF 2")
    if not header.get("meshes"):
        raise UnreadableItem("no faces in it: a glTF file without meshes")
    if len(header.get("nodes", ())) > MAX_NODES:
        raise UnreadableItem(f"a scene of {len(header['nodes'])} nodes, more than {MAX_NODES}; join its meshes first")
    return header


@dataclass
class _Document:
    """A parsed file: its JSON, its binary chunk, and the folder of its buffers."""

    header: dict[str, Any]
    binary: _Buffer | None
    folder: Path | None

    def __post_init__(self) -> None:
        self.buffers: dict[int, _Buffer] = {}
        self.needed = 0
        """Estimated memory of the mesh, in bytes."""

    def close(self) -> None:
        for buffer in self.buffers.values():
            if buffer is not self.binary:
                buffer.stream.close()

    def triangles(self, held: int) -> tuple[Vertices, list[Faces]]:
        parts, vertex_count, face_count = [], 0, 0
        for part in self._parts():
            vertex_count += int(self._accessor(part.primitive["attributes"]["POSITION"])["count"])
            face_count += self._face_count(part.primitive)
            self.needed = check_mesh_size(vertex_count, face_count, held)
            parts.append(part)
        vertices, faces, start = [np.empty((0, 3))], list[Faces](), 0
        for part in parts:
            points, corners = self._positions(part.primitive), self._faces(part.primitive)
            if not len(corners):
                continue
            if corners.max() >= len(points):  # it must not reach the vertices of the next part
                raise UnreadableItem(f"damaged: a face names a vertex that is not among its {len(points)}")
            moved = points.astype(np.float64) @ part.transform[:3, :3].T
            moved += part.transform[:3, 3]
            vertices.append(moved)
            faces.append(_outwards(corners, part.transform) + np.intc(start))
            start += len(points)
        return (vertices[1] if len(vertices) == 2 else np.concatenate(vertices)), faces

    def _parts(self) -> Iterator[_Part]:
        """The parts that have triangles, with their transforms; a file without a scene is a list of parts."""
        placed = self._placed()
        first = next(placed, None)
        if first is None:
            meshes = ((mesh, np.eye(4)) for mesh in self.header["meshes"])
        else:
            meshes = (each for found in ((first,), placed) for each in found)
        count = 0
        for mesh, transform in meshes:
            for primitive in mesh["primitives"]:
                count += 1
                if count > MAX_PARTS:
                    raise UnreadableItem(f"a scene of more than {MAX_PARTS} parts; join its meshes first")
                if primitive.get("mode", _TRIANGLES) in (_TRIANGLES, _STRIP):
                    yield _Part(primitive, transform)

    def _placed(self) -> Iterator[tuple[dict[str, Any], Vertices]]:
        """The meshes of the default scene with their transforms, each node once."""
        nodes, scenes = self.header.get("nodes", []), self.header.get("scenes", [])
        roots = scenes[self.header.get("scene", 0)].get("nodes", []) if scenes else []
        waiting: list[tuple[int, _Chain | None]] = [(int(node), None) for node in roots]
        seen: set[int] = set()
        while waiting:
            number, parent = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            node = nodes[number]
            chain = _Chain(_local_transform(node), parent, 1 if parent is None else parent.depth + 1)
            if chain.depth > MAX_DEPTH:
                raise UnreadableItem(f"a scene of nodes in more than {MAX_DEPTH} levels; join its meshes first")
            waiting.extend((int(child), chain) for child in node.get("children", ()) if int(child) not in seen)
            if "mesh" in node:
                yield self.header["meshes"][node["mesh"]], chain.product()

    def _accessor(self, number: int) -> dict[str, Any]:
        accessor: dict[str, Any] = self.header["accessors"][number]
        if "sparse" in accessor or "bufferView" not in accessor:
            raise UnreadableItem("its numbers are sparse or in no buffer, which is not read; save it as plain glTF")
        if int(accessor["count"]) < 0:
            raise UnreadableItem("damaged: a negative number of vertices or faces")
        return accessor

    def _face_count(self, primitive: dict[str, Any]) -> int:
        count = int(self._accessor(primitive.get("indices", primitive["attributes"]["POSITION"]))["count"])
        return max(count - 2, 0) if primitive.get("mode") == _STRIP else count // 3

    def _positions(self, primitive: dict[str, Any]) -> Any:
        positions = self._numbers(primitive["attributes"]["POSITION"])
        if positions.shape[1] != 3:
            raise UnreadableItem("damaged: its vertices do not have three coordinates")
        return positions

    def _faces(self, primitive: dict[str, Any]) -> Faces:
        if "indices" in primitive:
            indices = self._numbers(primitive["indices"]).reshape(-1)
            if len(indices) and (indices.dtype.kind == "f" or not 0 <= indices.min() <= indices.max() < 2**31):
                raise UnreadableItem("damaged: a face names a vertex that does not exist")
        else:
            indices = np.arange(int(self._accessor(primitive["attributes"]["POSITION"])["count"]))
        indices = indices.astype(np.intc)
        if primitive.get("mode") != _STRIP:
            return np.asarray(indices.reshape(-1, 3))
        strip: Faces = np.stack([indices[:-2], indices[1:-1], indices[2:]], axis=1)
        strip[1::2] = strip[1::2, ::-1]
        return strip

    def _numbers(self, number: int) -> Any:
        """The numbers of an accessor, (count, width)."""
        accessor = self._accessor(number)
        view = self.header["bufferViews"][accessor["bufferView"]]
        dtype, width = np.dtype(_TYPES[accessor["componentType"]]), _WIDTHS[accessor["type"]]
        count, row = int(accessor["count"]), np.dtype((dtype, (width,)))
        stride = int(view.get("byteStride", row.itemsize))
        if stride < row.itemsize:
            raise UnreadableItem("damaged: its numbers overlap")
        offset, size = int(accessor.get("byteOffset", 0)), max(count - 1, 0) * stride + row.itemsize * (count > 0)
        if offset < 0 or offset + size > int(view["byteLength"]):
            raise UnreadableItem("truncated: its numbers are not all in its buffer")
        # What lies between the numbers is read too, and may be far more than they are.
        check_memory(self.needed + size - count * row.itemsize, "a mesh with other numbers between its coordinates")
        content = self._buffer(int(view["buffer"])).read(int(view.get("byteOffset", 0)) + offset, size)
        return np.ndarray((count, width), dtype, content, strides=(stride, dtype.itemsize))

    def _buffer(self, number: int) -> _Buffer:
        if number not in self.buffers:
            uri = self.header["buffers"][number].get("uri")
            found = self.binary if uri is None else _opened(str(uri), self.folder)
            if found is None:
                raise UnreadableItem("truncated: its buffer is missing")
            self.buffers[number] = found
        return self.buffers[number]


def _local_transform(node: dict[str, Any]) -> Vertices:
    """The matrix of a node, or its translation, rotation and scale, in this order."""
    matrix = np.eye(4)
    if "matrix" in node:
        matrix = np.array(node["matrix"], np.float64).reshape(4, 4).T
    if "translation" in node:
        moved = np.eye(4)
        moved[:3, 3] = node["translation"][:3]
        matrix = np.dot(matrix, moved)
    if "rotation" in node:
        from trimesh.transformations import quaternion_matrix

        x, y, z, w = node["rotation"]
        matrix = np.dot(matrix, quaternion_matrix([w, x, y, z]))  # type: ignore[no-untyped-call]
    if "scale" in node:
        matrix = np.dot(matrix, np.diag([*node["scale"], 1.0]))
    return np.asarray(matrix, np.float64)


def _outwards(faces: Faces, transform: Vertices) -> Faces:
    """Reverse the winding of a mirrored part, so that its outside stays outside."""
    return faces[:, ::-1] if np.linalg.det(transform[:3, :3]) < 0 else faces


def _opened(uri: str, folder: Path | None) -> _Buffer:
    _, sign, encoded = uri.partition("base64,")
    if sign:
        content = base64.b64decode(encoded)
        return _Buffer(io.BytesIO(content), 0, len(content))
    if folder is None:
        raise UnreadableItem(f"its buffer {uri[:80]!r} is another file, which a shard does not hold; save it as GLB")
    root = os.path.realpath(folder)
    target = os.path.realpath(os.path.join(root, unquote(uri)))
    if "://" in uri or os.path.commonpath([root, target]) != root:
        raise UnreadableItem(f"takes its numbers from outside of its folder ({uri[:80]!r}); not followed")
    if not os.path.isfile(target):
        raise UnreadableItem(f"its buffer {uri[:80]!r} is missing")
    stream = open_file(Path(target))
    return _Buffer(stream, 0, os.fstat(stream.fileno()).st_size)
