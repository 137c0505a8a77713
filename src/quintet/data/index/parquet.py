"""Owns parquet files as shards: the layout of Hugging Face, a column of media as bytes and columns that tell of them.

The bytes of a row lie compressed amid those of hundreds of others, so a file is unpacked into the cache once, row after
row without anything between; items are then read from there like members of a tar file.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from quintet.common import files
from quintet.common.caches import only_writer
from quintet.data.index.captions import captions_of
from quintet.data.index.shard_index import IndexBuilder, Row, Shard
from quintet.data.index.shard_store import MEDIA, Found, Store
from quintet.errors import UsageError

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

    def found(self) -> list[Found]:
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
