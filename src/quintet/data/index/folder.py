"""Scan of a folder of captioned media: its media files, captions and metadata, and the files that cannot be used.

Scanning opens no media file: an unreadable file is found when it is read.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from quintet.common.outputs import OUTPUT_FILES, output_kind
from quintet.common.printable import printable
from quintet.data.index.captions import Metadata, Row, folder_caption, read_caption, read_metadata
from quintet.data.index.entry import TRAIN_SPLIT, VALIDATION_SPLITS, Entry, Scan, Stamp, joined_stamp
from quintet.data.index.marker import MARKER, read_marker
from quintet.data.index.shard_store import is_shard
from quintet.errors import UsageError
from quintet.media.video import FRAME_EXTENSIONS, frame_order

METADATA_NAMES = ("metadata.jsonl", "metadata.csv")
"""In order of preference."""


class Tree:
    """The folders below a root, without hidden names and without folders that quintet wrote (`left_out`).

    With `shared`, for several walks, they are listed once.
    """

    def __init__(self, root: Path, shared: bool = False) -> None:
        self.root = root
        self.left_out: dict[str, str] = {}
        """Path to kind of the folders that quintet wrote."""
        self._folders = [*self._walked()] if shared else None
        self._metadata: dict[str, Metadata] = {}

    def folders(self) -> Iterable[Folder]:
        # Listed lazily if there is one walk: a folder may have millions of files.
        return self._walked() if self._folders is None else self._folders

    def _walked(self) -> Iterator[Folder]:
        prefixes = [""]
        while prefixes:
            folder = self._listed(prefixes.pop())
            if folder.prefix and folder.output is not None:
                self.left_out[folder.prefix.rstrip("/")] = folder.output
                continue
            prefixes += [f"{folder.prefix}{entry.name}/" for entry in folder.subfolders]
            yield folder

    def _listed(self, prefix: str) -> Folder:
        folder = Folder(prefix)
        path = os.path.join(self.root, prefix)
        markers: list[str] = []
        try:
            with os.scandir(path) as listing:
                for entry in listing:
                    if entry.name in OUTPUT_FILES:
                        markers.append(entry.name)
                    if not entry.name.startswith("."):
                        (folder.subfolders if entry.is_dir(follow_symlinks=False) else folder.files).append(entry)
        except OSError as error:
            folder.problem = f"cannot be listed: {error.strerror}"
        folder.output = output_kind(path, markers)
        return folder

    def metadata(self, file: str) -> Metadata:
        """A metadata file, read once."""
        if file not in self._metadata:
            self._metadata[file] = read_metadata(self.root / file)
        return self._metadata[file]


@dataclass
class Folder:
    """One folder of a tree; `prefix` is its path relative to the root with a final slash, empty for the root."""

    prefix: str
    files: list[os.DirEntry[str]] = field(default_factory=list)
    subfolders: list[os.DirEntry[str]] = field(default_factory=list)
    problem: str | None = None
    output: str | None = None
    """What quintet wrote into it; None for a folder of the user."""


class Walk:
    """The files of a tree by kind. Links are followed only to files inside the root."""

    def __init__(self, tree: Tree, extensions: frozenset[str], image_sequences: bool) -> None:
        self.tree = tree
        self.real_root = os.path.realpath(tree.root)
        self.extensions = extensions
        self.image_sequences = image_sequences
        self.media: list[str] = []
        self.stamps: dict[str, Stamp] = {}
        self.texts: dict[str, str] = {}
        self.metadata: dict[str, set[str]] = {}
        self.other_files: set[str] = set()
        self.skipped: list[tuple[str, str]] = []
        self.found = 0
        self.metadata_problems: dict[str, str] = {}
        self._images: dict[str, str | None] = {}
        self._metadata_files: dict[str, set[str]] = {}

    def run(self) -> None:
        for folder in self.tree.folders():
            self._images = {}
            for entry in folder.files:
                self._visit(folder.prefix, entry)
            if folder.problem:
                self.skipped.append((folder.prefix.rstrip("/") or ".", folder.problem))
            self._add_image_sequence(folder.prefix)

    def _add_image_sequence(self, prefix: str) -> None:
        """Add a folder below the root as one video if its only media files are numbered images.

        If single images have captions, or the images are not numbered, each is a separate item, provided that images
        are among the extensions.
        """
        if not self._images:
            return
        alone = not any(posixpath.dirname(file) + "/" == prefix for file in self.media[-1:])
        numbered = alone and prefix and frame_order(list(self._images)) is not None
        if not numbered or self._captioned_one_by_one(prefix):
            self._add_images(prefix)
            return
        folder = prefix.rstrip("/")
        self.found += 1
        problems = [f"{name}: {problem}" for name, problem in sorted(self._images.items()) if problem]
        if problems:
            self.skipped.append((folder, problems[0]))
            return
        self.media.append(folder)
        self.stamps[folder] = joined_stamp([self.stamps.pop(prefix + name) for name in self._images])

    def _add_images(self, prefix: str) -> None:
        for name, problem in self._images.items():
            if os.path.splitext(name)[1].lower() not in self.extensions:
                continue
            self.found += 1
            self.other_files.discard(prefix + name)
            if problem:
                self.skipped.append((printable(prefix + name), problem))
            else:
                self.media.append(prefix + name)

    def _captioned_one_by_one(self, prefix: str) -> bool:
        """Whether single images have text files, or rows in a metadata file of this folder or a parent."""
        files = {prefix + name for name in self._images}
        if any(posixpath.splitext(file)[0] in self.texts for file in files):
            return True
        above = [folder for folder in self.metadata if prefix.startswith(folder)]
        return any(self._files_in_metadata(folder) & files for folder in above)

    def _files_in_metadata(self, prefix: str) -> set[str]:
        """The files that the metadata file of a folder names."""
        if prefix not in self._metadata_files:
            name = next(name for name in METADATA_NAMES if name in self.metadata[prefix])
            rows = self.tree.metadata(prefix + name).rows
            self._metadata_files[prefix] = {posixpath.normpath(posixpath.join(prefix, row.file)) for row in rows}
        return self._metadata_files[prefix]

    def _visit(self, prefix: str, entry: os.DirEntry[str]) -> None:
        file = prefix + entry.name
        stem, extension = os.path.splitext(entry.name)
        extension = extension.lower()
        is_media = extension in self.extensions
        is_metadata = entry.name in METADATA_NAMES
        if self.image_sequences and extension in FRAME_EXTENSIONS:
            self.other_files.add(file)
            self._images[entry.name] = self._problem(entry, file, is_media=True)
            return
        self.found += is_media
        if problem := self._problem(entry, file, is_media):
            if is_media or is_metadata or extension == ".txt" or entry.is_symlink():
                self.skipped.append((printable(file), problem))
            if is_metadata:
                self.metadata_problems[prefix] = f"{printable(file)} cannot be used: {problem}"
        elif is_media:
            self.media.append(file)
        elif is_metadata:
            self.metadata.setdefault(prefix, set()).add(entry.name)
        else:
            self.other_files.add(file)
            if extension == ".txt":
                self.texts[prefix + stem] = min(file, self.texts.get(prefix + stem, file))

    def _problem(self, entry: os.DirEntry[str], file: str, is_media: bool) -> str | None:
        try:
            if printable(file) != file:
                return "its name is not UTF-8 or holds control characters; rename it"
            if entry.is_symlink() and (problem := self._link_problem(entry)):
                return problem
            if not entry.is_file():
                return "not a regular file"
            # The size costs a system call per file; only media need it.
            return self._media_problem(entry, file) if is_media else None
        except OSError as error:
            return f"cannot be opened: {error.strerror}"

    def _media_problem(self, entry: os.DirEntry[str], file: str) -> str | None:
        found = entry.stat()
        self.stamps[file] = Stamp(found.st_size, found.st_mtime_ns)
        return None if found.st_size else "empty file"

    def _link_problem(self, entry: os.DirEntry[str]) -> str | None:
        target = os.path.realpath(entry.path)
        if not os.path.exists(target):
            return "a link to nothing"
        if os.path.commonpath([target, self.real_root]) != self.real_root:
            return "a link that leads out of the folder; not followed"
        return "a link to a folder; not followed" if os.path.isdir(target) else None


_SPLIT_WORDS = VALIDATION_SPLITS | {TRAIN_SPLIT, "test"}


def scan(
    root: str | os.PathLike[str],
    extensions: frozenset[str],
    *,
    allow_empty: bool = False,
    image_sequences: bool = False,
    tree: Tree | None = None,
) -> Scan:
    """List the files below `root` with one of the extensions (lower case, with the dot) and their captions.

    With `image_sequences`, a folder of numbered images is listed like a file, unless single images have captions.
    Captions come from metadata files if there are any, else from text files beside the media, else from the names of
    the folders. Only a `split` column assigns splits; names of folders do not. A caller that scans one folder for
    several media passes a shared `tree`.
    """
    root = Path(root)
    if not os.path.exists(root):
        raise UsageError(f"folder {root} does not exist; name a folder with your files")
    if not os.path.isdir(root):
        raise UsageError(f"{root} is a file; name the folder that contains your files")
    walk = Walk(tree or Tree(root), extensions, image_sequences)
    walk.run()
    left_out = sorted(walk.tree.left_out.items())
    marker = read_marker(root / MARKER)
    result = Scan([], walk.skipped, "none", [], walk.found, [], marker, left_out=left_out)
    _caption(walk, result)
    result.skipped.sort()
    if shards := sorted(file for file in walk.other_files if is_shard(file)):
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
    # A text file is a caption only if a media file has the same name: a README.txt is none.
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
    """The name of its text file without the extension; a folder of numbered images has no extension to remove."""
    stem, extension = posixpath.splitext(file)
    return stem if extension.lower() in extensions else file


def _metadata_rows(walk: Walk, result: Scan) -> dict[str, Row] | None:
    """The rows of all metadata files by file; None if there is no usable metadata file."""
    known = {*walk.media, *(file for file, _ in walk.skipped)}
    with_media = _prefixes(walk.media)
    unopened = {prefix for prefix in walk.metadata_problems if prefix in with_media and prefix not in walk.metadata}
    result.problem = walk.metadata_problems[min(unopened)] if unopened else None
    rows: dict[str, Row] = {}
    repeated: list[str] = []
    # The metadata file in the nearest parent folder counts.
    for prefix in sorted(walk.metadata, key=lambda folder: (-folder.count("/"), folder)):
        name, metadata = _metadata_of(walk, prefix, result)
        if metadata.rows and result.captions_from == "none":
            result.captions_from = posixpath.basename(name)
        if prefix in with_media and result.problem is None:
            result.problem = _metadata_problem(walk, prefix, name, metadata, known)
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
    """Read the metadata file of one folder; its columns, notes and skipped lines go to `result`."""
    names = walk.metadata[prefix]
    name = prefix + next(name for name in METADATA_NAMES if name in names)
    if len(names) > 1:
        result.notes.append(f"{prefix}{METADATA_NAMES[1]} is not read, because {METADATA_NAMES[0]} is beside it")
    metadata = walk.tree.metadata(name)
    result.columns.extend(column for column in metadata.columns if column not in result.columns)
    result.notes.extend(f"{name}: {note}" for note in metadata.notes)
    result.skipped.extend((name, f"line {line}: {reason}" if line else reason) for line, reason in metadata.skipped)
    return name, metadata


def _metadata_problem(walk: Walk, prefix: str, name: str, metadata: Metadata, known: set[str]) -> str | None:
    """Why a metadata file cannot be used, or None. One that names no file that exists is the wrong one."""
    problem = metadata.problem
    if problem is None and not any(
        (file := _resolve(prefix, row.file, known)) in known or file in walk.other_files for row in metadata.rows
    ):
        row = metadata.rows[0]
        found = _row_problem(_resolve(prefix, row.file, known), walk, known)
        problem = f"names no file of its folder, for example line {row.line}: {printable(row.file[:200])} {found}"
    return None if problem is None else printable(f"{name} {problem}")


def _prefixes(files: Iterable[str]) -> set[str]:
    """The folders that have one of the files somewhere below them, with a final slash; empty for the root."""
    prefixes: set[str] = set()
    for file in files:
        folder = posixpath.dirname(file)
        while (prefix := f"{folder}/" if folder else "") not in prefixes:
            prefixes.add(prefix)
            folder = posixpath.dirname(folder)
    return prefixes


def _resolve(prefix: str, written: str, known: set[str]) -> str:
    """The path of a row relative to the root; it may lead out of the root."""
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
    return "is not of an accepted type" if file in walk.other_files else "does not exist"


def _entry(file: str, row: Row | None, stamp: Stamp) -> Entry:
    if row is None:
        return Entry(file, stamp=stamp)
    extra = {**row.extra, "texts": list(row.texts)} if len(row.texts) > 1 else row.extra
    return Entry(file, row.texts[0] if row.texts else None, row.split, extra, stamp)


def _note_uncaptioned(result: Scan) -> None:
    missing = sum(entry.text is None for entry in result.entries)
    if missing:
        result.uncaptioned = f"{missing} of {len(result.entries)} files have no caption in the {result.captions_from}"
        result.notes.append(result.uncaptioned)


def _nothing_usable(root: Path, extensions: frozenset[str], walk: Walk) -> str:
    accepted = ", ".join(sorted(extensions))
    kinds = Counter(os.path.splitext(file)[1].lower() or "without extension" for file in walk.other_files)
    seen = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
    skipped = ""
    if walk.skipped:
        file, reason = walk.skipped[0]
        skipped = f"{len(walk.skipped)} skipped, the first {file} ({reason})"
    found = "; ".join(filter(None, (seen, skipped))) or "no files"
    return f"no usable file in {root}: expected {accepted}, found {found}"
