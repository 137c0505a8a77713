"""Data of Muse: codes of captioned images, encoded once by frozen tokenizers and stored in the token cache."""

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
    """Codes and captions. `low` is the tokenizer of the base model; its codes are added as the field `low`."""
    media = _images(config, tokenizer)
    check_captions(config.model, media, "images", config.data.allow_missing_captions)
    high = _tokenized(config, tokenizer, media)
    if low is None:
        return high
    base = _tokenized(config, low, _images(config, low))
    return replace(
        high,
        train=_Pairs(high.train, base.train),
        validation=_Pairs(high.validation, base.validation),
        skipped={**high.skipped, **base.skipped},
        extra_splits={name: _Pairs(split, base.extra_splits[name]) for name, split in high.extra_splits.items()},
    )


@dataclass
class _Pairs:
    """The same images with the same augmentation, as codes of two tokenizers."""

    high: Dataset
    low: Dataset

    def __len__(self) -> int:
        return len(self.high)

    def name(self, item: int) -> str:
        return self.high.name(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        return {**self.high.load(item, rng), "low": self.low.load(item, rng)["codes"]}


def _images(config: MuseConfig, tokenizer: Tokenizer[Any]) -> Splits:
    shape = tokenizer.model.config
    return folder_splits(config.data, shape.size, shape.channels)


def _tokenized(config: MuseConfig, tokenizer: Tokenizer[Any], media: Splits) -> Splits:
    return tokenized_splits(
        tokenizer.token_encoder(),
        media,
        "images encoded",
        cache=config.data.cache_dir,
        variants=config.data.variants,
        workers=config.data.num_workers,
        encoding=config.data,
    )
