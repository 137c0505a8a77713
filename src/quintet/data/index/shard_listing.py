"""Listing of shards without an index: tar files in the WebDataset layout, parquet files in the Hugging Face layout.

Consecutive members of a tar file with the same key (their path up to the first dot of the name) are one item: the
media, and the caption in a .txt or in the `text` or `caption` of a .json. If names have more dots (`photo.v1.png`,
`photo.v1.txt`), the text of the same name takes precedence over that of the key. Numbered images of one key
(`key.001.png`, …) are a video.

A parquet file has a column of media as bytes and columns of metadata. The bytes of a row are compressed together with
those of hundreds of others, so a file is unpacked into the cache once, as the concatenated bytes of its rows; items are
then read from there like members of a tar file.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from quintet.common import files
from quintet.common.caches import exclusive_lock
from quintet.common.printable import printable
from quintet.data.index.captions import captions_of, decoded
from quintet.data.index.shard_index import IMAGE_SEQUENCE, IndexBuilder, Row, Shard, joined_hash
from quintet.data.index.shard_store import MEDIA, ShardFile, Store
from quintet.data.index.tar_members import Member, TarListing, open_tar
from quintet.errors import UsageError
from quintet.media.budget import READ_BUDGET_BYTES
from quintet.media.video import FRAME_EXTENSIONS

MEDIA_COLUMNS = {
    **dict.fromkeys(("image", "img", "picture", "png"), ".png"),
    **dict.fromkeys(("jpg", "jpeg"), ".jpg"),
    **dict.fromkeys(("audio", "sound", "wav"), ".wav"),
    **dict.fromkeys(("flac",), ".flac"),
    **dict.fromkeys(("mp3",), ".mp3"),
    **dict.fromkeys(("video", "mp4"), ".mp4"),
    **dict.fromkeys(("mesh", "glb", "model_3d"), ".glb"),
    **dict.fromkeys(("obj",), ".obj"),
}
"""Default extension of the files in a column, by its name. Decoders go by the content in any case."""
TEXT_COLUMNS = ("text", "caption", "captions", "prompt", "sentence", "transcription", "label")
_SPLIT = re.compile(r"(?:^|[-._ /0-9])(train|validation|valid|val|test)(?=[-._ /0-9])", re.IGNORECASE)
"""The name of a split as a separate word in the path of a file, by the rules of Hugging Face."""
_ROWS, _BATCH_BYTES = 256, 2**24
"""Most rows, and most bytes of media, that are decoded at once."""
_BUFFER = 2**16


class Layout(NamedTuple):
    """The columns of a file that are used, and the names of its classes if the caption is the number of a class."""

    media: str
    text: str | None
    split: str | None
    classes: list[str]


@dataclass(frozen=True)
class UnpackedStore:
    """A store of parquet files, each unpacked into one file of its media."""

    packed: Store
    cache: Path

    @property
    def label(self) -> str:
        return self.packed.label

    def list_shards(self) -> list[ShardFile]:
        return self.packed.list_shards()

    def index(self) -> Path | None:
        return None

    def marker(self) -> Path | None:
        return None

    def file(self, name: str) -> Path:
        source = self.packed.file(name)
        facts = source.stat()
        key = hashlib.sha256(repr((str(source), facts.st_size, facts.st_mtime_ns)).encode()).hexdigest()[:32]
        folder = self.cache / "unpacked"
        path = folder / f"{key}.bytes"
        if not path.exists():
            with exclusive_lock(folder / f"{key}.lock"):
                if not path.exists():
                    _unpack(source, path, f"{name} of {self.label}")
        return path

    def copy_hash(self, name: str) -> str:
        return ""  # the index has the hash of what is unpacked

    def discard(self, name: str) -> bool:
        self.file(name).unlink(missing_ok=True)
        return True


def add_parquet(builder: IndexBuilder, store: UnpackedStore, number: int, name: str) -> None:
    """Add the rows of a parquet file as items, named after the file and their row number."""
    label = f"{name} of {store.label}"
    offset = 0
    stem = posixpath.splitext(name)[0]
    split_names = _SPLIT.findall(name)  # the last one, nearest to the file name, counts
    content = hashlib.sha256()
    for count, row in enumerate(_rows(store.packed.file(name), label)):
        file = f"{stem}/{count:06d}{row.kind}"
        if row.content:
            split = row.split or (split_names[-1].lower() if split_names else None)
            extra = {"texts": list(row.texts)} if len(row.texts) > 1 else {}
            text = row.texts[0] if row.texts else None
            builder.add(Row(number, offset, len(row.content), file, row.kind, text, split, extra))
        else:
            builder.skipped.append((file, "the row holds no bytes"))
        offset += len(row.content)
        content.update(row.content)
    builder.shards[number] = Shard(name, offset, content.hexdigest())


class _Item(NamedTuple):
    content: memoryview
    kind: str
    texts: tuple[str, ...]
    split: str | None


def _unpack(source: Path, path: Path, label: str) -> None:
    with files.atomic_write(path) as temporary, temporary.open("wb") as stream:
        for row in _rows(source, label):
            stream.write(row.content)


def _rows(path: Path, label: str) -> Iterator[_Item]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(f"{label}: parquet files need pyarrow: pip install 'quintet[shards]'") from None
    try:
        files.open_regular(path).close()  # pyarrow would wait for a pipe
        # Through a buffer, and not the bytes of a whole row group at once.
        with pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            layout = _layout(file.schema_arrow, label)
            columns = [column for column in (layout.media, layout.text, layout.split) if column is not None]
            for group in range(file.num_row_groups):
                rows = _batch_rows(file.metadata.row_group(group), group, layout, label)
                for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
                    yield from _items(batch, layout)
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(
            f"the shard {label} is truncated or damaged ({files.one_line(error)}); copy or create it again"
        ) from None


def _batch_rows(group: Any, number: int, layout: Layout, label: str) -> int:
    """The number of rows of a row group to decode at once: few if the media are large.

    A row group may be a single page, which is decompressed as a whole; one that needs more memory than the budget of a
    media file is an error.
    """
    columns = [group.column(position) for position in range(group.num_columns)]
    media = [each for each in columns if each.path_in_schema.partition(".")[0] == layout.media]
    content = sum(each.total_uncompressed_size for each in media)
    packed = sum(each.total_compressed_size for each in media if each.compression != "UNCOMPRESSED")
    # Measured: the page as it is and decompressed, a copy of half of it, and some copies of a row.
    needed = packed + content * 3 // 2 + min(2 * content, 4 * content // max(group.num_rows, 1))
    if needed > READ_BUDGET_BYTES:
        raise UsageError(
            f"the shard {label} cannot be unpacked: its row group {number} needs {needed >> 20} MB of memory, more "
            f"than {READ_BUDGET_BYTES >> 20}; write it again with fewer rows per row group (row_group_size)"
        )
    return max(1, min(_ROWS, int(_BATCH_BYTES * group.num_rows // max(content, 1))))


def _layout(schema: Any, label: str) -> Layout:
    import pyarrow

    def holds_files(kind: Any) -> bool:
        if pyarrow.types.is_struct(kind):
            return kind.get_field_index("bytes") >= 0 and holds_files(kind.field("bytes").type)
        return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))

    files = [field.name for field in schema if holds_files(field.type)]
    named = [name for name in files if name.lower() in MEDIA_COLUMNS]
    if not named:
        seen = ", ".join(f"{field.name} ({str(field.type)[:40]})" for field in schema)
        raise UsageError(
            f"the shard {label} has no usable column of media: it has {seen or 'no columns'}; the media must be bytes, "
            f"or a struct of bytes and path, in a column named one of {', '.join(MEDIA_COLUMNS)}"
        )
    text = next((name for name in TEXT_COLUMNS if name in schema.names), None)
    split = "split" if "split" in schema.names else None
    return Layout(named[0], text, split, _classes(schema.metadata, text))


def _classes(metadata: dict[bytes, bytes] | None, column: str | None) -> list[str]:
    """The names of the classes that Hugging Face stores in the schema for a column of class numbers."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
        return [str(name) for name in names]
    except (KeyError, ValueError, TypeError, RecursionError):
        return []


