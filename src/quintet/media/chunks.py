"""Walks over the parts of media files: chunks of RIFF and PNG, blocks of GIF, boxes of MP4, elements of Matroska.

Every walk is linear and bounded: a part is visited once, and a file of too many parts raises `UnreadableItem`, because
millions of empty parts would otherwise take minutes. Lengths are those that the file states and may exceed it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from quintet.errors import UnreadableItem
from quintet.media.budget import check_steps

MAX_CHUNKS = 100_000
"""Most chunks of a RIFF or PNG file. Usual ones have a few; a PNG of 100 million pixels has some ten thousand."""
MOV_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")
"""Names of the first box of an MP4 or QuickTime file."""
EBML = b"\x1aE\xdf\xa3"
"""The first bytes of a Matroska file."""
_GIF_BLOCK = 128
"""Bytes of a GIF per block beyond the limit of steps: the blocks of a long animation are twice as long."""
_BOX_PARENTS = frozenset((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"mvex", b"edts", b"udta"))
_BOX_DEPTH = 8
_USUAL_EDITS = 16
_SEGMENT = b"\x18S\x80g"


class TruncatedFile(Exception):
    """The file ends before it should; the message says where."""


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk, box or element: its name, the start of its content, and its stated length (-1: up to the end)."""

    name: bytes
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


def size_of(stream: IO[bytes]) -> int:
    return stream.seek(0, os.SEEK_END)


def riff_chunks(stream: IO[bytes]) -> Iterator[Part]:
    """The chunks of a RIFF file (WAV, WebP, AVI)."""
    size, position, steps = size_of(stream), 12, 0
    while position + 8 <= size:
        steps += 1
        check_steps(steps, "chunks", MAX_CHUNKS)
        stream.seek(position)
        head = stream.read(8)
        length = int.from_bytes(head[4:], "little")
        yield Part(head[:4], position + 8, length)
        position += 8 + length + length % 2


def check_riff(stream: IO[bytes]) -> None:
    """Refuse a list of headers or metadata that is longer than the file: FFmpeg allocates what its chunks state."""
    size, steps = size_of(stream), 0
    # Ranges that are still to be walked; frames and samples, of which the length may be unknown, are not.
    ranges = [(12, size)]
    while ranges:
        position, end = ranges.pop()
        while position + 8 <= end:
            steps += 1
            check_steps(steps, "chunks")
            stream.seek(position)
            head = stream.read(12)
            length = int.from_bytes(head[4:8], "little")
            after = position + 8 + length + length % 2
            listed = head[:4] == b"LIST" and head[8:12] != b"movi"
            if (listed or end < size) and position + 8 + length > size:
                raise UnreadableItem(f"damaged: a header of {length} bytes in a file of {size}")
            if listed:
                ranges.append((position + 12, min(after, size - 1)))
            position = after


def png_chunks(stream: IO[bytes]) -> Iterator[Part]:
    """The chunks of a PNG file."""
    size, position, steps = size_of(stream), 8, 0
    while position + 8 <= size:
        steps += 1
        check_steps(steps, "chunks", MAX_CHUNKS)
        stream.seek(position)
        head = stream.read(8)
        length = int.from_bytes(head[:4], "big")
        yield Part(head[4:], position + 8, length)
        position += 12 + length


@dataclass(frozen=True, slots=True)
class GifFrame:
    """A frame of a GIF: its stated duration in seconds, and the right and lower edge of its rectangle in pixels."""

    delay: float
    right: int
    bottom: int


def gif_frames(stream: IO[bytes]) -> Iterator[GifFrame]:
    """The frames of a GIF, without decoding them; raises `TruncatedFile` if the file ends inside a frame."""
    blocks = _GifBlocks(size_of(stream))
    stream.seek(0)
    head = stream.read(13)
    if len(head) < 13:
        raise TruncatedFile("the file ends before its first frame")
    position = 13 + _colour_table(head[10])
    delay, found = 0.0, False
    while True:
        blocks.count()
        stream.seek(position)
        kind = stream.read(1)
        if kind == b"!":  # an extension; the graphics control extension has the duration
            label = stream.read(1)
            content = stream.read(5)
            if label == b"\xf9" and len(content) == 5:
                delay = int.from_bytes(content[2:4], "little") / 100
            position = blocks.end(stream, position + 2)
        elif kind == b",":
            head = stream.read(9)
            if len(head) < 9:
                raise TruncatedFile("the file ends inside of a frame")
            position = blocks.end(stream, position + 11 + _colour_table(head[8]))
            left, top, width, height = (int.from_bytes(head[place : place + 2], "little") for place in (0, 2, 4, 6))
            yield GifFrame(delay, left + width, top + height)
            delay, found = 0.0, True
        elif kind == b";" or (not kind and found):  # some writers omit the last byte
            return
        else:
            raise TruncatedFile("the file ends inside of a frame" if found else "the file ends before its first frame")


