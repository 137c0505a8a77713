"""Owns tar files as far as shards need them: the members of one with where their bytes lie, and writing one.

Headers alone are read, in the formats that writers of shards use (ustar, GNU, pax): a file of a gigabyte is listed
without its content being touched.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from quintet.errors import UsageError

BLOCK = 512
_END = bytes(BLOCK)
_FILES = b"0\x007"
_FOLDER, _LONG_NAME, _PAX, _PAX_GLOBAL, _LONG_LINK = b"5", b"L", b"x", b"g", b"K"
_SPACES = b" " * 8
_LONGEST_NAME = 2**16
# Python itself would take signs, prefixes and underscores too, and a size below zero leads back to the same header.
_OCTAL = re.compile(rb"[0-7]*")
_DECIMAL = re.compile(r"[0-9]{1,19}")


class Member(NamedTuple):
    """A file in a tar file: its name, where its header and its content begin, and the size of its content."""

    name: str
    header: int
    offset: int
    size: int


class Damaged(Exception):
    """The message says where."""


@dataclass
class TarListing:
    """The members of a tar file, or of a part of one, in order. After the last one `problems` and `ended` are whole."""

    content: bytes | mmap.mmap
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Members that are no files, with what they are."""
    ended: bool = False
    """Whether the mark of the end was there."""

    def __iter__(self) -> Iterator[Member]:
        place, length = 0, len(self.content)
        long_name, header, told_size = "", -1, -1
        while place + BLOCK <= length:
            block = self.content[place : place + BLOCK]
            if block == _END:
                self.ended = True
                return
            name, size, kind = _parsed(block, place)
            start = place + BLOCK
            header = place if header < 0 else header
            if kind == _LONG_NAME:
                long_name = self._text(start, size, name).rstrip("\0")
            elif kind == _PAX:
                records = _pax_records(self._text(start, size, name))
                long_name = records.get("path", long_name)
                told_size = int(records.get("size", told_size))
            elif kind not in (_PAX_GLOBAL, _LONG_LINK):
                name, size = long_name or name, size if told_size < 0 else told_size
                if start + size > length:
                    raise Damaged(f"its member {name[:200]!r} should end at byte {start + size}, it has {length}")
                if kind in _FILES:
                    yield Member(name, header, start, size)
                elif kind != _FOLDER:
                    self.problems.append((name, "a link or a device, not a file"))
                long_name, header, told_size = "", -1, -1
            place = start + -(-size // BLOCK) * BLOCK
        if place < length or header >= 0:
            raise Damaged(f"it ends at byte {length}, inside of a member")

    def _text(self, start: int, size: int, name: str) -> str:
        if size > _LONGEST_NAME or start + size > len(self.content):
            raise Damaged(f"what is said of its member {name[:200]!r} is too long or cut off")
        return self.content[start : start + size].decode("utf-8", "replace")


@contextmanager
def open_tar(path: Path, shown: str) -> Iterator[TarListing]:
    """The listing of a file while it is open; `UsageError` that names it as `shown` if it is cut or no tar file."""
    try:
        with path.open("rb") as stream:
            if not os.fstat(stream.fileno()).st_size:
                raise Damaged("it is empty")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield TarListing(content)
    except OSError as error:
        raise UsageError(f"the shard {shown} cannot be opened: {error.strerror}") from None
    except Damaged as error:
        raise UsageError(f"the shard {shown} is cut off or damaged ({error}); copy or make it again") from None


def _parsed(block: bytes, place: int) -> tuple[str, int, bytes]:
    """Name, size and kind."""
    told = _number(block[148:156], place)
    if told != sum(block) - sum(block[148:156]) + sum(_SPACES):
        raise Damaged(f"there is no header of a member at byte {place}")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345] != 0:
        name = block[345:500].split(b"\0", 1)[0] + b"/" + name
    return name.decode("utf-8", "replace"), _number(block[124:136], place), block[156:157]


def _number(text: bytes, place: int) -> int:
    """Octal digits, or, of large ones in GNU's form, the bytes of the number."""
    if text[0] == 0x80:
        return int.from_bytes(text[1:], "big")
    digits = text.split(b"\0", 1)[0].strip()
    if not _OCTAL.fullmatch(digits):
        raise Damaged(f"there is no header of a member at byte {place}")
    return int(digits or b"0", 8)


def _pax_records(text: str) -> dict[str, str]:
    """`path` and `size` of a header of pax, each line of which begins with its own length."""
    lines = (line.partition(" ")[2].partition("=") for line in text.split("\n"))
    records = {name: value for name, _, value in lines if name in ("path", "size")}
    if not _DECIMAL.fullmatch(records.get("size", "0")):
        raise Damaged("the size of a member is no number")
    return records


class TarWriter:
    """Writes files into a tar file in the oldest common format. All that is in it follows from what was added."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.place = 0

    def add(self, name: str, content: bytes) -> Member:
        """Names are short and plain: keys that were made for this."""
        header = bytearray(BLOCK)
        encoded = name.encode("ascii")
        assert len(encoded) <= 100, name
        header[: len(encoded)] = encoded
        header[100:136] = b"0000644\x000000000\x000000000\x00%011o\x00" % len(content)
        header[136:148] = b"00000000000\x00"
        header[148:157] = _SPACES + b"0"
        header[257:265] = b"ustar\x0000"
        header[148:156] = b"%06o\x00 " % sum(header)
        self.stream.write(header)
        self.stream.write(content)
        self.stream.write(bytes(-len(content) % BLOCK))
        member = Member(name, self.place, self.place + BLOCK, len(content))
        self.place = member.offset + len(content) + -len(content) % BLOCK
        return member

    def close(self) -> int:
        """The mark of the end; returns the size of the file."""
        self.stream.write(2 * _END)
        self.place += 2 * BLOCK
        self.stream.flush()
        return self.place