def _items(batch: Any, layout: Layout) -> Iterator[_Item]:
    """The rows of a batch; the bytes of their media are not copied."""
    import pyarrow

    media, paths = batch.column(layout.media), None
    if pyarrow.types.is_struct(media.type):
        names = [field.name for field in media.type]
        parts = dict(zip(names, media.flatten(), strict=True))
        media, paths = parts["bytes"], parts.get("path")
    rest = batch.select([name for name in batch.schema.names if name != layout.media])
    for number, row in enumerate(rest.to_pylist() or [{}] * len(batch)):
        content = memoryview(media[number].as_buffer()) if media[number].is_valid else memoryview(b"")
        yield _item(content, str((paths is not None and paths[number].as_py()) or ""), row, layout)


def _item(content: memoryview, path: str, row: dict[str, Any], layout: Layout) -> _Item:
    kind = posixpath.splitext(path)[1].lower()
    if kind not in MEDIA:  # the path may be a URL (`x.jpg?width=640`), or end in the name of a server
        kind = MEDIA_COLUMNS[layout.media.lower()]
    caption = row[layout.text] if layout.text is not None else None
    if layout.classes and isinstance(caption, int) and 0 <= caption < len(layout.classes):
        caption = layout.classes[caption]
    split = captions_of(row[layout.split]) if layout.split is not None else ()
    return _Item(content, kind, captions_of(caption), split[0] if split else None)


