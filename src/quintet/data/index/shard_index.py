"""Index of a set of shards: the name, the caption, and the byte range of each item.

An index is one safetensors file: columns of numbers, and columns of texts stored as their concatenated bytes with the
end of each text. It is memory-mapped, so a million items open at once, use no memory per process and are shared by all
data workers. It lists its shards with their sizes and, where known, a hash of the media in them. Opening it checks its
own hash: a damaged index is an error, never a wrong item.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.common import files
from quintet.errors import UsageError

INDEX_NAME = "index.safetensors"
FORMAT = "2"
IMAGE_SEQUENCE = "film"
"""Kind of an item that is a sequence of numbered images; the kind of any other item is its extension."""

HASHED_SEED = 42
"""The split seed (`data.split_seed`) whose hashes of the names are stored: computing a million takes a second."""
_HASHED_WITH = f"{HASHED_SEED}\n".encode()

Column = npt.NDArray[Any]
_NUMBERS = {"shard": "I32", "offset": "I64", "size": "I64", "kind": "U8", "split": "U8", "hash": "I64"}
_TEXTS = ("names", "texts", "extras")
_TYPES: dict[str, np.dtype[Any]] = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8"), "U8": np.dtype("u1")}
_LARGEST_HEADER = 2**28


class Shard(NamedTuple):
    """One shard of a set: its path relative to the root, its size, and a hash of its media, empty if unknown."""

    name: str
    size: int
    sha256: str = ""


class Row(NamedTuple):
    """One item: its byte range in a shard, and its metadata."""

    shard: int
    offset: int
    size: int
    name: str
    kind: str
    text: str | None
    split: str | None
    extra: dict[str, Any]


class IndexBuilder:
    """Collects rows and writes them as an index."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []
        self.skipped: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.names: dict[str, int] = {}
        """The row of each name."""
        self._kinds: dict[str, int] = {}
        self._splits: dict[str | None, int] = {None: 0}
        self._numbers = {name: array({"I32": "i", "I64": "q", "U8": "B"}[kind]) for name, kind in _NUMBERS.items()}
        self._texts = {name: bytearray() for name in _TEXTS}
        self._ends = {name: array("q") for name in _TEXTS}

    def __len__(self) -> int:
        return len(self._numbers["shard"])

    def add(self, row: Row) -> None:
        """Add one item; raises an error if its name exists already."""
        if row.name in self.names:
            other = self.shards[self._numbers["shard"][self.names[row.name]]].name
            raise UsageError(
                f"two items are named {row.name!r}, in the shards {other} and {self.shards[row.shard].name}; names "
                "must be unique in a set: rename one, or remove one of the shards"
            )
        self.names[row.name] = len(self)
        kind = _code(self._kinds, row.kind, "kinds of files")
        split = _code(self._splits, row.split, "splits")
        hashed = name_hash(hashlib.sha256(_HASHED_WITH), row.name.encode())
        for name, number in zip(_NUMBERS, (row.shard, row.offset, row.size, kind, split, hashed), strict=True):
            self._numbers[name].append(number)
        extra = json.dumps(row.extra, ensure_ascii=False) if row.extra else ""
        for name, text in zip(_TEXTS, (row.name, row.text or "", extra), strict=True):
            self._texts[name] += text.encode("utf-8", "replace")
            self._ends[name].append(len(self._texts[name]))

    def write(self, path: Path) -> None:
        """Write the index atomically."""
        columns: dict[str, Column] = {
            name: np.frombuffer(self._numbers[name], _TYPES[kind]) for name, kind in _NUMBERS.items()
        }
        for name in _TEXTS:
            columns[name] = np.frombuffer(bytes(self._texts[name]), np.uint8)
            columns[f"{name}_end"] = np.frombuffer(self._ends[name], _TYPES["I64"])
        about = {
            "format": FORMAT,
            "shards": json.dumps(self.shards),
            "kinds": json.dumps(list(self._kinds)),
            "splits": json.dumps(list(self._splits)),
            "skipped": json.dumps(self.skipped, ensure_ascii=False),
            "notes": json.dumps(self.notes, ensure_ascii=False),
        }
        files.replace_bytes(path, _serialised(columns, about))


