"""Owns listing shards that have no index: which items are in a tar file, in the layout of WebDataset.

Members that follow each other under one key (their path up to the first dot of the name) are one item: the media, the
caption in a .txt or in the `text` or `caption` of a .json. Where names have more dots (`photo.v1.png`, `photo.v1.txt`),
the text of the same name comes before that of the key. Numbered pictures under one key (`key.001.png`, …) are a film.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from quintet.data.index.captions import captions_of, decoded
from quintet.data.index.entry import printable
from quintet.data.index.parquet import UnpackedStore, add_parquet
from quintet.data.index.shard_index import FILM, IndexBuilder, Row, Shard, joined_hash
from quintet.data.index.shard_store import MEDIA, Found, Store
from quintet.data.index.tar_members import Member, TarListing, open_tar
from quintet.media.video import FRAME_EXTENSIONS

TEXT_KEYS = ("text", "caption")
"""In a .json, in this order."""
OWN_KEY = "quintet_sha256"
"""The hash of an item's media, in a .json that quintet wrote. Only there `file_name` is unique in the set, and the rest
of use: others tell addresses, sizes and EXIF."""
_LARGEST_TEXT = 2**20


def build_index(store: Store, found: Sequence[Found]) -> IndexBuilder:
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
