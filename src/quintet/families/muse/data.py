"""Owns Muse's data: the codes of captioned pictures, made once by frozen tokenizers and kept in the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from quintet.common.batch import Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.data.captioned import check_captions
from quintet.data.image import folder_splits
from quintet.data.splits import Splits
from quintet.data.tokenized import tokenized_splits
from quintet.families.muse.config import MuseConfig
from quintet.pipelines.base import Tokenizer


def token_splits(config: MuseConfig, tokenizer: Tokenizer[Any], low: Tokenizer[Any] | None) -> Splits:
    """Codes and captions; of `low`, the tokenizer of a base model, the field `low` beside them."""
    media = _pictures(config, tokenizer)
    check_captions(config.model, media, "pictures", config.data.allow_missing_captions)
    own = _coded(config, tokenizer, media)
    if low is None:
        return own
    below = _coded(config, low, _pictures(config, low))
    return replace(
        own,
        train=_Pairs(own.train, below.train),
        validation=_Pairs(own.validation, below.validation),
        skipped={**own.skipped, **below.skipped},
        extra_splits={split: _Pairs(source, below.extra_splits[split]) for split, source in own.extra_splits.items()},
    )


@dataclass
class _Pairs:
    """The same pictures, augmented alike, in the codes of two tokenizers."""

    high: Dataset
    low: Dataset

    def __len__(self) -> int:
        return len(self.high)

    def name(self, item: int) -> str:
        return self.high.name(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        return {**self.high.load(item, rng), "low": self.low.load(item, rng)["codes"]}


def _pictures(config: MuseConfig, tokenizer: Tokenizer[Any]) -> Splits:
    shape = tokenizer.model.config
    return folder_splits(config.data, shape.size, shape.channels)


def _coded(config: MuseConfig, tokenizer: Tokenizer[Any], media: Splits) -> Splits:
    return tokenized_splits(
        tokenizer.token_encoder(), media, "pictures encoded", cache=config.data.cache_dir, variants=config.data.variants
    )
