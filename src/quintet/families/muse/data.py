"""Owns Muse's data: the codes of captioned pictures, made once by frozen tokenizers and kept in the cache."""

from __future__ import annotations

from dataclasses import dataclass

from quintet.common.batch import Item, Source
from quintet.common.rng import Draw
from quintet.data.captioned import check_captions
from quintet.data.image import folder_sources
from quintet.data.tokenized import coded_sources
from quintet.families.muse.config import MuseConfig
from quintet.pipelines.frozen import Link
from quintet.training.task import Sources


def code_sources(config: MuseConfig, tokenizer: Link, low: Link | None) -> Sources:
    """Codes and captions; of `low`, the tokenizer of a base model, the field `low` beside them."""
    media = _pictures(config, tokenizer)
    check_captions(config.model, media, "pictures", config.data.empty_captions)
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
    return coded_sources(tokenizer, media, "pictures", cache=config.data.cache, variants=config.data.variants)
