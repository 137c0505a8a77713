"""A folder of captioned media: its files and their captions.

Scanning opens no media file: a file that turns out unreadable is found when it is read.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from pathlib import Path

from quintet.data.index.captions import Metadata, Row, folder_caption, read_caption
from quintet.data.index.entry import Entry, Scan, Stamp, printable
from quintet.data.index.marker import MARKER, read_marker
from quintet.data.index.shard_store import is_shard
from quintet.data.index.split import TRAIN_SPLIT, VALIDATION_SPLITS
from quintet.data.index.walk import METADATA_NAMES, Tree, Walk
from quintet.errors import UsageError

_SPLIT_WORDS = VALIDATION_SPLITS | {TRAIN_SPLIT, "test"}


def scan(
    root: str | os.PathLike[str],
    extensions: frozenset[str],
    *,
    allow_empty: bool = False,
    films: bool = False,
    tree: Tree | None = None,
) -> Scan:
    """List the files below `root` with one of the extensions (lower case, with the dot) and their captions.

    With `films`, a folder of numbered pictures is listed like a file, unless captions name single ones. Captions come
    from metadata files if there are any, else from text files beside the media, else from the names of the folders.
    Nothing but a `split` column divides the data: names mean nothing. Who scans one folder for several kinds hands over
    its shared `tree`.
    """
    root = Path(root)
    if not os.path.exists(root):
        raise UsageError(f"folder {root} does not exist; give the path of a folder with your files")
    if not os.path.isdir(root):
        raise UsageError(f"{root} is a file; give the folder that contains your files")
    walk = Walk(tree or Tree(root), extensions, films)
    walk.run()
    result = Scan([], walk.skipped, "none", [], walk.found, [], read_marker(root / MARKER))
    _caption(walk, result)
    result.skipped.sort()
    if shards := sorted(file for file in walk.others if is_shard(file)):
        result.notes.append(
            f"tar and parquet files that are not read, because media lie beside them: {len(shards)}, the first "
            f"{printable(shards[0])}; name it in place of the folder to use it"
        )
    if not result.entries and not allow_empty:
        raise UsageError(_nothing_usable(root, extensions, walk))
    return result


def _caption(walk: Walk, result: Scan) -> None:
    files = sorted(walk.media)
    rows = _metadata_rows(walk, result)
    if rows is not None:
        result.entries = [_entry(file, rows.get(file), walk.stamps[file]) for file in files]
        _note_uncaptioned(result)
        return
    # A text file counts only beside media of its name: a README.txt is no caption.
    texts = {file: text for file in files if (text := walk.texts.get(_stem(file, walk.extensions)))}
    if texts:
        result.captions_from = "text files"
        captions = {file: read_caption(os.path.join(walk.tree.root, text)) for file, text in texts.items()}
        result.entries = [
            _entry(file, Row(0, file, captions.get(file, ()), None, {}), walk.stamps[file]) for file in files
        ]
        _note_uncaptioned(result)
        return
    result.entries = [
        Entry(file, folder_caption(posixpath.basename(posixpath.dirname(file))) or None, stamp=walk.stamps[file])
        for file in files
    ]
    classes = {entry.text for entry in result.entries if entry.text}
    if classes:
        result.captions_from = "class folders"
    if classes and classes <= _SPLIT_WORDS:
        named = ", ".join(sorted(classes))
        result.notes.append(
            f"folder names are captions here ({named}); to split the data use a `split` column in metadata.jsonl"
        )


def _stem(file: str, extensions: frozenset[str]) -> str:
    """What a text beside it is called; a folder that is a film has no extension to leave out."""
    stem, extension = posixpath.splitext(file)
    return stem if extension.lower() in extensions else file


def _metadata_rows(walk: Walk, result: Scan) -> dict[str, Row] | None:
    """The rows of all metadata files by file; None where there is no usable metadata file."""
    known = {*walk.media, *(file for file, _ in walk.skipped)}
    rows: dict[str, Row] = {}
    repeated: list[str] = []
    # The metadata file nearest to a picture is the one that speaks for it.
    for prefix in sorted(walk.metadata, key=lambda folder: (-folder.count("/"), folder)):
        name, metadata = _metadata_of(walk, prefix, result)
        if metadata.rows and result.captions_from == "none":
            result.captions_from = posixpath.basename(name)
        for row in metadata.rows:
            file = _resolve(prefix, row.file, known)
            if problem := _row_problem(file, walk, known):
                result.skipped.append((name, f"line {row.line}: {printable(row.file[:200])} {problem}"))
            elif file in rows:
                repeated.append(f"{file} in {name} line {row.line}")
            else:
                rows[file] = row
    if repeated:
        result.notes.append(f"rows for a file named before, left out: {len(repeated)}, the first {repeated[0]}")
    return None if result.captions_from == "none" else rows


def _metadata_of(walk: Walk, prefix: str, result: Scan) -> tuple[str, Metadata]:
    """Read the metadata file of one folder and pass on what it says beside its rows."""
    names = walk.metadata[prefix]
    name = prefix + next(name for name in METADATA_NAMES if name in names)
    if len(names) > 1:
        result.notes.append(f"{prefix}{METADATA_NAMES[1]} is not read, because {METADATA_NAMES[0]} is beside it")
    metadata = walk.tree.metadata(name)
    result.columns.extend(column for column in metadata.columns if column not in result.columns)
    result.notes.extend(f"{name}: {note}" for note in metadata.notes)
    result.skipped.extend((name, f"line {line}: {reason}" if line else reason) for line, reason in metadata.skipped)
    return name, metadata


def _resolve(prefix: str, written: str, known: set[str]) -> str:
    """The path below the root that a row means; it may lead out of the root."""
    if prefix + written in known:
        return prefix + written
    file = posixpath.normpath(posixpath.join(prefix, written))
    if file not in known and "\\" in written:
        file = posixpath.normpath(posixpath.join(prefix, written.replace("\\", "/")))
    return file


def _row_problem(file: str, walk: Walk, known: set[str]) -> str | None:
    if file.startswith("/") or file == ".." or file.startswith("../") or re.match(r"[A-Za-z]:/", file):
        return "leads out of the folder; not read"
    if file in known:
        return None
    return "is not of an accepted type" if file in walk.others else "does not exist"


def _entry(file: str, row: Row | None, stamp: Stamp) -> Entry:
    if row is None:
        return Entry(file, stamp=stamp)
    extra = {**row.extra, "texts": list(row.texts)} if len(row.texts) > 1 else row.extra
    return Entry(file, row.texts[0] if row.texts else None, row.split, extra, stamp)


def _note_uncaptioned(result: Scan) -> None:
    missing = sum(entry.text is None for entry in result.entries)
    if missing:
        result.notes.append(f"{missing} of {len(result.entries)} files have no caption in the {result.captions_from}")


def _nothing_usable(root: Path, extensions: frozenset[str], walk: Walk) -> str:
    accepted = ", ".join(sorted(extensions))
    kinds = Counter(os.path.splitext(file)[1].lower() or "without extension" for file in walk.others)
    seen = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
    skipped = ""
    if walk.skipped:
        file, reason = walk.skipped[0]
        skipped = f"{len(walk.skipped)} skipped, the first {file} ({reason})"
    found = "; ".join(filter(None, (seen, skipped))) or "nothing at all"
    return f"no usable file in {root}: looked for {accepted}, found {found}"
