"""Owns `quintet data shard`: the media of a folder, with their captions, as tar files and an index.

A shard is in the layout of WebDataset and can be read by other programs: of item 12 the members 000000012.png,
000000012.txt with the caption, one a line, and 000000012.json with its name, split, whatever else is known of it, and a
hash of its media, from which the index has a hash of each shard: media of the same sizes are not taken for each other.
The order is that of the folder, so that training on shards sees what training on the folder would. The set appears
whole or not at all; the same folder gives the same bytes.
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
from quintet.data.index.entry import Entry, Scan, film_in
from quintet.data.index.marker import write_marker
from quintet.data.index.shard_index import FILM, INDEX_NAME, IndexBuilder, Row, Shard, joined_hash
from quintet.data.index.shard_listing import OWN_KEY
from quintet.data.index.tar_members import TarWriter
from quintet.errors import UnreadableItem, UsageError
from quintet.media.files import Blob, digest_of, media_ref, read_file

LARGEST_MEMBER = 8**11 - 1
"""Bytes, of which a tar file in the common format can tell the number."""


@dataclass
class ShardWriter:
    """Writes items one by one; a shard is full at so many items or bytes, whichever comes first."""

    folder: Path
    items: int
    megabytes: int
    index: IndexBuilder = field(default_factory=IndexBuilder)
    _tar: TarWriter | None = None
    _hashes: list[str] = field(default_factory=list)
    """Of the items of the shard that is being written."""

    def add(self, entry: Entry, media: Blob) -> None:
        """One item. Its name, caption and split are those of the entry; its bytes those of the file."""
        key = f"{len(self.index):09d}"
        tar = self._tar_with_room(len(media.content) + sum(map(len, (media.pictures or {}).values())))
        texts = _texts(entry)
        if media.pictures is None:
            kind = posixpath.splitext(entry.file)[1].lower()
            member = tar.add(key + kind, media.content)
            offset, size = member.offset, member.size
        else:
            kind, offset = FILM, tar.place
            for number, (name, content) in enumerate(media.pictures.items()):
                member = tar.add(f"{key}.{number:06d}{posixpath.splitext(name)[1].lower()}", content)
            size = member.offset + member.size - offset
        self._hashes.append(digest_of(media))
        told = {**_told(entry, texts), OWN_KEY: self._hashes[-1]}
        # A column of a person's own may hold half a surrogate pair. It is a question mark then, as in the index.
        if texts:
            tar.add(f"{key}.txt", "\n".join(texts).encode("utf-8", "replace"))
        tar.add(f"{key}.json", json.dumps(told, ensure_ascii=False).encode("utf-8", "replace"))
        shard = len(self.index.shards) - 1
        self.index.add(Row(shard, offset, size, entry.file, kind, entry.text, entry.split, entry.extra))

    def close(self) -> int:
        """The last shard and the index; returns how many shards there are."""
        self._finish()
        self.index.write(self.folder / INDEX_NAME)
        return len(self.index.shards)

    def _tar_with_room(self, size: int) -> TarWriter:
        full = self._tar is not None and (
            len(self._hashes) >= self.items or self._tar.place + size > self.megabytes * 2**20
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
    """All captions. A column of a person's own may be called as the list of them is."""
    several = entry.extra.get("texts")
    if isinstance(several, list) and several[:1] == [entry.text] and all(isinstance(text, str) for text in several):
        return several
    return [entry.text] if entry.text else []


def _told(entry: Entry, texts: list[str]) -> dict[str, Any]:
    """What is in the .json of an item: enough to make the same index again."""
    known: dict[str, Any] = {"file_name": entry.file}
    if texts:
        known["text"] = texts if len(texts) > 1 else texts[0]
    if entry.split:
        known["split"] = entry.split
    implied = "texts" if len(texts) > 1 else None
    return {**known, **{name: value for name, value in entry.extra.items() if name not in (*known, implied)}}


@dataclass(frozen=True)
class Written:
    """What became of a folder."""

    items: int
    shards: int
    skipped: list[tuple[str, str]]


def write_shards(
    root: str | os.PathLike[str], scanned: Scan, out: Path, *, items: int = 10_000, megabytes: int = 1024
) -> Written:
    """All files that were listed, into a new folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists already; choose a new folder for the shards")
    if out.resolve() == Path.cwd():  # it would be taken away from under the person's feet, and another put in its place
        raise UsageError(f"{out} is the folder you are in; choose a new one for the shards")
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
            raise UsageError(f"no file of {root} can be read, {skipped[0][0]} for one ({skipped[0][1]})")
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
        place = media_ref(entry.media(root))
        if isinstance(place, Blob):
            return place
        if place.is_dir():
            return film_in(place)
        content = read_file(place)
    except OSError as error:
        raise UnreadableItem(f"cannot be opened: {error.strerror}") from error
    if len(content) > LARGEST_MEMBER:
        raise UnreadableItem("8 GiB or more, which a tar file does not hold; cut it")
    return Blob(entry.file, content)
