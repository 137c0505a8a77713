"""Parsers of captions: `metadata.jsonl`, `metadata.csv`, a `.txt` beside a file, the name of a folder, lists of lines.

People write these files by hand, with spreadsheets and with scripts. Whatever bytes they hold, parsing never fails: it
returns rows, the skipped lines with the reasons, and why the file as a whole cannot be used. Only `read_lines`, for a
file that the user names, raises errors.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintet.common.files import read_regular
from quintet.errors import UsageError

FILE_COLUMN, TEXT_COLUMN, SPLIT_COLUMN = "file_name", "text", "split"
_CSV_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}  # spreadsheets use the separator of their locale
_LIKE_FILE = frozenset(
    ("filename", "file", "filepath", "path", "name", "image", "imagepath", "img", "audio", "video", "mesh", "key")
)
_LIKE_TEXT = frozenset(
    ("text", "texts", "caption", "captions", "prompt", "description", "label", "sentence", "transcription", "title")
)
_LIKE_SPLIT = frozenset(("split", "splits"))
_OTHER_QUOTES = "'`\u00b4\u2018\u2019\u201c\u201d"
_OPEN_QUOTE = "has a quote in line {} that is not closed; close it, or write a quote inside a text twice"
_SPACE_BEFORE_QUOTE = "has a space before a quote in line {}; remove the space, or put quotes around the whole cell"
_TEXT_AFTER_QUOTE = (
    "has text after a closing quote in line {}; put quotes around the whole cell, and write a quote inside it twice, "
    "without a backslash"
)
_CUT_QUOTE = (
    "has the separator inside quotes in line {}, but the quotes are not around the whole cell; put quotes around it, "
    "and write a quote inside it twice, without a backslash"
)
_CAPTION_BYTES = 2**16
_METADATA_BYTES = 2**30
_SHOWN = 80


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
    """The parsed lines of a metadata file; `skipped` has line numbers, 0 for the file itself.

    `problem` says why the file cannot be used; it continues a sentence that begins with the name of the file.
    """

    rows: list[Row] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: str | None = None


def read_metadata(path: Path) -> Metadata:
    """Read `metadata.jsonl` or `metadata.csv`, depending on the extension."""
    try:
        if path.stat().st_size > _METADATA_BYTES:
            return _unusable("larger than 1 GB; cut it into one for each subfolder", "is ")
        data = read_regular(path)
    except OSError as error:
        return _unusable(f"cannot be opened: {error.strerror}")
    return parse_csv(data) if path.suffix.lower() == ".csv" else parse_jsonl(data)


def _unusable(reason: str, verb: str = "") -> Metadata:
    return Metadata(skipped=[(0, reason)], problem=verb + reason)


def parse_jsonl(data: bytes) -> Metadata:
    """Parse one JSON object per line."""
    metadata = Metadata()
    seen: dict[str, None] = {}
    names: list[str] = []  # keys of the last object that was read, with repetitions: the outermost one ends last
    repeated: str | None = None

    def fields_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names[:] = [name for name, _ in pairs]
        return dict(pairs)

    text = _decoded(data, metadata)
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line, object_pairs_hook=fields_of)
        except (ValueError, RecursionError):
            metadata.skipped.append((number, "not a line of JSON"))
            continue
        if not isinstance(fields, dict):
            metadata.skipped.append((number, "not a JSON object"))
            continue
        seen.update(dict.fromkeys(fields))
        if repeated is None and (key := _repeated(names)) is not None:
            repeated = f"has the key '{key}' twice in line {number}; keep one"
        _add_row(metadata, number, fields)
    metadata.columns = [encodable_text(name) for name in seen]
    metadata.problem = repeated or _jsonl_problem(text, metadata)
    _note_columns(metadata)
    return metadata


def _repeated(names: Sequence[str]) -> str | None:
    """The first name that is read and occurs twice: which of the two is meant cannot be known."""
    return next((name for name in (FILE_COLUMN, TEXT_COLUMN, SPLIT_COLUMN) if names.count(name) > 1), None)


def _jsonl_problem(text: str, metadata: Metadata) -> str | None:
    if text.lstrip()[:1] == "[" and text.rstrip()[-1:] == "]" and len(metadata.rows) <= 1:
        return "is a JSON array; write one JSON object per line"
    if metadata.rows:
        return None
    if metadata.columns and FILE_COLUMN not in metadata.columns:
        return f"has no key '{FILE_COLUMN}'; {_renamed(metadata.columns, _LIKE_FILE, 'its objects have')}"
    return _no_rows(text, metadata, f'one object per line, such as {{"{FILE_COLUMN}": "a.png", "{TEXT_COLUMN}": "…"}}')


def parse_csv(data: bytes) -> Metadata:
    """Parse a header line with the names of the columns, then one row per file."""
    metadata = Metadata()
    text = _decoded(data, metadata)
    header, delimiter = _csv_header(text)
    metadata.columns = header
    if FILE_COLUMN not in header:
        named = ", ".join(header[:8]) or "nothing"
        metadata.skipped.append((1, f"no column {FILE_COLUMN}: the first line names {named}"))
        metadata.problem = _header_problem(text, header)
        return metadata
    if (column := _repeated(header)) is not None:
        metadata.problem = f"has the column '{column}' twice; rename or remove one"
        return metadata
    for number, cells in _csv_rows(text, delimiter, metadata):
        if len(cells) > len(header):
            hint = "quote a text that contains the separator"
            metadata.skipped.append((number, f"{len(cells)} fields where the header has {len(header)}; {hint}"))
        else:
            _add_row(metadata, number, dict(zip(header, cells, strict=False)))
    if metadata.problem is None and not metadata.rows:
        metadata.problem = _no_rows(text, metadata, "one line per file below the header")
    _note_columns(metadata)
    return metadata


def _header_problem(text: str, header: Sequence[str]) -> str:
    """Why a CSV file without the column of the files cannot be used, and what to change."""
    wanted = f"'{FILE_COLUMN},{TEXT_COLUMN}'"
    if not text.strip() or "\0" in text:
        return _no_rows(text, Metadata(), f"a header line {wanted} and one line per file")
    if any("\n" in cell for cell in header):
        return _OPEN_QUOTE.format(1)
    if any(cell.strip(_OTHER_QUOTES) == FILE_COLUMN for cell in header):
        return 'has other quotes than " around its cells; use double quotes, or none'
    if len(header) == 1 and FILE_COLUMN in header[0]:
        return f"has no column '{FILE_COLUMN}'; separate the columns with a comma, a semicolon or a tab"
    if any(re.search(r"\w\.\w{1,5}$", cell) for cell in header):
        return f"has no header line; write {wanted} above its first line"
    return f"has no column '{FILE_COLUMN}'; {_renamed(header, _LIKE_FILE, 'its first line names')}"


def _renamed(columns: Sequence[str], near: frozenset[str], seen: str) -> str:
    """The advice to rename a column whose name is almost right, or the names that there are."""
    for column in columns:
        if re.sub(r"[^a-z]", "", column.lower()) in near:
            return f"rename '{column[:40]}'"
    return f"{seen} {', '.join(column[:40] for column in columns[:8])}"


def _no_rows(text: str, metadata: Metadata, wanted: str) -> str:
    if "\0" in text:
        return "is not UTF-8 text; save it as UTF-8"
    if metadata.skipped:
        line, reason = metadata.skipped[0]
        return f"has no usable line, for example line {line}: {reason}"
    return f"is empty; write {wanted}, or delete it"


def _note_columns(metadata: Metadata) -> None:
    """Captions and splits are read from one column each; say so if another one looks like it."""
    if not metadata.rows:
        return
    for column, near, what in ((TEXT_COLUMN, _LIKE_TEXT, "captions"), (SPLIT_COLUMN, _LIKE_SPLIT, "splits")):
        advice = _renamed(metadata.columns, near, "")
        if column not in metadata.columns and advice.startswith("rename"):
            metadata.notes.append(f"there is no '{column}'; if it holds the {what}, {advice} to '{column}'")


def read_caption(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The captions in a `.txt` file: one per line, without blank lines."""
    try:
        data = read_regular(path, _CAPTION_BYTES)
    except OSError:
        return ()
    return captions_of(decoded(data).split("\n"))