def _serialised(columns: Mapping[str, Column], about: Mapping[str, str]) -> bytes:
    """A safetensors file, equal bytes for equal columns. Columns of wide types come first, so that all are aligned."""
    ordered = sorted(columns, key=lambda name: (-columns[name].itemsize, name))
    content = b"".join(columns[name].tobytes() for name in ordered)
    header: dict[str, Any] = {"__metadata__": {**about, "sha256": hashlib.sha256(content).hexdigest()}}
    position = 0
    for name in ordered:
        end = position + columns[name].nbytes
        kind = next(kind for kind, dtype in _TYPES.items() if dtype == columns[name].dtype)
        header[name] = {"dtype": kind, "shape": [len(columns[name])], "data_offsets": [position, end]}
        position = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + content


def joined_hash(hashes: Sequence[str]) -> str:
    """The hash of a shard from the hashes of its items, in order; empty if one of them is unknown."""
    return hashlib.sha256("\n".join(hashes).encode("utf-8", "replace")).hexdigest() if all(hashes) else ""


def name_hash(start: Any, name: bytes) -> int:
    """A number below 2**48 that decides the split of a name; `start` is a hash object that has the seed."""
    digest = start.copy()
    digest.update(name)
    return int.from_bytes(digest.digest()[:6], "big")


def _code(codes: dict[Any, int], value: Any, what: str) -> int:
    code = codes.setdefault(value, len(codes))
    if code > 255:
        raise UsageError(f"the items have more than 256 different {what}")
    return code


