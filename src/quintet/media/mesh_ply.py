"""Parser of PLY files, in text and in bytes of either order. Only coordinates and faces are kept; see `mesh_text`."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from quintet.errors import UnreadableItem
from quintet.media.mesh_text import Faces, Polygons, Vertices, check_mesh_size, coordinates, lines, table

_TYPES = {
    **{"char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1"},
    **{"short": "i2", "int16": "i2", "ushort": "u2", "uint16": "u2"},
    **{"int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4"},
    **{"float": "f4", "float32": "f4", "double": "f8", "float64": "f8"},
}
_FACE_LISTS = ("vertex_indices", "vertex_index")
_LONGEST_HEADER = 2**16
_ROWS = 2**14
"""Rows of a text between two checks of the memory; longer lists of a binary file are checked one by one."""
_BLOCK = 2**20
"""Bytes of a binary file that are read at once."""


@dataclass(frozen=True, slots=True)
class Property:
    """A property of an element: a number or a list of each row."""

    name: str
    type: str
    count_type: str | None = None
    """Type of the length before a list; None for a scalar."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a header: a table of a file, one after the other."""

    name: str
    count: int
    properties: list[Property]

    def position(self, name: str) -> int:
        """The position of a property of an element without lists."""
        found = [position for position, each in enumerate(self.properties) if each.name == name]
        if not found or not self.is_plain:
            raise UnreadableItem(f"damaged: its vertices have no '{name}'")
        return found[0]

    @property
    def is_plain(self) -> bool:
        return all(each.count_type is None for each in self.properties)

    @property
    def face_list(self) -> int | None:
        """The position of the list of the vertices of a face."""
        names = [each.name if each.count_type else "" for each in self.properties]
        found = (names.index(name) for name in _FACE_LISTS if name in names)
        return next(found, None) if self.name == "face" else None