def equal_captions(count: int, what: str, text: str) -> str:
    """The warning that all captions are equal: usually a mistake, and nothing can be learned from such captions."""
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return f"all {count} {what} have the same caption {shown!r}: a model cannot learn what texts mean from it"


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
    lines: list[str] = []  # of the current row
    reader = csv.reader(_recorded(io.StringIO(text), lines), delimiter=delimiter)
    quoting = _Quoting(delimiter, metadata.columns)
    header_read = False
    while True:
        lines.clear()
        try:
            cells = next(reader)
            problem = quoting.problem(lines)
        except StopIteration:
            break
        except csv.Error as error:
            metadata.skipped.append((reader.line_num, f"not a line of CSV: {error}"))
            cells = []
            problem = quoting.problem(lines) if len(lines) > 1 else None
        first_line = reader.line_num - len(lines) + 1
        if problem is not None:
            metadata.problem = problem.format(first_line)
            return
        if header_read and any(cell.strip() for cell in cells):
            quoting.note_cut(first_line, lines, cells)
            yield reader.line_num, cells
        header_read = True
    if quoting.cut:
        count, first = len(quoting.cut), quoting.cut[0]
        which = f"line {first}" if count == 1 else f"{count} lines, the first {first},"
        separator = _CSV_DELIMITERS[delimiter]
        metadata.notes.append(
            f"{which} may have an unquoted {separator} in '{TEXT_COLUMN}': the next cell begins with a space; put "
            f"quotes around a text that contains a {separator}"
        )