@dataclass
class ShardIndex:
    """An open index: its columns by name, and the metadata of the set."""

    path: Path
    shards: list[Shard]
    kinds: list[str]
    splits: list[str | None]
    skipped: list[tuple[str, str]]
    notes: list[str]
    columns: Mapping[str, Column]
    digest: str
    """Hash of its full content; part of the fingerprint of a run's data."""

    @classmethod
    def open(cls, path: Path) -> ShardIndex:
        try:
            about, columns = _mapped(path)
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format'][:20]}, this version reads {FORMAT}")
            shards = [Shard(str(name), int(size), str(sha256)) for name, size, sha256 in json.loads(about["shards"])]
            kinds, splits = _words(about["kinds"]), _words(about["splits"])
            _check(columns, shards, len(kinds), len(splits))
            skipped = [(str(name), str(reason)) for name, reason in json.loads(about["skipped"])]
            digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
            return cls(path, shards, [str(kind) for kind in kinds], splits, skipped, _texts(about), columns, digest)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise _unusable(path, error) from None

    def __len__(self) -> int:
        return len(self.columns["shard"])

    def __reduce__(self) -> tuple[Any, ...]:
        """Data workers that are not forked open the file themselves."""
        return ShardIndex.open, (self.path,)

    def row(self, position: int) -> Row:
        columns = self.columns
        return Row(
            int(columns["shard"][position]),
            int(columns["offset"][position]),
            int(columns["size"][position]),
            self._text("names", position).decode("utf-8", "replace"),
            self.kinds[columns["kind"][position]],
            self._text("texts", position).decode("utf-8", "replace") or None,
            self.splits[columns["split"][position]],
            self._extra(position),
        )

    def names(self, positions: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """The names at these positions; faster than row by row."""
        blob = self.columns["names"].data
        ends = self.columns["names_end"]
        starts = np.where(positions > 0, ends[positions - 1], 0)
        for start, end in zip(starts.tolist(), ends[positions].tolist(), strict=True):
            yield bytes(blob[start:end])

    def hashes(self, positions: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.float64]:
        """The number in [0, 1) of each name that decides its split; stored for the default seed."""
        if seed == HASHED_SEED:
            return np.asarray(self.columns["hash"][positions] / 2.0**48)
        start = hashlib.sha256(f"{seed}\n".encode())
        return np.array([name_hash(start, name) for name in self.names(positions)], np.float64) / 2.0**48

    def _extra(self, position: int) -> dict[str, Any]:
        """Parsed on access: parsing those of a million rows would delay the start of a run."""
        text = self._text("extras", position)
        try:
            extra = json.loads(text) if text else {}
            if not isinstance(extra, dict):
                raise ValueError(f"the metadata of item {position} is not a JSON object")
        except (ValueError, RecursionError) as error:
            raise _unusable(self.path, error) from None
        return extra

    def _text(self, name: str, position: int) -> bytes:
        ends = self.columns[f"{name}_end"]
        start = int(ends[position - 1]) if position else 0
        return bytes(self.columns[name][start : int(ends[position])])


def _unusable(path: Path, error: Exception) -> UsageError:
    return UsageError(
        f"{path} is not a usable index of shards ({files.one_line(error)}); delete it, and it is built again from the "
        "shards"
    )


def _words(text: str) -> list[Any]:
    words = json.loads(text)
    if not isinstance(words, list) or not all(isinstance(word, str | None) for word in words):
        raise ValueError("its list of kinds or splits is not a list of texts")
    return words


def _texts(about: Mapping[str, str]) -> list[str]:
    return [str(note) for note in json.loads(about["notes"])]


def _mapped(path: Path) -> tuple[dict[str, str], dict[str, Column]]:
    """The metadata of the header, and the memory-mapped columns."""
    content = np.memmap(path, np.uint8, "r")
    length = int(content[:8].view("<u8")[0]) if len(content) >= 8 else 0
    if not 0 < length <= min(_LARGEST_HEADER, len(content) - 8):
        raise ValueError("its header is truncated")
    header = json.loads(bytes(content[8 : 8 + length]))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    about = header.pop("__metadata__")
    columns = {}
    for name, kind in {**_NUMBERS, **dict.fromkeys(_TEXTS, "U8"), **{f"{name}_end": "I64" for name in _TEXTS}}.items():
        column = header[name]
        start, end = (8 + length + int(position) for position in column["data_offsets"])
        if column["dtype"] != kind or not 8 + length <= start <= end <= len(content):
            raise ValueError(f"its column '{name}' is truncated or has another type")
        columns[name] = np.asarray(content[start:end]).view(_TYPES[kind])
    if hashlib.sha256(content[8 + length :].data).hexdigest() != about["sha256"]:
        raise ValueError("its content does not match its hash")
    return about, columns


def _check(columns: Mapping[str, Column], shards: Sequence[Shard], kinds: int, splits: int) -> None:
    """Check that no row points outside its column or its shard, whatever the bytes are."""
    rows = len(columns["shard"])
    for name in (*_NUMBERS, *(f"{text}_end" for text in _TEXTS)):
        if len(columns[name]) != rows:
            raise ValueError(f"its column '{name}' has {len(columns[name])} rows, others have {rows}")
    for name in _TEXTS:
        ends = columns[f"{name}_end"]
        total = int(ends[-1]) if rows else 0
        if total != len(columns[name]) or (rows and (ends[0] < 0 or (np.diff(ends) < 0).any())):
            raise ValueError(f"its column '{name}' is damaged")
    if not rows:
        return
    shard = columns["shard"]
    if (
        shard.min() < 0
        or shard.max() >= len(shards)
        or columns["kind"].max() >= kinds
        or columns["split"].max() >= splits
    ):
        raise ValueError("a row names a shard, kind or split that is not in its list")
    sizes = np.array([each.size for each in shards], np.int64)[shard]
    if columns["offset"].min() < 0 or columns["size"].min() < 0 or (columns["offset"] > sizes - columns["size"]).any():
        raise ValueError("a row points outside its shard")
