"""Parsers of captions: `metadata.jsonl`, `metadata.csv`, a `.txt` beside a file, the name of a folder, lists of lines.

People write these files by hand, with spreadsheets and with scripts. Whatever bytes they hold, parsing never fails: it
returns rows, and the skipped lines with the reasons. Only `read_lines`, for a file that the user names, raises errors.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintet.common.files import read_regular
from quintet.errors import UsageError

FILE_COLUMN, TEXT_COLUMN, SPLIT_COLUMN = "file_name", "text", "split"
_CSV_DELIMITERS = (",", ";", "\t")  # spreadsheets use the separator of their locale
_CAPTION_BYTES = 2**16
_METADATA_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Row:
    """One line of metadata. `file` is as written, not yet resolved."""

    line: int
    file: str
    texts: tuple[str, ...]
    split: str | None
    extra: dict[str, Any]


@dataclass(slots=True)
class Metadata:
    """The parsed lines of a metadata file; `skipped` has line numbers, 0 for the file itself."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_metadata(path: Path) -> Metadata:
    """Read `metadata.jsonl` or `metadata.csv`, depending on the extension."""
    try:
        if path.stat().st_size > _METADATA_BYTES:
            return Metadata(skipped=[(0, "larger than 1 GB; cut it into one for each subfolder")])
        data = read_regular(path)
    except OSError as error:
        return Metadata(skipped=[(0, f"cannot be opened: {error.strerror}")])
    return parse_csv(data) if path.suffix.lower() == ".csv" else parse_jsonl(data)


def parse_jsonl(data: bytes) -> Metadata:
    """Parse one JSON object per line."""
    metadata = Metadata()
    seen: dict[str, None] = {}
    for number, line in enumerate(_decoded(data, metadata).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            metadata.skipped.append((number, "not a line of JSON"))
            continue
        if not isinstance(fields, dict):
            metadata.skipped.append((number, "not a JSON object"))
            continue
        seen.update(dict.fromkeys(fields))
        _add_row(metadata, number, fields)
    metadata.columns = [encodable_text(name) for name in seen]
    return metadata


def parse_csv(data: bytes) -> Metadata:
    """Parse a header line with the names of the columns, then one row per file."""
    metadata = Metadata()
    text = _decoded(data, metadata)
    header, delimiter = _csv_header(text)
    metadata.columns = header
    if FILE_COLUMN not in header:
        named = ", ".join(header[:8]) or "nothing"
        metadata.skipped.append((1, f"no column {FILE_COLUMN}: the first line names {named}"))
        return metadata
    for number, cells in _csv_rows(text, delimiter, metadata):
        if len(cells) > len(header):
            hint = "quote a text that contains the separator"
            metadata.skipped.append((number, f"{len(cells)} fields where the header has {len(header)}; {hint}"))
        else:
            _add_row(metadata, number, dict(zip(header, cells, strict=False)))
    return metadata


def read_caption(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The captions in a `.txt` file: one per line, without blank lines."""
    try:
        data = read_regular(path, _CAPTION_BYTES)
    except OSError:
        return ()
    return captions_of(decoded(data).split("\n"))


def folder_caption(name: str) -> str:
    """The name of a class folder as a caption."""
    return " ".join(name.replace("_", " ").replace("-", " ").split())


def captions_of(value: object) -> tuple[str, ...]:
    """The captions in a metadata value: a text or a list of texts; other values are ignored."""
    if value is None:
        return ()
    values: Sequence[object] = value if isinstance(value, list | tuple) else [value]
    texts = (encodable_text(str(text)).strip() for text in values if _is_textual(text))
    return tuple(text for text in texts if text)


def encodable_text(text: str) -> str:
    """The text without lone surrogates, which JSON can contain and UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _is_textual(value: object) -> bool:
    """Whether a value is a text or a number; NaN is a missing caption in many tables."""
    return isinstance(value, str | int) or (isinstance(value, float) and not math.isnan(value))


def _add_row(metadata: Metadata, number: int, fields: dict[str, Any]) -> None:
    file = fields.get(FILE_COLUMN)
    if not isinstance(file, str) or not file.strip():
        metadata.skipped.append((number, f"no {FILE_COLUMN}"))
        return
    split = captions_of(fields.get(SPLIT_COLUMN))
    extra = {name: value for name, value in fields.items() if name not in (FILE_COLUMN, TEXT_COLUMN, SPLIT_COLUMN)}
    texts = captions_of(fields.get(TEXT_COLUMN))
    metadata.rows.append(Row(number, file.strip(), texts, split[0] if split else None, extra))


def _csv_header(text: str) -> tuple[list[str], str]:
    headers = {delimiter: _first_row(text, delimiter) for delimiter in _CSV_DELIMITERS}
    chosen = next((delimiter for delimiter, header in headers.items() if FILE_COLUMN in header), ",")
    return headers[chosen], chosen


def _first_row(text: str, delimiter: str) -> list[str]:
    try:
        return [name.strip() for name in next(csv.reader(io.StringIO(text), delimiter=delimiter), [])]
    except csv.Error:
        return []


def _csv_rows(text: str, delimiter: str, metadata: Metadata) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    header_read = False
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            metadata.skipped.append((reader.line_num, f"not a line of CSV: {error}"))
            continue
        if header_read and any(cell.strip() for cell in cells):
            yield reader.line_num, cells
        header_read = True


def decoded(data: bytes) -> str:
    """The bytes as text; never fails."""
    return _decoded(data, Metadata())


def _decoded(data: bytes, metadata: Metadata) -> str:
    """The bytes as text with `\\n` line ends. Each line that is not UTF-8 is decoded as Latin-1."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16", "replace")
    else:
        data = data.removeprefix(codecs.BOM_UTF8)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = "\n".join(_decoded_line(line) for line in data.split(b"\n"))
            metadata.notes.append("some lines are not UTF-8 and were read as Latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decoded_line(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def read_lines(path: Path, what: str, noun: str) -> list[str]:
    """The non-empty lines of a text file; `what` is the option that names the file, `noun` what a line holds."""
    try:
        text = read_regular(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{what}: {path} cannot be read: {reason}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{what}: {path} is empty; write one {noun} per line")
    return lines