def _recorded(stream: Iterable[str], lines: list[str]) -> Iterator[str]:
    for line in stream:
        lines.append(line)
        yield line


class _Quoting:
    """Checks of the rows of a CSV file: wrong quotes or none move the ends of cells, and texts would be cut in silence.

    A quote in the middle of a cell without quotes is part of its text, as in `a 12" disc`.
    """

    def __init__(self, delimiter: str, header: Sequence[str]) -> None:
        self.cut: list[int] = []
        """Rows whose text may end at a separator that was meant as part of it."""
        self._delimiter = delimiter
        self._text = header.index(TEXT_COLUMN) if TEXT_COLUMN in header else None
        self._cell = re.compile(rf'("[^"]*(?:""[^"]*)*"|[^{delimiter}]*)(?:{delimiter}|$)', re.DOTALL)

    def problem(self, lines: Sequence[str]) -> str | None:
        """What is wrong with the quotes of a row, with a place for its line; None if nothing is."""
        if not any('"' in line for line in lines):
            return None
        try:
            if len([*csv.reader(lines, delimiter=self._delimiter, strict=True)]) != 1:
                return _OPEN_QUOTE
        except csv.Error as error:
            # An open quote makes the rows that follow part of its text.
            is_open = len(lines) > 1 or "end of data" in str(error)
            return _OPEN_QUOTE if is_open else _TEXT_AFTER_QUOTE
        cells = self._written(lines)
        if any(cell[:1].isspace() and cell.lstrip().startswith('"') for cell in cells):
            return _SPACE_BEFORE_QUOTE
        last = max((place for place, cell in enumerate(cells) if '"' in cell and cell[0] != '"'), default=0)
        return _CUT_QUOTE if any(_leaves_quote_open(cell) for cell in cells[:last]) else None

    def note_cut(self, line: int, lines: Sequence[str], cells: Sequence[str]) -> None:
        """Remember the row if its text has no quotes, and the cell after it begins with a space."""
        if self._text is None or len(cells) <= self._text + 1:
            return
        text, after = cells[self._text : self._text + 2]
        # A space before the text as well is the style of the file.
        is_spaced = after[:1] == " " and after.strip() and text.strip() and text[0] != " "
        if is_spaced and not self._written(lines)[self._text].startswith('"'):
            self.cut.append(line)

    def _written(self, lines: Sequence[str]) -> list[str]:
        """The cells of a row as they are written, with their quotes."""
        return self._cell.findall("".join(lines).removesuffix("\n"))


def _leaves_quote_open(cell: str) -> bool:
    """Whether a cell, as it is written, has a quote that a later cell was meant to close."""
    if cell[:1] == '"':
        return cell.endswith('\\"')  # meant as a quote inside the text
    return cell.count('"') % 2 == 1 and re.search(r'[\s(\[\\]"[^"]*$', cell) is not None


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
