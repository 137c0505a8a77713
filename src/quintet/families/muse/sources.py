"""Owns Muse's data: the codes of captioned pictures, made once by frozen tokenizers and kept in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quintet.core.batch import Item, Source, collate
from quintet.core.caches import default_folder
from quintet.core.display import say
from quintet.core.draw import Draw
from quintet.core.link import Link
from quintet.core.recipe import Sources
from quintet.data.code_cache import CacheKey, CodeCache, CodeSource
from quintet.data.folder import ImageFolder
from quintet.data.pictures import folder_sources
from quintet.errors import UsageError
from quintet.families.muse.config import MuseConfig


def code_sources(config: MuseConfig, tokenizer: Link, low: Link | None) -> Sources:
    """Codes and captions; of `low`, the tokenizer of a base model, the field `low` beside them."""
    media = _pictures(config, tokenizer)
    _check_captions(config, media)
    own = _coded(config, tokenizer, media)
    if low is None:
        return own
    below = _coded(config, low, _pictures(config, low))
    return Sources(
        _Pairs(own.train, below.train),
        _Pairs(own.validation, below.validation),
        own.fingerprint,
        {**own.skipped, **below.skipped},
        own.about,
        {split: _Pairs(source, below.others[split]) for split, source in own.others.items()},
    )


@dataclass
class _Pairs:
    """The same pictures, augmented alike, in the codes of two tokenizers."""

    high: Source
    low: Source

    def __len__(self) -> int:
        return len(self.high)

    def name(self, item: int) -> str:
        return self.high.name(item)

    def load(self, item: int, draw: Draw) -> Item:
        return {**self.high.load(item, draw), "low": self.low.load(item, draw)["codes"]}


def _pictures(config: MuseConfig, tokenizer: Link) -> Sources:
    shape = tokenizer.model.config
    return folder_sources(config.data, shape.size, shape.channels)


def _coded(config: MuseConfig, tokenizer: Link, media: Sources) -> Sources:
    """The same sources as codes, encoded where they are not yet."""

    def codes(pictures: Source, part: str, variants: int = 1) -> CodeSource:
        assert isinstance(pictures, ImageFolder)
        folder = Path(config.data.cache) if config.data.cache else default_folder()
        key = CacheKey(tokenizer.digest, f"{part} {_identity(pictures)}", _transform(config, pictures), variants)
        return CodeCache(folder, key, pictures, collate, tokenizer.encode, _tell).open()

    train = codes(media.train, "train", config.data.variants)
    validation = codes(media.validation, "validation")
    others = {split: codes(source, split) for split, source in media.others.items()}
    skipped = {**media.skipped, **_named(train), **_named(validation)}
    return Sources(train, validation, media.fingerprint, skipped, media.about, others)


def _identity(pictures: ImageFolder) -> str:
    """Which files stand at which place, and when they were changed: codes are looked up by place."""
    rows = [[entry.file, entry.stamp] for entry in pictures.entries]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _transform(config: MuseConfig, pictures: ImageFolder) -> str:
    text = f"{pictures.height} x {pictures.width} {pictures.mode} {config.data.truncated}"
    if pictures.train and (config.data.flip or config.data.random_crop):
        text += f" flip={config.data.flip} crop={config.data.random_crop}"
    return text


def _check_captions(config: MuseConfig, media: Sources) -> None:
    if config.model.text == "none":
        return
    entries = [entry for source in (media.train, media.validation) for entry in source.entries]  # type: ignore[attr-defined]
    if config.model.text == "classes":
        known = set(config.model.classes or ())
        foreign = [entry for entry in entries if entry.text and entry.text not in known]
        if foreign:
            raise UsageError(
                f"{len(foreign)} captions are none of the {len(known)} classes (model.classes), for one "
                f"{foreign[0].text!r} of {foreign[0].file}"
            )
    missing = [entry.file for entry in entries if not entry.text]
    if missing and not config.data.empty_captions:
        raise UsageError(
            f"{len(missing)} of {len(entries)} pictures have no caption, {missing[0]} for one; add captions, train "
            "with data.empty_captions=true, or without text (model.text=none)"
        )
    if long := too_long(config, [entry.text or "" for entry in entries]):
        most = config.model.text_length - 2
        say(f"{len(long)} captions have more than {most} bytes and are cut (model.text_length), for one: {long[0]!r}")


def too_long(config: MuseConfig, texts: Sequence[str]) -> list[str]:
    """Those that a byte encoder cuts; a frozen encoder counts in its own tokens and tells of its own cuts."""
    most = config.model.text_length - 2
    return [text for text in texts if config.model.text == "bytes" and len(text.encode(errors="replace")) > most]


def _named(source: CodeSource) -> dict[str, str]:
    return {source.name(item): reason for item, reason in source.skipped.items()}


def _tell(done: int, total: int) -> None:
    say(f"pictures encoded: {done} of {total}")
