"""Owns Muse's data: the codes of captioned pictures, made once by frozen tokenizers and kept in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quintet.core.batch import Item, Source, collate
from quintet.core.caches import default_folder
from quintet.core.display import say
from quintet.core.draw import Draw
from quintet.core.link import Link
from quintet.core.recipe import Sources
from quintet.data.captioned import check_captions
from quintet.data.code_cache import CacheKey, CodeCache, CodeSource, identity
from quintet.data.folder import ImageFolder
from quintet.data.pictures import folder_sources
from quintet.families.muse.config import MuseConfig


def code_sources(config: MuseConfig, tokenizer: Link, low: Link | None) -> Sources:
    """Codes and captions; of `low`, the tokenizer of a base model, the field `low` beside them."""
    media = _pictures(config, tokenizer)
    entries = [entry for source in (media.train, media.validation) for entry in _folder(source).entries]
    captions = [(entry.file, entry.text or "") for entry in entries]
    check_captions(config.model, captions, "pictures", config.data.empty_captions)
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

    def codes(source: Source, part: str, variants: int = 1) -> CodeSource:
        pictures = _folder(source)
        folder = Path(config.data.cache) if config.data.cache else default_folder()
        key = CacheKey(tokenizer.digest, f"{part} {identity(pictures.entries)}", _transform(config, pictures), variants)
        return CodeCache(folder, key, pictures, collate, tokenizer.encode, _tell).open()

    train = codes(media.train, "train", config.data.variants)
    validation = codes(media.validation, "validation")
    others = {split: codes(source, split) for split, source in media.others.items()}
    skipped = {**media.skipped, **_named(train), **_named(validation)}
    return Sources(train, validation, media.fingerprint, skipped, media.about, others)


def _transform(config: MuseConfig, pictures: ImageFolder) -> str:
    text = f"{pictures.height} x {pictures.width} {pictures.mode} {config.data.truncated}"
    if pictures.train and (config.data.flip or config.data.random_crop):
        text += f" flip={config.data.flip} crop={config.data.random_crop}"
    return text


def _folder(source: Source) -> ImageFolder:
    assert isinstance(source, ImageFolder)
    return source


def _named(source: CodeSource) -> dict[str, str]:
    return {source.name(item): reason for item, reason in source.skipped.items()}


def _tell(done: int, total: int) -> None:
    say(f"pictures encoded: {done} of {total}")
