"""Listing shards that have no index: tar files in the layout of WebDataset, parquet files in that of Hugging Face.

Members of a tar file that follow each other under one key (their path up to the first dot of the name) are one item:
the media, the caption in a .txt or in the `text` or `caption` of a .json. Where names have more dots (`photo.v1.png`,
`photo.v1.txt`), the text of the same name comes before that of the key. Numbered pictures under one key (`key.001.png`,
…) are a film.

A parquet file has a column of media as bytes and columns that tell of them. The bytes of a row lie compressed amid
those of hundreds of others, so a file is unpacked into the cache once, row after row without anything between; items
are then read from there like members of a tar file.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from quintet.common import files
from quintet.common.caches import only_writer
from quintet.data.index.captions import captions_of, decoded
from quintet.data.index.entry import printable
from quintet.data.index.shard_index import FILM, IndexBuilder, Row, Shard, joined_hash
from quintet.data.index.shard_store import MEDIA, ShardFile, Store
from quintet.data.index.tar_members import Member, TarListing, open_tar
from quintet.errors import UsageError
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
"""Of a column that holds files, what they are where they have no names of their own. The content decides in the end."""
TEXT_COLUMNS = ("text", "caption", "captions", "prompt", "sentence", "transcription", "label")
_SPLIT = re.compile(r"(?:^|[-._ /0-9])(train|validation|valid|val|test)(?=[-._ /0-9])", re.IGNORECASE)
"""A word of its own in the path of a file, as Hugging Face has them: between these characters."""
_ROWS = 256


class Layout(NamedTuple):
    """Which columns of a file are used, and the names of its classes, where the caption is the number of one."""

    media: str
    text: str | None
    split: str | None
    classes: list[str]


@dataclass(frozen=True)
class UnpackedStore:
    """A place of parquet files, each as one file of the media in it."""

    packed: Store
    cache: Path

    @property
    def shown(self) -> str:
        return self.packed.shown

    def found(self) -> list[ShardFile]:
        return self.packed.found()

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
            folder.mkdir(parents=True, exist_ok=True)
            with only_writer(folder / f"{key}.lock"):
                if not path.exists():
                    _unpack(source, path, f"{name} of {self.shown}")
        return path


def add_parquet(builder: IndexBuilder, store: UnpackedStore, number: int, name: str) -> None:
    """The rows of a file as items, named after the file and their number."""
    shown = f"{name} of {store.shown}"
    offset = 0
    stem = posixpath.splitext(name)[0]
    told = _SPLIT.findall(name)  # of several the one nearest to the file
    content = hashlib.sha256()
    for count, row in enumerate(_rows(store.packed.file(name), shown)):
        file = f"{stem}/{count:06d}{row.kind}"
        if row.content:
            split = row.split or (told[-1].lower() if told else None)
            extra = {"texts": list(row.texts)} if len(row.texts) > 1 else {}
            text = row.texts[0] if row.texts else None
            builder.add(Row(number, offset, len(row.content), file, row.kind, text, split, extra))
        else:
            builder.skipped.append((file, "the row holds no bytes"))
        offset += len(row.content)
        content.update(row.content)
    builder.shards[number] = Shard(name, offset, content.hexdigest())


class _Item(NamedTuple):
    content: bytes
    kind: str
    texts: tuple[str, ...]
    split: str | None


def _unpack(source: Path, path: Path, shown: str) -> None:
    with files.atomic_write(path) as temporary, temporary.open("wb") as stream:
        for row in _rows(source, shown):
            stream.write(row.content)


def _rows(path: Path, shown: str) -> Iterator[_Item]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(f"{shown}: parquet files need pyarrow: pip install 'quintet[shards]'") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            layout = _layout(file.schema_arrow, shown)
            columns = [column for column in (layout.media, layout.text, layout.split) if column is not None]
            for batch in file.iter_batches(_ROWS, columns=columns):
                for row in batch.to_pylist():
                    yield _item(row, layout)
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(
            f"the shard {shown} is cut off or damaged ({files.one_line(error)}); copy or make it again"
        ) from None


def _layout(schema: Any, shown: str) -> Layout:
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
            f"the shard {shown} has no usable column: it has {seen or 'none'}; the media must be bytes, or bytes and "
            f"path, in a column with one of the names {', '.join(MEDIA_COLUMNS)}"
        )
    text = next((name for name in TEXT_COLUMNS if name in schema.names), None)
    split = "split" if "split" in schema.names else None
    return Layout(named[0], text, split, _classes(schema.metadata, text))


def _classes(metadata: dict[bytes, bytes] | None, column: str | None) -> list[str]:
    """The names of classes that Hugging Face keeps beside a column of their numbers."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
        return [str(name) for name in names]
    except (KeyError, ValueError, TypeError, RecursionError):
        return []


def _item(row: dict[str, Any], layout: Layout) -> _Item:
    media = row[layout.media]
    path = ""
    if isinstance(media, dict):
        path, media = str(media.get("path") or ""), media["bytes"]
    kind = posixpath.splitext(path)[1].lower()
    if kind not in MEDIA:  # the path may be an address (`x.jpg?width=640`), or end in whatever a server is called
        kind = MEDIA_COLUMNS[layout.media.lower()]
    told = row[layout.text] if layout.text is not None else None
    if layout.classes and isinstance(told, int) and 0 <= told < len(layout.classes):
        told = layout.classes[told]
    split = captions_of(row[layout.split]) if layout.split is not None else ()
    return _Item(media or b"", kind, captions_of(told), split[0] if split else None)


TEXT_KEYS = ("text", "caption")
"""In a .json, in this order."""
OWN_KEY = "quintet_sha256"
"""The hash of an item's media, in a .json that quintet wrote. Only there `file_name` is unique in the set, and the rest
of use: others tell addresses, sizes and EXIF."""
_LARGEST_TEXT = 2**20


