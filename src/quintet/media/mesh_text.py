"""Parsers of mesh files in text, OBJ, OFF and STL, and the arrays that every parser of meshes fills.

A file is read in blocks of bounded size and its numbers go straight into typed arrays: a line costs as many bytes as
its numbers need, and the time of every parser is linear in the size of the file, whatever the bytes are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np
import numpy.typing as npt

from quintet.errors import UnreadableItem
from quintet.media.budget import check_memory

Vertices = npt.NDArray[np.float64]
Faces = npt.NDArray[np.integer]

BLOCK = 2**18
"""Bytes that are read and split at once; words of Python take thirty times as much."""
LONGEST_LINE = 2**20
_TAIL = 2**16
VERTEX_BYTES, FACE_BYTES = 70, 50
"""Peak memory of reading a mesh and merging its vertices, for each vertex and each triangle of the file, measured."""


def check_mesh_size(vertices: int, faces: int, held: int = 0) -> int:
    """The memory that a mesh needs, in bytes; raises `UnreadableItem` if that is more than the budget.

    `held` are bytes that are held already.
    """
    needed = VERTEX_BYTES * vertices + FACE_BYTES * faces + held
    check_memory(needed, f"a mesh of {vertices} vertices and {faces} faces")
    return needed


class Polygons:
    """Faces of a file: the vertex indices of all faces with the same number of corners are one array."""

    def __init__(self) -> None:
        self.groups: dict[int, array[int]] = {}
        self.triangles = 0
        """Triangles that the faces are split into."""

    def add(self, corners: Sequence[int]) -> None:
        if len(corners) > 2:  # neither a point nor a line
            self._group(len(corners)).extend(corners)
            self.triangles += len(corners) - 2

    def add_rows(self, rows: Faces) -> None:
        """Add faces with the same number of corners, (faces, corners)."""
        if rows.shape[1] > 2 and len(rows):
            if rows.max() > np.iinfo(np.intc).max:
                raise UnreadableItem("damaged: a face names a vertex that does not exist")
            self._group(rows.shape[1]).frombytes(np.ascontiguousarray(rows, np.intc).tobytes())
            self.triangles += (rows.shape[1] - 2) * len(rows)

    def arrays(self) -> list[Faces]:
        """One array (faces, corners) for each number of corners, in order of appearance."""
        return [np.frombuffer(group, np.intc).reshape(-1, corners) for corners, group in self.groups.items()]

    def _group(self, corners: int) -> array[int]:
        return self.groups.setdefault(corners, array("i"))


def blocks(stream: IO[bytes], ends: bytes) -> Iterator[bytes]:
    """The rest of a file in blocks, each of which ends with one of the bytes `ends`, or with the file."""
    rest = b""
    while chunk := stream.read(BLOCK):
        if chunk.endswith(b"\r"):  # the line end may be \r\n
            chunk += stream.read(1)
        chunk = rest + chunk
        cut = 1 + max(chunk.rfind(end) for end in ends)
        rest = chunk[cut:]
        if len(rest) > LONGEST_LINE:
            raise UnreadableItem(f"damaged: a line of more than {LONGEST_LINE // 2**20} MiB")
        if cut:
            yield chunk[:cut]
    if rest:
        yield rest


def lines(stream: IO[bytes], *, continued: bool = False) -> Iterator[bytes]:
    """The lines of a text. With `continued`, a backslash at the end of a line joins the next one to it."""
    rest = b""
    for block in blocks(stream, b"\r\n"):
        if not continued:
            yield from block.splitlines()
            continue
        text = rest + block.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ")
        # A continued line may go on in the next block.
        end = 1 + max(text.rfind(b"\n"), text.rfind(b"\r"))
        rest = text[end:]
        if len(rest) > LONGEST_LINE:
            raise UnreadableItem(f"damaged: a line of more than {LONGEST_LINE // 2**20} MiB")
        yield from text[:end].splitlines()
    if rest:
        yield rest


def table(numbers: array[float]) -> Vertices:
    return np.frombuffer(numbers, np.float64).reshape(-1, 3)


def coordinates(words: Sequence[bytes]) -> Sequence[float]:
    if len(words) < 3:
        raise UnreadableItem("damaged: a vertex with fewer than three numbers")
    return float(words[0]), float(words[1]), float(words[2])


class _Growing:
    """Vertices and faces while they are read, with the check of their memory now and then."""

    _OFTEN = 2**14

    def __init__(self, held: int) -> None:
        self.numbers = array("d")
        self.polygons = Polygons()
        self.held = held
        self.rows = 0

    def count_row(self) -> None:
        self.rows += 1
        if self.rows % self._OFTEN == 0:
            self.check()

    def check(self) -> None:
        check_mesh_size(len(self.numbers) // 3, self.polygons.triangles, self.held)

    def result(self) -> tuple[Vertices, list[Faces]]:
        self.check()
        return table(self.numbers), self.polygons.arrays()


def read_obj(stream: IO[bytes], held: int) -> tuple[Vertices, list[Faces]]:
    mesh = _Growing(held)
    for line in lines(stream, continued=True):
        words = line.split()
        if not words:
            continue
        if words[0] == b"v":
            mesh.numbers.extend(coordinates(words[1:4]))
        elif words[0] == b"f":
            corners = [int(word.partition(b"/")[0]) for word in words[1:]]
            # Indices count from 1, or, if negative, backwards from the last vertex.
            last = len(mesh.numbers) // 3
            mesh.polygons.add([each - 1 if each > 0 else last + each for each in corners])
        mesh.count_row()
    return mesh.result()


def read_off(stream: IO[bytes], held: int) -> tuple[Vertices, list[Faces]]:
    rows = (words for line in lines(stream) if (words := line.partition(b"#")[0].split()))
    header = next(rows)[1:] or next(rows, [])
    vertices, faces = int(header[0]), int(header[1])
    if min(vertices, faces) < 0:
        raise UnreadableItem("damaged: a negative number of vertices or faces")
    mesh = _Growing(held)
    for words in rows:
        if mesh.rows < vertices:
            mesh.numbers.extend(coordinates(words))
        elif mesh.rows < vertices + faces:
            count = int(words[0])
            corners = [int(word) for word in words[1 : max(count, 0) + 1]]
            if len(corners) < count:
                raise UnreadableItem("damaged: a face with fewer vertices than it says")
            mesh.polygons.add(corners)
        else:
            break
        mesh.count_row()
    if mesh.rows < vertices + faces:
        raise UnreadableItem(
            f"truncated: {vertices} vertices and {faces} faces promised, {mesh.rows} lines of them there"
        )
    return mesh.result()


def read_text_stl(stream: IO[bytes], held: int) -> tuple[Vertices, list[Faces]]:
    corners = array("d")
    words: list[bytes] = []
    tail = b""
    for block in blocks(stream, b"\r\n \t"):
        words += block.lower().split()
        words = words[_add_corners(words, corners) :]
        check_mesh_size(len(corners) // 3, len(corners) // 9, held)
        if content := block.rstrip():
            tail = (tail + content)[-_TAIL:] + (b"\n" if b"\n" in block[len(content) :] else b" ")
    last_line = tail.rstrip().rpartition(b"\n")[2].lower()
    if b"endsolid" not in last_line or len(corners) % 9:
        raise UnreadableItem("truncated: its text ends before 'endsolid'")
    return table(corners), [separate_triangles(len(corners) // 9)]


def _add_corners(words: list[bytes], corners: array[float]) -> int:
    """Add the three numbers after each word `vertex`; returns the position of the first word that may be continued."""
    position = 0
    while True:
        try:
            position = words.index(b"vertex", position)
        except ValueError:
            return len(words)
        if position + 4 > len(words):
            return position
        corners.extend(coordinates(words[position + 1 : position + 4]))
        position += 4


def separate_triangles(count: int) -> Faces:
    """Triangles that share no vertex, as in STL."""
    return np.arange(3 * count, dtype=np.intc).reshape(-1, 3)
