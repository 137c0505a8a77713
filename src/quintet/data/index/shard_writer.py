"""`quintet data shard`: writes the media of a folder, with their captions, as tar shards and an index.

Shards have the WebDataset layout, which other programs can read. Item 12 has the members 000000012.png, 000000012.txt
with its captions, one per line, and 000000012.json with its name, split, other metadata, and a hash of its media. From
these hashes the index computes a hash of each shard, which distinguishes media of equal sizes. Items have the order of
the folder, so training on shards equals training on the folder. The set is written atomically, and the same folder
gives the same bytes.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintet.common import files
from quintet.common.logging import track
from quintet.data.index.entry import Entry, Scan, read_sequence
from quintet.data.index.marker import write_marker
from quintet.data.index.shard_index import IMAGE_SEQUENCE, INDEX_NAME, IndexBuilder, Row, Shard, joined_hash
from quintet.data.index.shard_listing import OWN_KEY
from quintet.data.index.tar_members import TarWriter
from quintet.errors import UnreadableItem, UsageError
from quintet.media.files import Blob, digest_of, media_ref, read_file

LARGEST_MEMBER = 8**11 - 1
"""Largest size in bytes of a member of a ustar file."""


@dataclass
class ShardWriter:
    """Writes items one by one; a shard is full at `items` items or `megabytes`, whichever comes first."""

    folder: Path
    items: int
    megabytes: int
    index: IndexBuilder = field(default_factory=IndexBuilder)
    _tar: TarWriter | None = None
    _hashes: list[str] = field(default_factory=list)
    """Hashes of the items of the current shard."""

    def add(self, entry: Entry, media: Blob) -> None:
        """Add one item: name, caption and split of the entry, and the bytes of the file."""
        key = f"{len(self.index):09d}"
        tar = self._tar_with_room(len(media.content) + sum(map(len, (media.frames or {}).values())))
        texts = _texts(entry)
        if media.frames is None:
            kind = posixpath.splitext(entry.file)[1].lower()
            member = tar.add(key + kind, media.content)
            offset, size = member.offset, member.size
        else:
            kind, offset = IMAGE_SEQUENCE, tar.offset
            for number, (name, content) in enumerate(media.frames.items()):
                member = tar.add(f"{key}.{number:06d}{posixpath.splitext(name)[1].lower()}", content)
            size = member.offset + member.size - offset
        self._hashes.append(digest_of(media))
        metadata = {**_metadata(entry, texts), OWN_KEY: self._hashes[-1]}
        # A metadata column may hold a lone surrogate, which becomes a question mark, as in the index.
        if texts:
            tar.add(f"{key}.txt", "\n".join(texts).encode("utf-8", "replace"))
        tar.add(f"{key}.json", json.dumps(metadata, ensure_ascii=False).encode("utf-8", "replace"))
        shard = len(self.index.shards) - 1
        self.index.add(Row(shard, offset, size, entry.file, kind, entry.text, entry.split, entry.extra))

    def close(self) -> int:
        """Finish the last shard and write the index; returns the number of shards."""
        self._finish()
        self.index.write(self.folder / INDEX_NAME)
        return len(self.index.shards)

    def _tar_with_room(self, size: int) -> TarWriter:
        full = self._tar is not None and (
            len(self._hashes) >= self.items or self._tar.offset + size > self.megabytes * 2**20
        )
        if full and self._hashes:
            self._finish()
        if self._tar is None:
            name = f"shard-{len(self.index.shards):05d}.tar"
            self._tar = TarWriter((self.folder / name).open("xb"))
            self.index.shards.append(Shard(name, 0))
        return self._tar

    def _finish(self) -> None:
        if self._tar is not None:
            size = self._tar.close()
            self._tar.stream.close()
            name = self.index.shards[-1].name
            files.sync(self.folder / name)
            self.index.shards[-1] = Shard(name, size, joined_hash(self._hashes))
        self._tar, self._hashes = None, []


def _texts(entry: Entry) -> list[str]:
    """All captions of an entry. A user's metadata column may also be named `texts`."""
    several = entry.extra.get("texts")
    if isinstance(several, list) and several[:1] == [entry.text] and all(isinstance(text, str) for text in several):
        return several
    return [entry.text] if entry.text else []


def _metadata(entry: Entry, texts: list[str]) -> dict[str, Any]:
    """The .json of an item: enough to build the same index again."""
    known: dict[str, Any] = {"file_name": entry.file}
    if texts:
        known["text"] = texts if len(texts) > 1 else texts[0]
    if entry.split:
        known["split"] = entry.split
    implied = "texts" if len(texts) > 1 else None
    return {**known, **{name: value for name, value in entry.extra.items() if name not in (*known, implied)}}


@dataclass(frozen=True)
class Written:
    """Number of items and shards written, and the skipped files with the reasons."""

    items: int
    shards: int
    skipped: list[tuple[str, str]]


def write_shards(
    root: str | os.PathLike[str], scanned: Scan, out: Path, *, items: int = 10_000, megabytes: int = 1024
) -> Written:
    """Write all scanned files as shards to a new folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} already exists; choose a new folder for the shards")
    if out.resolve() == Path.cwd():  # the current folder would be removed and replaced
        raise UsageError(f"{out} is the current folder; choose a new folder for the shards")
    temporary = out.with_name(f".{out.name}.writing")
    skipped = [*scanned.skipped]
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        writer = ShardWriter(temporary, items, megabytes)
        for entry in track(scanned.entries, "written"):
            try:
                writer.add(entry, _content(entry, root))
            except UnreadableItem as problem:
                skipped.append((entry.file, str(problem)))
        count = len(writer.index)
        if not count:
            raise UsageError(f"no file of {root} can be read, for example {skipped[0][0]} ({skipped[0][1]})")
        writer.index.skipped.extend(skipped)
        if scanned.marker is not None:
            write_marker(temporary, scanned.marker)
        shards = writer.close()
        with suppress(OSError):
            out.rmdir()
        os.rename(temporary, out)
    except OSError as error:
        raise UsageError(f"cannot write the shards to {out}: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Written(count, shards, skipped)


def _content(entry: Entry, root: str | os.PathLike[str]) -> Blob:
    try:
        media = media_ref(entry.media(root))
        if isinstance(media, Blob):
            return media
        if media.is_dir():
            return read_sequence(media)
        content = read_file(media)
    except OSError as error:
        raise UnreadableItem(f"cannot be opened: {error.strerror}") from error
    if len(content) > LARGEST_MEMBER:
        raise UnreadableItem("8 GiB or more, which a tar file does not hold; cut it")
    return Blob(entry.file, content)