def build_index(store: Store, found: Sequence[ShardFile]) -> IndexBuilder:
    """The items of all shards, in the order of the shards' names and of their members."""
    builder = IndexBuilder()
    for number, each in enumerate(found):
        builder.shards.append(Shard(each.name, each.size))
        if isinstance(store, UnpackedStore):
            add_parquet(builder, store, number, each.name)
        else:
            _add_tar(builder, store, number, each.name)
    return builder


def _add_tar(builder: IndexBuilder, store: Store, number: int, name: str) -> None:
    shown = f"{name} of {store.shown}"
    hashes: list[str] = []
    with open_tar(store.file(name), shown) as listing:
        for key, members in groupby(_visible(listing), key=lambda member: split_key(member.name)[0]):
            hashes.append(_add_item(builder, listing, number, key, list(members), name))
        builder.skipped.extend((f"{name}: {printable(member)}", reason) for member, reason in listing.problems)
        builder.shards[number] = builder.shards[number]._replace(sha256=joined_hash(hashes))
        if not listing.ended:
            builder.notes.append(f"{name} has no mark of its end: it may have been cut off; what is there is used")


def _visible(listing: TarListing) -> Iterator[Member]:
    return (member for member in listing if not posixpath.basename(member.name).startswith("."))


def split_key(name: str) -> tuple[str, str]:
    """The key of a member and its extension, which begins after the first dot of its name."""
    folder, base = posixpath.split(name)
    stem, _, extension = base.partition(".")
    return posixpath.join(folder, stem), extension


class _Known(NamedTuple):
    """What the members beside a medium say of it."""

    name: str | None
    text: str | None
    split: str | None
    extra: dict[str, Any]
    sha256: str


_Parts = Mapping[tuple[str, str], Member]
"""The members under one key, by what stands between the key and the extension, and the extension."""


def _part(name: str) -> tuple[str, str]:
    inner, _, extension = split_key(name)[1].rpartition(".")
    return inner, extension.lower()


def _add_item(
    builder: IndexBuilder, listing: TarListing, number: int, key: str, members: Sequence[Member], shard: str
) -> str:
    """The media under a key; returns their hash, where quintet wrote it beside them."""
    media = [member for member in members if posixpath.splitext(member.name)[1].lower() in MEDIA]
    if not media or printable(key) != key:
        reason = "a key with control characters" if media else f"no media under this key, only {_kinds(members)}"
        builder.skipped.append((f"{shard}: {printable(key)}", reason))
        return ""
    parts = {_part(member.name): member for member in reversed(members)}  # of two of one name the first
    of_key = _known(listing, parts, "")
    # One picture with a number in its name may be any picture, unless quintet called it so.
    if _are_frames(media) and (len(media) > 1 or of_key.sha256):
        last = media[-1]
        span = last.offset + last.size - media[0].header
        builder.add(Row(number, media[0].header, span, of_key.name or key, FILM, *of_key[1:4]))
        return of_key.sha256
    for member in media:
        inner, kind = _part(member.name)
        known = _known(listing, parts, inner) if inner else of_key
        name = (known.name if len(media) == 1 else None) or member.name
        if not member.size:
            builder.skipped.append((f"{shard}: {name}", "empty file"))
            continue
        builder.add(Row(number, member.offset, member.size, name, f".{kind}", known.text, known.split, known.extra))
    return of_key.sha256


def _are_frames(media: Sequence[Member]) -> bool:
    """Whether these are numbered pictures."""
    parts = [_part(member.name) for member in media]
    return all(inner.isdecimal() and f".{kind}" in FRAME_EXTENSIONS for inner, kind in parts)


def _known(listing: TarListing, parts: _Parts, inner: str) -> _Known:
    told = _told(listing, parts, inner)
    own = isinstance(told.get(OWN_KEY), str)
    texts = _texts(listing, parts, inner, told, own)
    extra = {name: value for name, value in told.items() if own and name not in ("file_name", "split", "text", OWN_KEY)}
    if len(texts) > 1:
        extra["texts"] = list(texts)
    split = captions_of(told.get("split"))
    file = told.get("file_name")
    named = own and isinstance(file, str) and printable(file) == file
    return _Known(
        file if named else None,
        texts[0] if texts else None,
        split[0] if split else None,
        extra,
        told[OWN_KEY] if own else "",
    )


def _beside(parts: _Parts, inner: str, extension: str) -> Member | None:
    """The member that speaks for a medium: called as it is, or else as the key alone."""
    return parts.get((inner, extension)) or parts.get(("", extension))


def _told(listing: TarListing, parts: _Parts, inner: str) -> dict[str, Any]:
    """What the .json of an item says; nothing where it is none."""
    member = _beside(parts, inner, "json")
    if member is None or member.size > _LARGEST_TEXT:
        return {}
    try:
        told = json.loads(listing.content[member.offset : member.offset + member.size])
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _texts(listing: TarListing, parts: _Parts, inner: str, told: dict[str, Any], own: bool) -> tuple[str, ...]:
    # In a .txt each line is a caption; a .json of quintet's tells captions of several lines too.
    if own and (texts := captions_of(told.get("text"))):
        return texts
    if (member := _beside(parts, inner, "txt")) is not None:
        content = listing.content[member.offset : member.offset + min(member.size, _LARGEST_TEXT)]
        return captions_of(decoded(content).split("\n"))
    return next((texts for key in TEXT_KEYS if (texts := captions_of(told.get(key)))), ())


def _kinds(members: Sequence[Member]) -> str:
    return ", ".join(sorted({split_key(member.name)[1] or "a file without extension" for member in members}))
