"""Owns listing shards that have no index: which items are in a tar file, in the layout of WebDataset.

Members that follow each other under one key (their path up to the first dot of the name) are one item: the media, the
caption in a .txt or in the `text` or `caption` of a .json. Numbered pictures under one key (`key.001.png`) are a film.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from quintet.data.captions import captions_of, decoded
from quintet.data.folder import printable
from quintet.data.parquet import UnpackedStore, add_parquet
from quintet.data.shard_index import FILM, IndexBuilder, Row, Shard
from quintet.data.shard_store import Found, Store
from quintet.data.tar_members import Member, TarListing, open_tar
from quintet.media import audio as sounds
from quintet.media import image as images
from quintet.media import mesh as meshes
from quintet.media import video as films

MEDIA = images.EXTENSIONS | sounds.EXTENSIONS | meshes.EXTENSIONS | films.EXTENSIONS
TEXT_KEYS = ("text", "caption")
"""In a .json, in this order; `file_name` beside them is what the file was called before it came into the shard."""
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
    with open_tar(store.file(name), shown) as listing:
        for key, members in groupby(_visible(listing), key=lambda member: split_key(member.name)[0]):
            _add_item(builder, listing, number, key, list(members), name)
        builder.skipped.extend((f"{name}: {printable(member)}", reason) for member, reason in listing.problems)
        if not listing.ended:
            builder.notes.append(f"{name} has no mark of its end: it may have been cut off; what is there is used")


def _visible(listing: TarListing) -> Iterator[Member]:
    return (member for member in listing if not posixpath.basename(member.name).startswith("."))


def split_key(name: str) -> tuple[str, str]:
    """The key of a member and its extension, which begins after the first dot of its name."""
    folder, base = posixpath.split(name)
    stem, _, extension = base.partition(".")
    return posixpath.join(folder, stem), extension


def _add_item(
    builder: IndexBuilder, listing: TarListing, number: int, key: str, members: Sequence[Member], shard: str
) -> None:
    told = _told(listing, members)
    media = [member for member in members if posixpath.splitext(member.name)[1].lower() in MEDIA]
    if not media or printable(key) != key:
        reason = "a key with control characters" if media else f"no media under this key, only {_kinds(members)}"
        builder.skipped.append((f"{shard}: {printable(key)}", reason))
        return
    texts = _texts(listing, members, told)
    # What others put into a .json (addresses, sizes, EXIF) is of no use here.
    own = "file_name" in told
    extra = {name: value for name, value in told.items() if own and name not in ("file_name", "split", "text")}
    if len(texts) > 1:
        extra["texts"] = list(texts)
    split = captions_of(told.get("split"))
    known = (texts[0] if texts else None, split[0] if split else None, extra)
    if _is_film(media):
        last = media[-1]
        span = last.offset + last.size - media[0].header
        builder.add(Row(number, media[0].header, span, _named(told, key), FILM, *known))
        return
    for member in media:
        name = _named(told, member.name) if len(media) == 1 else member.name
        kind = posixpath.splitext(member.name)[1].lower()
        if not member.size:
            builder.skipped.append((f"{shard}: {name}", "empty file"))
            continue
        builder.add(Row(number, member.offset, member.size, name, kind, *known))


def _is_film(media: Sequence[Member]) -> bool:
    """Whether these are the numbered pictures of one."""
    for member in media:
        count, _, extension = split_key(member.name)[1].rpartition(".")
        if not count.isdecimal() or f".{extension.lower()}" not in films.FRAME_EXTENSIONS:
            return False
    return True


def _named(told: dict[str, Any], name: str) -> str:
    """What it was called in its folder, where that is known."""
    file = told.get("file_name")
    return file if isinstance(file, str) and file and printable(file) == file else name


def _told(listing: TarListing, members: Sequence[Member]) -> dict[str, Any]:
    """What the .json of an item says; nothing where it is none."""
    for member in members:
        if split_key(member.name)[1].lower() == "json" and member.size <= _LARGEST_TEXT:
            try:
                told = json.loads(listing.content[member.offset : member.offset + member.size])
            except (ValueError, RecursionError):
                return {}
            return told if isinstance(told, dict) else {}
    return {}


def _texts(listing: TarListing, members: Sequence[Member], told: dict[str, Any]) -> tuple[str, ...]:
    own = captions_of(told.get("text")) if "file_name" in told else ()
    if own:
        return own
    for member in members:
        if split_key(member.name)[1].lower() == "txt":
            content = listing.content[member.offset : member.offset + min(member.size, _LARGEST_TEXT)]
            return captions_of(decoded(content).split("\n"))
    return next((texts for key in TEXT_KEYS if (texts := captions_of(told.get(key)))), ())


def _kinds(members: Sequence[Member]) -> str:
    return ", ".join(sorted({split_key(member.name)[1] or "a file without extension" for member in members}))
