"""Structure-aware mutations of files: lengths and counts, nesting, repetition, truncation, swapped and repeated parts.

`structure` finds the parts of a file (chunks, boxes, blocks, lines) and its fields (lengths, counts, numbers) by its
first bytes. `mutated` changes a few of them, and renews check sums, which would otherwise hide the change.
"""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

LARGEST = 2**18
"""Most bytes of a mutated file; repeated parts of a small file show what a large one would do."""

Order = Literal["little", "big"]
Field = tuple[int, int, Order]
"""Position, width in bytes, byte order."""

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NUMBERS = (b"0", b"-1", b"1", b"65536", b"2147483647", b"4294967296", b"9" * 40, b"1e308", b"1e999", b"nan", b"-0.0")
_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"LIST")


@dataclass
class Structure:
    """Parts (start, end) and fields of a file."""

    parts: list[tuple[int, int]] = field(default_factory=list)
    fields: list[Field] = field(default_factory=list)
    text: bool = False


def structure(content: bytes) -> Structure:
    found = Structure()
    if content[:4] in (b"RIFF", b"FORM"):
        _chunks(content, 12, len(content), found, "little" if content[:4] == b"RIFF" else "big")
    elif content[:4] == b"\x89PNG":
        _png(content, found)
    elif content[4:8] in (b"ftyp", b"moov"):
        _boxes(content, 0, len(content), found)
    elif content[:4] == b"\x1aE\xdf\xa3":
        _elements(content, found)
    elif content[:4] == b"glTF":
        found.fields += [(position, 4, "little") for position in (8, 12)]
        _chunks(content, 12, len(content), found, "little", name_first=False)
    elif content[:4] == b"OggS":
        starts = [match.start() for match in re.finditer(b"OggS", content)] + [len(content)]
        found.parts += list(pairwise(starts))
        found.fields += [
            (start + place, width, "little") for start in starts[:-1] for place, width in ((6, 8), (26, 1))
        ]
    elif content[:2] == b"\xff\xd8":
        _segments(content, found)
    elif content[257:262] == b"ustar":
        found.parts += [(start, start + 512) for start in range(0, len(content) - 511, 512)]
    elif _is_text(content):
        lines = [match.span() for match in re.finditer(rb"[^\n]*\n?", content) if match.end() > match.start()]
        found.parts, found.text = lines, True
    else:
        step = max(1, len(content) // 16)
        found.parts += [(start, min(start + step, len(content))) for start in range(0, len(content), step)]
        # Headers come first, or last (parquet); any of their bytes may be a count.
        ends = [*range(min(len(content) - 4, 128)), *range(max(0, len(content) - 64), max(0, len(content) - 4))]
        found.fields += [(place, width, order) for place in ends for width, order in ((2, "little"), (4, "little"))]
        found.fields += [(place, 4, "big") for place in ends]
    return found


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def _chunks(
    content: bytes, position: int, end: int, found: Structure, order: Order, *, name_first: bool = True
) -> None:
    while position + 8 <= end:
        place = position + 4 if name_first else position
        length = int.from_bytes(content[place : place + 4], order)
        found.fields.append((place, 4, order))
        found.fields += [(at, 2, order) for at in range(position + 8, min(position + 40, end - 2), 2)]
        after = min(end, position + 8 + length + length % 2)
        found.parts.append((position, after))
        if content[position : position + 4] in _PARENTS:
            _chunks(content, position + 12, after, found, order)
        position = after


def _png(content: bytes, found: Structure) -> None:
    position = 8
    while position + 12 <= len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        found.fields.append((position, 4, "big"))
        found.fields += [(at, 4, "big") for at in range(position + 8, min(position + 20, len(content) - 4), 4)]
        found.parts.append((position, min(len(content), position + 12 + length)))
        position += 12 + length


def _boxes(content: bytes, position: int, end: int, found: Structure) -> None:
    while position + 8 <= end:
        length = max(8, int.from_bytes(content[position : position + 4], "big"))
        after = min(end, position + length)
        found.fields.append((position, 4, "big"))
        found.parts.append((position, after))
        if content[position + 4 : position + 8] in _PARENTS:
            _boxes(content, position + 8, after, found)
        elif content[position + 4 : position + 8] != b"mdat":
            found.fields += [(at, 4, "big") for at in range(position + 8, min(position + 48, after - 3), 4)]
        position = after


def _elements(content: bytes, found: Structure) -> None:
    position = 0
    while position + 2 < len(content) and content[position]:
        name_end = position + 9 - content[position].bit_length()
        if name_end >= len(content) or not content[name_end]:
            return
        width = 9 - content[name_end].bit_length()
        length = int.from_bytes(content[name_end : name_end + width], "big") - (1 << 7 * width)
        found.fields.append((name_end, width, "big"))
        inside = content[position:name_end] in (b"\x18S\x80g", b"\x16T\xaek", b"\xae", b"\x1fC\xb6u", b"\xe0")
        after = min(len(content), name_end + width + length)
        found.parts.append((position, after))
        position = name_end + width if inside else after


def _segments(content: bytes, found: Structure) -> None:
    position = 2
    while position + 4 <= len(content) and content[position] == 0xFF:
        length = int.from_bytes(content[position + 2 : position + 4], "big")
        found.fields += [(position + 2, 2, "big"), (position + 5, 2, "big"), (position + 7, 2, "big")]
        found.parts.append((position, min(len(content), position + 2 + length)))
        position += 2 + length


def mutated(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """A file after a few changes; `others` are files of the same reader, of which parts are inserted."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        found = structure(content)
        kinds: list[Callable[[bytes, Structure, random.Random], bytes]] = [
            *(_set_number if found.text else _set_field for _ in range(3)),
            _repeat_part,
            _drop_part,
            _swap_parts,
            _nest_part,
            _truncate,
            _flip,
            _swap_fields,
            lambda before, parts, random: _splice(before, parts, random, others),
        ]
        content = rng.choice(kinds)(content, found, rng)[:LARGEST]
    return _renewed(content) if rng.random() < 0.9 else content


def _set_field(content: bytes, found: Structure, rng: random.Random) -> bytes:
    if not found.fields:
        return _flip(content, found, rng)
    place, width, order = rng.choice(found.fields)
    most = 256**width - 1
    now = int.from_bytes(content[place : place + width], order)
    value = rng.choice(
        (0, 1, 7, most, most // 2, most // 2 + 1, now + 1, now - 1, now * 2, len(content), rng.randint(0, most))
    )
    return content[:place] + (value % (most + 1)).to_bytes(width, order) + content[place + width :]


def _swap_fields(content: bytes, found: Structure, rng: random.Random) -> bytes:
    if len(found.fields) < 2:
        return _swap_parts(content, found, rng)
    (first, width, _), (second, _, _) = rng.choice(found.fields), rng.choice(found.fields)
    changed = bytearray(content)
    one, two = content[first : first + width], content[second : second + width]
    changed[first : first + width], changed[second : second + width] = two, one
    return bytes(changed)


def _set_number(content: bytes, found: Structure, rng: random.Random) -> bytes:
    numbers = list(_NUMBER.finditer(content))
    if not numbers:
        return _flip(content, found, rng)
    start, end = rng.choice(numbers).span()
    return content[:start] + rng.choice(_NUMBERS) + content[end:]


def _part(found: Structure, content: bytes, rng: random.Random) -> tuple[int, int]:
    return rng.choice(found.parts) if found.parts else (0, len(content))


def _repeat_part(content: bytes, found: Structure, rng: random.Random) -> bytes:
    start, end = _part(found, content, rng)
    times = min(rng.choice((1, 2, 10, 100, 10_000)), LARGEST // max(1, end - start))
    return content[:end] + content[start:end] * times + content[end:]


def _drop_part(content: bytes, found: Structure, rng: random.Random) -> bytes:
    start, end = _part(found, content, rng)
    return content[:start] + content[end:]


def _swap_parts(content: bytes, found: Structure, rng: random.Random) -> bytes:
    (first, first_end), (second, second_end) = sorted((_part(found, content, rng), _part(found, content, rng)))
    if first_end > second:
        return content
    middle = content[first_end:second]
    return content[:first] + content[second:second_end] + middle + content[first:first_end] + content[second_end:]


def _nest_part(content: bytes, found: Structure, rng: random.Random) -> bytes:
    """A part inside of itself, or brackets inside of brackets, many times."""
    if found.text:
        place = rng.randint(0, len(content))
        return (
            content[:place]
            + rng.choice((b"[", b"{", b'{"a":', b"(", b"- ", b"&a [*a,")) * rng.choice((3, 1000, 20_000))
            + content[place:]
        )
    start, end = _part(found, content, rng)
    head = content[start : start + 8]
    return content[:start] + head * rng.choice((1, 8, 1000)) + content[start:end] + content[end:]


def _truncate(content: bytes, found: Structure, rng: random.Random) -> bytes:
    return content[: rng.randint(0, len(content))]


def _flip(content: bytes, found: Structure, rng: random.Random) -> bytes:
    if not content:
        return b"\0"
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def _splice(content: bytes, found: Structure, rng: random.Random, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    start, end = _part(structure(other), other, rng)
    place = _part(found, content, rng)[0]
    return content[:place] + other[start:end] + content[place:]


# --- check sums ---------------------------------------------------------------------------------------------------


def _renewed(content: bytes) -> bytes:
    if content[:4] == b"\x89PNG":
        return _renewed_png(content)
    return _renewed_tar(content) if content[257:262] == b"ustar" else content


def _renewed_png(content: bytes) -> bytes:
    changed, position = bytearray(content), 8
    while position + 12 <= len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        end = position + 8 + length
        if end + 4 <= len(content):
            changed[end : end + 4] = struct.pack(">I", zlib.crc32(content[position + 4 : end]))
        position = end + 4
    return bytes(changed)


def _renewed_tar(content: bytes) -> bytes:
    changed = bytearray(content)
    for start in range(0, len(content) - 511, 512):
        if content[start + 257 : start + 262] == b"ustar":
            total = sum(content[start : start + 148]) + 8 * 32 + sum(content[start + 156 : start + 512])
            changed[start + 148 : start + 156] = b"%06o\0 " % total
    return bytes(changed)