class _GifBlocks:
    """Counts the blocks of a GIF, of which a long animation has many."""

    def __init__(self, size: int) -> None:
        self.steps = -(size // _GIF_BLOCK)

    def count(self) -> None:
        self.steps += 1
        check_steps(self.steps, "blocks")

    def end(self, stream: IO[bytes], position: int) -> int:
        """The end of a series of blocks, each of which starts with its length."""
        while True:
            self.count()
            stream.seek(position)
            length = stream.read(1)
            if not length:
                raise TruncatedFile("the file ends inside of a frame")
            position += 1 + length[0]
            if not length[0]:
                return position


def _colour_table(flags: int) -> int:
    """Size of a colour table in bytes, from its flags."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def check_mov(stream: IO[bytes]) -> int:
    """Check the counts of an MP4 or QuickTime file; returns the expected end of its last box, 0 if unknown.

    The demuxer of FFmpeg makes an entry for each frame that a table counts, also where the table itself is small.
    """
    end, track = 0, _Track()
    for depth, box in _mov_boxes(stream):
        if not depth:
            end = 0 if box.length < 0 else box.end
        if box.name in (b"trak", b"moof"):
            track.check()
            track = _Track() if box.name == b"trak" else track
        elif box.name in (b"stts", b"ctts", b"stsz", b"stz2", b"trun", b"elst"):
            track.add(box.name, stream, box)
    track.check()
    return end


class _Track:
    """Counts of the tables of a track."""

    def __init__(self) -> None:
        self.frames = self.timed = self.edits = 0
        self.even = False
        """Whether all frames last one unit of time, as samples of uncompressed audio do: FFmpeg groups them."""

    def add(self, name: bytes, stream: IO[bytes], box: Part) -> None:
        stream.seek(box.start)
        head = stream.read(12)
        first, second = int.from_bytes(head[4:8], "big"), int.from_bytes(head[8:12], "big")
        if name == b"elst":
            self.edits += first
        elif name == b"trun":
            self.frames += first
        elif name in (b"stsz", b"stz2"):
            self.frames += second
        else:
            check_steps(first, "entries in a table")
            stream.seek(box.start + 8)
            table = np.frombuffer(stream.read(8 * first), ">u4")
            self.timed = max(self.timed, int(table[: len(table) // 2 * 2 : 2].sum(dtype=np.int64)))
            self.even = self.even or (name == b"stts" and first == 1 and table[1:2].tolist() == [1])

    def check(self) -> None:
        counted = 0 if self.even else max(self.frames, self.timed)
        check_steps(counted, "frames")
        check_steps(self.edits * counted // _USUAL_EDITS, "frames in its edits")


def _mov_boxes(stream: IO[bytes]) -> Iterator[tuple[int, Part]]:
    """Depths and boxes, with those inside of the tables; a box comes before its content."""
    size = size_of(stream)
    ends, position, steps = [size], 0, 0  # ends of the boxes that are open, of which the file is the outermost
    while ends:
        if position + 8 > ends[-1]:
            position = ends.pop()
            continue
        steps += 1
        check_steps(steps, "boxes")
        stream.seek(position)
        head = stream.read(16)
        length, header = int.from_bytes(head[:4], "big"), 8
        if length == 1:
            length, header = int.from_bytes(head[8:16], "big"), 16
        known = length >= header  # 0 means up to the end, and less than its own header is damage
        part = Part(head[4:8], position + header, length - header if known else -1)
        yield len(ends) - 1, part
        if not known:
            position = ends.pop()
        elif part.name in _BOX_PARENTS and len(ends) < _BOX_DEPTH:
            ends.append(min(part.end, ends[-1]))
            position = part.start
        else:
            position = part.end


def check_matroska(stream: IO[bytes]) -> int:
    """Check the number of elements inside the segment; returns its expected end, 0 if unknown (recordings of a
    browser)."""
    size, position, steps, end = size_of(stream), 0, 0, 0
    while position < size:
        steps += 1
        check_steps(steps, "elements")
        stream.seek(position)
        head = stream.read(12)
        width = 9 - head[0].bit_length()
        if width > 4 or len(head) <= width:
            break
        length, taken = _variable_number(head[width:])
        start = position + width + taken
        segment = head[:width] == _SEGMENT and steps == 2
        if segment:
            end = max(0, start + length) if length >= 0 else 0
        elif length < 0:
            break
        position = start if segment else start + length
    return end


def _variable_number(content: bytes) -> tuple[int, int]:
    """A size of Matroska, -1 if unknown, and the number of its bytes."""
    if not content[0]:
        return -1, 0
    width = 9 - content[0].bit_length()
    value = int.from_bytes(content[:width], "big") - (1 << 7 * width)
    return (-1 if value == (1 << 7 * width) - 1 else value), width
