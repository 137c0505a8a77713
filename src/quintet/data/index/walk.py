"""Walking a folder tree: which files are media, captions and metadata, and which cannot be used. Opens no media."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from quintet.data.index.captions import Metadata, read_metadata
from quintet.data.index.entry import Stamp, joined_stamp, printable
from quintet.media.video_formats import FRAME_EXTENSIONS, frame_order

METADATA_NAMES = ("metadata.jsonl", "metadata.csv")
"""In order of preference."""


class Tree:
    """The folders below a root; hidden names are passed over. With `shared`, for several walks, it is listed once."""

    def __init__(self, root: Path, shared: bool = False) -> None:
        self.root = root
        self._folders = [*self._walked()] if shared else None
        self._metadata: dict[str, Metadata] = {}

    def folders(self) -> Iterable[Folder]:
        # One by one, where they are needed once: a folder may have millions of files.
        return self._walked() if self._folders is None else self._folders

    def _walked(self) -> Iterator[Folder]:
        prefixes = [""]
        while prefixes:
            folder = self._listed(prefixes.pop())
            prefixes += [f"{folder.prefix}{entry.name}/" for entry in folder.below]
            yield folder

    def _listed(self, prefix: str) -> Folder:
        folder = Folder(prefix)
        try:
            with os.scandir(os.path.join(self.root, prefix)) as listing:
                for entry in listing:
                    if not entry.name.startswith("."):
                        (folder.below if entry.is_dir(follow_symlinks=False) else folder.files).append(entry)
        except OSError as error:
            folder.problem = f"cannot be listed: {error.strerror}"
        return folder

    def metadata(self, file: str) -> Metadata:
        """A metadata file, read once."""
        if file not in self._metadata:
            self._metadata[file] = read_metadata(self.root / file)
        return self._metadata[file]


@dataclass
class Folder:
    """One folder of a tree; its prefix is its path below the root with a slash, that of the root is empty."""

    prefix: str
    files: list[os.DirEntry[str]] = field(default_factory=list)
    below: list[os.DirEntry[str]] = field(default_factory=list)
    problem: str | None = None


class Walk:
    """The files of a tree by kind. Links are followed to files inside the root only."""

    def __init__(self, tree: Tree, extensions: frozenset[str], films: bool) -> None:
        self.tree = tree
        self.real_root = os.path.realpath(tree.root)
        self.extensions = extensions
        self.films = films
        self.media: list[str] = []
        self.stamps: dict[str, Stamp] = {}
        self.texts: dict[str, str] = {}
        self.metadata: dict[str, set[str]] = {}
        self.others: set[str] = set()
        self.skipped: list[tuple[str, str]] = []
        self.found = 0
        self._pictures: dict[str, str | None] = {}
        self._named: dict[str, set[str]] = {}

    def run(self) -> None:
        for folder in self.tree.folders():
            self._pictures = {}
            for entry in folder.files:
                self._visit(folder.prefix, entry)
            if folder.problem:
                self.skipped.append((folder.prefix.rstrip("/") or ".", folder.problem))
            self._add_film(folder.prefix)

    def _add_film(self, prefix: str) -> None:
        """A folder below the root of nothing but numbered pictures, as far as media go, is a film.

        Not if something is said of single pictures; then, and wherever else they lie, each is an item of its own, if
        pictures are wanted at all.
        """
        if not self._pictures:
            return
        alone = not any(posixpath.dirname(file) + "/" == prefix for file in self.media[-1:])
        numbered = alone and prefix and frame_order(list(self._pictures)) is not None
        if not numbered or self._told_one_by_one(prefix):
            self._add_pictures(prefix)
            return
        folder = prefix.rstrip("/")
        self.found += 1
        problems = [f"{name}: {problem}" for name, problem in sorted(self._pictures.items()) if problem]
        if problems:
            self.skipped.append((folder, problems[0]))
            return
        self.media.append(folder)
        self.stamps[folder] = joined_stamp([self.stamps.pop(prefix + name) for name in self._pictures])

    def _add_pictures(self, prefix: str) -> None:
        for name, problem in self._pictures.items():
            if os.path.splitext(name)[1].lower() not in self.extensions:
                continue
            self.found += 1
            self.others.discard(prefix + name)
            if problem:
                self.skipped.append((printable(prefix + name), problem))
            else:
                self.media.append(prefix + name)

    def _told_one_by_one(self, prefix: str) -> bool:
        """Whether text files lie beside the pictures, or a metadata file here or above names one of them."""
        files = {prefix + name for name in self._pictures}
        if any(posixpath.splitext(file)[0] in self.texts for file in files):
            return True
        above = [folder for folder in self.metadata if prefix.startswith(folder)]
        return any(self._named_in(folder) & files for folder in above)

    def _named_in(self, prefix: str) -> set[str]:
        """The files that the metadata of a folder speaks of."""
        if prefix not in self._named:
            name = next(name for name in METADATA_NAMES if name in self.metadata[prefix])
            rows = self.tree.metadata(prefix + name).rows
            self._named[prefix] = {posixpath.normpath(posixpath.join(prefix, row.file)) for row in rows}
        return self._named[prefix]

    def _visit(self, prefix: str, entry: os.DirEntry[str]) -> None:
        file = prefix + entry.name
        stem, extension = os.path.splitext(entry.name)
        extension = extension.lower()
        is_media = extension in self.extensions
        is_metadata = entry.name in METADATA_NAMES
        if self.films and extension in FRAME_EXTENSIONS:
            self.others.add(file)
            self._pictures[entry.name] = self._problem(entry, file, is_media=True)
            return
        self.found += is_media
        if problem := self._problem(entry, file, is_media):
            if is_media or is_metadata or extension == ".txt" or entry.is_symlink():
                self.skipped.append((printable(file), problem))
        elif is_media:
            self.media.append(file)
        elif is_metadata:
            self.metadata.setdefault(prefix, set()).add(entry.name)
        else:
            self.others.add(file)
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
            # The size costs a call to the system for each file; only media need it.
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