class _Content:
    """The coordinates and faces read so far."""

    def __init__(self, held: int) -> None:
        self.numbers = array("d")
        self.polygons = Polygons()
        self.held = held

    def check(self) -> None:
        check_mesh_size(len(self.numbers) // 3, self.polygons.triangles, self.held)


def read_ply(stream: IO[bytes], held: int) -> tuple[Vertices, list[Faces]]:
    layout, elements = read_header(stream)
    content = _Content(held)
    if layout == "ascii":
        rows = (words for line in lines(stream) if (words := line.split()))
        for element in elements:
            _read_text(rows, element, content)
    else:
        for element in elements:
            _read_binary(stream, element, layout, content)
    content.check()
    return table(content.numbers), content.polygons.arrays()


def read_header(stream: IO[bytes]) -> tuple[str, list[Element]]:
    """`ascii` or the byte order of a binary file, and the elements that follow the header."""
    return _parsed_header(_header(stream))


def _header(stream: IO[bytes]) -> str:
    """The text up to the line `end_header`; the stream is then at the first byte after it."""
    header = b""
    while line := stream.readline(_LONGEST_HEADER):
        if line.startswith(b"end_header") and line.endswith(b"\n"):
            return header.decode("ascii", "replace")
        header += line
        if len(header) > _LONGEST_HEADER:
            break
    raise UnreadableItem("truncated: its header has no end")


def _parsed_header(text: str) -> tuple[str, list[Element]]:
    layout, elements = "", list[Element]()
    for line in text.splitlines()[1:]:
        match line.split():
            case ["format", name, *_]:
                layout = {"ascii": "ascii", "binary_little_endian": "<", "binary_big_endian": ">"}[name]
            case ["element", name, count]:
                elements.append(Element(name, int(count), []))
            case ["property", "list", count_type, kind, name]:
                elements[-1].properties.append(Property(name, _TYPES[kind], _TYPES[count_type]))
            case ["property", kind, name]:
                elements[-1].properties.append(Property(name, _TYPES[kind]))
    if not layout or any(element.count < 0 for element in elements):
        raise UnreadableItem("damaged: a PLY header without format, or with negative counts")
    return layout, elements


# --- text -------------------------------------------------------------------------------------------------------


def _read_text(rows: Iterator[list[bytes]], element: Element, content: _Content) -> None:
    axes = [element.position(axis) for axis in "xyz"] if element.name == "vertex" else None
    face_list = element.face_list
    for number in range(element.count):
        words = next(rows, None)
        if words is None:
            raise UnreadableItem(f"truncated: {element.count} of {element.name} promised, {number} there")
        if axes is not None:
            content.numbers.extend(coordinates([words[axis] for axis in axes if axis < len(words)]))
        elif face_list is not None:
            content.polygons.add(_text_list(words, element, face_list))
        if number % _ROWS == 0:
            content.check()


def _text_list(words: Sequence[bytes], element: Element, wanted: int) -> list[int]:
    """One list of a row."""
    position, end = 0, 0
    for each in element.properties[: wanted + 1]:
        position = end
        end += 1 if each.count_type is None or position >= len(words) else 1 + max(int(words[position]), 0)
    if end > len(words):
        raise UnreadableItem("damaged: a face with fewer vertices than it says")
    return [int(float(word)) for word in words[position + 1 : end]]


# --- bytes ------------------------------------------------------------------------------------------------------


def _read_binary(stream: IO[bytes], element: Element, order: str, content: _Content) -> None:
    if not element.properties:
        return
    smallest = sum(np.dtype(each.count_type or each.type).itemsize for each in element.properties)
    if element.count * smallest > _remaining(stream):
        raise UnreadableItem(f"truncated: {element.count} of {element.name} promised, the file ends before")
    axes = [element.position(axis) for axis in "xyz"] if element.name == "vertex" else []
    left = element.count
    while left:
        if element.is_plain:
            rows = _fixed_rows(stream, element, order, left, [1] * len(element.properties))
            if axes:
                vertices = np.stack([rows[f"{axis}"][:, 0] for axis in axes], axis=1)
                content.numbers.frombytes(vertices.astype(np.float64).tobytes())
            left -= len(rows)
        else:
            left -= _read_lists(stream, element, order, left, content)
        content.check()


def _read_lists(stream: IO[bytes], element: Element, order: str, left: int, content: _Content) -> int:
    """Read rows with lists: many at once if all have the lengths of the first one, as in most files, or else one by
    one. Returns the number of rows."""
    start = stream.tell()
    lengths = [len(each) for each in _row(stream, element, order, content)]
    stream.seek(start)
    rows = _fixed_rows(stream, element, order, left, lengths)
    counters = [position for position, each in enumerate(element.properties) if each.count_type is not None]
    wanted = element.face_list
    if all((rows[f"n{position}"] == lengths[position]).all() for position in counters):
        if wanted is not None:
            content.polygons.add_rows(rows[f"{wanted}"])
        return len(rows)
    stream.seek(start)
    for _ in range(len(rows)):
        lists = _row(stream, element, order, content)
        if wanted is not None:
            content.polygons.add_rows(lists[wanted][None])
    return len(rows)


def _fixed_rows(stream: IO[bytes], element: Element, order: str, left: int, lengths: Sequence[int]) -> Any:
    """At most `left` rows whose lists have these lengths; a few at the end of the file, where others may be shorter."""
    parts: list[Any] = []
    for position, (each, length) in enumerate(zip(element.properties, lengths, strict=True)):
        parts += [(f"n{position}", order + each.count_type)] if each.count_type is not None else []
        parts.append((f"{position}", order + each.type, (length,)))
    row = np.dtype(parts)
    fitting = _remaining(stream) // row.itemsize
    if not fitting:
        raise UnreadableItem("truncated: the file ends inside a row")
    return np.frombuffer(stream.read(row.itemsize * min(left, fitting, max(1, _BLOCK // row.itemsize))), row)


def _row(stream: IO[bytes], element: Element, order: str, content: _Content) -> list[Any]:
    """The lists of one row; a scalar is a list of one."""
    lists = []
    for each in element.properties:
        length = 1
        if each.count_type is not None:
            length = max(int(_numbers(stream, order + each.count_type, 1)[0]), 0)
            if length > _ROWS and length > _remaining(stream):
                raise UnreadableItem("damaged: a list is longer than the file")
            check_mesh_size(len(content.numbers) // 3, content.polygons.triangles + length, content.held)
        lists.append(_numbers(stream, order + each.type, length))
    return lists


def _numbers(stream: IO[bytes], kind: str, count: int) -> Any:
    dtype = np.dtype(kind)
    content = stream.read(dtype.itemsize * count)
    if len(content) < dtype.itemsize * count:
        raise UnreadableItem("truncated: the file ends inside a list")
    return np.frombuffer(content, dtype)


def _remaining(stream: IO[bytes]) -> int:
    position = stream.tell()
    end = stream.seek(0, os.SEEK_END)
    stream.seek(position)
    return end - position