TEXT_KEYS = ("text", "caption")
"""Keys of a .json that hold the caption, in order of precedence."""
OWN_KEY = "quintet_sha256"
"""Key of a .json that quintet wrote: the hash of the item's media. Only such a .json has a unique `file_name` and other
useful keys; those of other programs hold URLs, sizes and EXIF."""
_LARGEST_TEXT = 2**20


def build_index(store: Store, found: Sequence[ShardFile]) -> IndexBuilder:
    """Index of the items of all shards, in the order of the names of the shards and of their members."""
    builder = IndexBuilder()
    for number, each in enumerate(found):
        builder.shards.append(Shard(each.name, each.size))
        if isinstance(store, UnpackedStore):
            add_parquet(builder, store, number, each.name)
        else:
            _add_tar(builder, store, number, each.name)
    return builder


def _add_tar(builder: IndexBuilder, store: Store, number: int, name: str) -> None:
    label = f"{name} of {store.label}"
    hashes: list[str] = []
    with open_tar(store.file(name), label) as listing:
        for key, members in groupby(_visible(listing), key=lambda member: split_key(member.name)[0]):
            hashes.append(_add_item(builder, listing, number, key, list(members), name))
        builder.skipped.extend((f"{name}: {printable(member)}", reason) for member, reason in listing.problems)
        builder.shards[number] = builder.shards[number]._replace(sha256=joined_hash(hashes))
        if not listing.ended:
            builder.notes.append(f"{name} has no mark of its end: it may have been cut off; what is there is used")


def stored_hashes(path: Path) -> dict[int, str]:
    """The hash of each item of a shard that quintet wrote, by its offset, as far as the file can be listed."""
    stored: dict[int, str] = {}
    with suppress(UsageError), open_tar(path, path.name) as listing:
        for _, group in groupby(_visible(listing), key=lambda member: split_key(member.name)[0]):
            members = list(group)
            parts = {_part(member.name): member for member in reversed(members)}
            for member in members:
                if posixpath.splitext(member.name)[1].lower() in MEDIA:
                    first = members[0].header if _are_frames([member]) else member.offset
                    stored.setdefault(first, _item_metadata(listing, parts, "").sha256)
    return stored


def _visible(listing: TarListing) -> Iterator[Member]:
    return (member for member in listing if not posixpath.basename(member.name).startswith("."))


def split_key(name: str) -> tuple[str, str]:
    """The key of a member and its extension, which starts after the first dot of its name."""
    folder, base = posixpath.split(name)
    stem, _, extension = base.partition(".")
    return posixpath.join(folder, stem), extension


class _Metadata(NamedTuple):
    """The metadata of an item, from the other members of its key."""

    name: str | None
    text: str | None
    split: str | None
    extra: dict[str, Any]
    sha256: str


