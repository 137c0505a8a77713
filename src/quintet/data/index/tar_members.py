"""Reader and writer of tar files for shards: lists members with their byte ranges, and writes new files.

Only headers are read, in the formats that writers of shards use (ustar, GNU, pax): a file of a gigabyte is listed
without reading its content.
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

from quintet.common.files import open_regular
from quintet.errors import UsageError

BLOCK = 512
_END = bytes(BLOCK)
_FILES = b"0\x007"
_FOLDER, _LONG_NAME, _PAX, _PAX_GLOBAL, _LONG_LINK = b"5", b"L", b"x", b"g", b"K"
_SPACES = b" " * 8
_LONGEST_NAME = 2**16
"""Most bytes of an extended header, which holds the name and other records."""
_LONGEST_PATH = 2**12
# int() would accept signs, prefixes and underscores too, and a negative size leads back to the same header.
_OCTAL = re.compile(rb"[0-7]*")
_DECIMAL = re.compile(r"[0-9]{1,19}")


class Member(NamedTuple):
    """A file in a tar file: its name, the offsets of its header and its content, and the size of its content."""

    name: str
    header: int
    offset: int
    size: int


class Damaged(Exception):
    """A damaged tar file; the message says where."""


@dataclass
class TarListing:
    """The members of a tar file, or of a part of one, in order; iterating fills `problems` and `ended`."""

    content: bytes | mmap.mmap
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Members that are not files, with the reason."""
    ended: bool = False
    """Whether the end-of-archive block was found."""

    def __iter__(self) -> Iterator[Member]:
        offset, length = 0, len(self.content)
        long_name, header, pax_size = "", -1, -1
        while offset + BLOCK <= length:
            block = self.content[offset : offset + BLOCK]
            if block == _END:
                self.ended = True
                return
            name, size, kind = _parsed(block, offset)
            start = offset + BLOCK
            header = offset if header < 0 else header
            if kind == _LONG_NAME:
                long_name = self._text(start, size, name).rstrip("\0")
            elif kind == _PAX:
                records = _pax_records(self._text(start, size, name))
                long_name = records.get("path", long_name)
                pax_size = int(records.get("size", pax_size))
            elif kind not in (_PAX_GLOBAL, _LONG_LINK):
                name, size = long_name or name, size if pax_size < 0 else pax_size
                if start + size > length:
                    raise Damaged(
                        f"its member {name[:200]!r} should end at byte {start + size}, but the file has {length}"
                    )
                if len(name) > _LONGEST_PATH:
                    self.problems.append((name[:200], f"a name of {len(name)} characters"))
                elif kind in _FILES:
                    yield Member(name, header, start, size)
                elif kind != _FOLDER:
                    self.problems.append((name, "a link or a device, not a file"))
                long_name, header, pax_size = "", -1, -1
            offset = start + -(-size // BLOCK) * BLOCK
        if offset < length or header >= 0:
            raise Damaged(f"it ends at byte {length}, inside a member")

    def _text(self, start: int, size: int, name: str) -> str:
        if size > _LONGEST_NAME or start + size > len(self.content):
            raise Damaged(f"the extended header of its member {name[:200]!r} is too long or truncated")
        return self.content[start : start + size].decode("utf-8", "replace")


@contextmanager
def open_tar(path: Path, label: str) -> Iterator[TarListing]:
    """The listing of an open file; raises `UsageError`, with `label`, if it is truncated or not a tar file."""
    try:
        with open_regular(path) as stream:
            if not os.fstat(stream.fileno()).st_size:
                raise Damaged("it is empty")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield TarListing(content)
    except OSError as error:
        raise UsageError(f"the shard {label} cannot be opened: {error.strerror}") from None
    except Damaged as error:
        raise UsageError(f"the shard {label} is truncated or damaged ({error}); copy or create it again") from None


def _parsed(block: bytes, offset: int) -> tuple[str, int, bytes]:
    """Name, size and type flag of a header."""
    checksum = _number(block[148:156], offset)
    if checksum != sum(block) - sum(block[148:156]) + sum(_SPACES):
        raise Damaged(f"there is no valid header at byte {offset}")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345] != 0:
        name = block[345:500].split(b"\0", 1)[0] + b"/" + name
    return name.decode("utf-8", "replace"), _number(block[124:136], offset), block[156:157]


def _number(text: bytes, offset: int) -> int:
    """A number in octal digits, or in GNU's binary form for large numbers."""
    if text[0] == 0x80:
        return int.from_bytes(text[1:], "big")
    digits = text.split(b"\0", 1)[0].strip()
    if not _OCTAL.fullmatch(digits):
        raise Damaged(f"there is no valid header at byte {offset}")
    return int(digits or b"0", 8)


def _pax_records(text: str) -> dict[str, str]:
    """`path` and `size` of a pax header, each line of which starts with its own length."""
    lines = (line.partition(" ")[2].partition("=") for line in text.split("\n"))
    records = {name: value for name, _, value in lines if name in ("path", "size")}
    if not _DECIMAL.fullmatch(records.get("size", "0")):
        raise Damaged("the size of a member is not a number")
    return records


class TarWriter:
    """Writes files to a tar file in the ustar format. The bytes depend only on the names and contents."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.offset = 0

    def add(self, name: str, content: bytes) -> Member:
        """Add a file; the name is a short ASCII key."""
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
        member = Member(name, self.offset, self.offset + BLOCK, len(content))
        self.offset = member.offset + len(content) + -len(content) % BLOCK
        return member

    def close(self) -> int:
        """Write the end-of-archive blocks; returns the size of the file."""
        self.stream.write(2 * _END)
        self.offset += 2 * BLOCK
        self.stream.flush()
        return self.offset