_Parts = Mapping[tuple[str, str], Member]
"""The members of one key, by the part of the name between key and extension, and the extension."""


def _part(name: str) -> tuple[str, str]:
    inner, _, extension = split_key(name)[1].rpartition(".")
    return inner, extension.lower()


def _add_item(
    builder: IndexBuilder, listing: TarListing, number: int, key: str, members: Sequence[Member], shard: str
) -> str:
    """Add the media of a key; returns their hash if quintet wrote the shard, else an empty text."""
    media = [member for member in members if posixpath.splitext(member.name)[1].lower() in MEDIA]
    if not media or printable(key) != key:
        reason = "a key with control characters" if media else f"no media under this key, only {_kinds(members)}"
        builder.skipped.append((f"{shard}: {printable(key)}", reason))
        return ""
    parts = {_part(member.name): member for member in reversed(members)}  # of two with one name the first counts
    of_key = _item_metadata(listing, parts, "")
    # A single image with a number in its name is a video of one frame only if quintet wrote it.
    if _are_frames(media) and (len(media) > 1 or of_key.sha256):
        last = media[-1]
        span = last.offset + last.size - media[0].header
        builder.add(Row(number, media[0].header, span, of_key.name or key, IMAGE_SEQUENCE, *of_key[1:4]))
        return of_key.sha256
    for member in media:
        inner, kind = _part(member.name)
        known = _item_metadata(listing, parts, inner) if inner else of_key
        name = (known.name if len(media) == 1 else None) or member.name
        if not member.size:
            builder.skipped.append((f"{shard}: {name}", "empty file"))
            continue
        builder.add(Row(number, member.offset, member.size, name, f".{kind}", known.text, known.split, known.extra))
    return of_key.sha256


def _are_frames(media: Sequence[Member]) -> bool:
    """Whether all members are numbered images."""
    parts = [_part(member.name) for member in media]
    return all(inner.isdecimal() and f".{kind}" in FRAME_EXTENSIONS for inner, kind in parts)


def _item_metadata(listing: TarListing, parts: _Parts, inner: str) -> _Metadata:
    metadata = _metadata(listing, parts, inner)
    by_quintet = isinstance(metadata.get(OWN_KEY), str)
    texts = _texts(listing, parts, inner, metadata, by_quintet)
    extra = {
        name: value
        for name, value in metadata.items()
        if by_quintet and name not in ("file_name", "split", "text", OWN_KEY)
    }
    if len(texts) > 1:
        extra["texts"] = list(texts)
    split = captions_of(metadata.get("split"))
    file = metadata.get("file_name")
    named = by_quintet and isinstance(file, str) and printable(file) == file
    return _Metadata(
        file if named else None,
        texts[0] if texts else None,
        split[0] if split else None,
        extra,
        metadata[OWN_KEY] if by_quintet else "",
    )


def _companion(parts: _Parts, inner: str, extension: str) -> Member | None:
    """The member with the metadata of a media file: of the same name, or else named by the key alone."""
    return parts.get((inner, extension)) or parts.get(("", extension))


def _metadata(listing: TarListing, parts: _Parts, inner: str) -> dict[str, Any]:
    """The content of the .json of an item; empty if there is none, or it is not an object."""
    member = _companion(parts, inner, "json")
    if member is None or member.size > _LARGEST_TEXT:
        return {}
    try:
        metadata = json.loads(listing.content[member.offset : member.offset + member.size])
    except (ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _texts(
    listing: TarListing, parts: _Parts, inner: str, metadata: dict[str, Any], by_quintet: bool
) -> tuple[str, ...]:
    # In a .txt each line is a caption; a .json that quintet wrote can also hold captions of several lines.
    if by_quintet and (texts := captions_of(metadata.get("text"))):
        return texts
    if (member := _companion(parts, inner, "txt")) is not None:
        content = listing.content[member.offset : member.offset + min(member.size, _LARGEST_TEXT)]
        return captions_of(decoded(content).split("\n"))
    return next((texts for key in TEXT_KEYS if (texts := captions_of(metadata.get(key)))), ())


def _kinds(members: Sequence[Member]) -> str:
    return ", ".join(sorted({split_key(member.name)[1] or "a file without extension" for member in members}))
