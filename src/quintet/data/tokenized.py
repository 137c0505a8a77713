"""Splits of tokens: each media dataset is encoded once by a frozen model and stored in the token cache.

The cache key comes from the dataset: its files in their order, their modification times and their preprocessing. A
dataset without such a key is encoded for this training only. `fresh_splits` encodes the items of a Python data set
whenever they are read, for data sets whose items are random.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Protocol, runtime_checkable
from weakref import finalize

import torch
from torch import Tensor

from quintet.common.batch import Batch, Collate, Dataset, Item
from quintet.common.caches import default_folder
from quintet.common.logging import say
from quintet.common.precision import autocast_dtype
from quintet.common.rng import ItemRNG
from quintet.config import EncodingConfig
from quintet.data.index.entry import Entry
from quintet.data.index.shards import ShardEntries
from quintet.data.python_dataset import PythonDataset
from quintet.data.splits import Splits
from quintet.data.token_cache import CacheKey, Encode, MediaDataset, TokenCache, TokenDataset

CPU = torch.device("cpu")
DEFAULT_ENCODING = EncodingConfig()
UNNAMED_ENCODING = (32, "fp32")
"""The encoding of caches without a description of it, whatever the defaults become."""


@runtime_checkable
class FileDataset(MediaDataset, Protocol):
    """A media dataset from files, from which a cache key can be computed."""

    @property
    def entries(self) -> Sequence[Entry]: ...

    @property
    def preprocessing_key(self) -> str:
        """Text of all preprocessing settings; part of the token-cache key."""


@dataclass(frozen=True)
class TokenEncoder:
    """A frozen model that turns media into tokens, or into one vector per item."""

    digest: str
    """Hash of everything that the result depends on, except the media."""
    collate: Collate
    encode: Encode
    field: str = "codes"
    """Field of an item that holds the result."""
    device: torch.device = CPU
    """The device on which it runs."""

    def in_precision(self, precision: str) -> Encode:
        """`encode` in another precision than that of the weights."""
        dtype = autocast_dtype(precision)
        if dtype is None:
            return self.encode

        def encode(batch: Batch) -> Tensor:
            with torch.autocast(self.device.type, dtype):
                return self.encode(batch)

        return encode


def tokenized_splits(
    encoder: TokenEncoder,
    media: Splits,
    done: str,
    *,
    cache: str | None = None,
    variants: int = 1,
    workers: int = 0,
    encoding: EncodingConfig = DEFAULT_ENCODING,
) -> Splits:
    """The same items, encoded by a frozen model; `done` labels the progress messages ("clips encoded").

    `cache` is the folder of the token cache; None means the default folder of the user. Each training item is encoded
    in `variants` augmented versions. `workers` processes read the media of data sets from files. Codes with another
    `encoding` have another cache.
    """
    skipped = dict(media.skipped)

    def codes(source: Dataset, part: str, variants: int = 1) -> TokenDataset:
        assert isinstance(source, MediaDataset), "`metadata` returns captions without opening the media"
        tokens = _encoded(encoder, source, part, variants, done, cache, workers, encoding)
        skipped.update({tokens.name(item): reason for item, reason in tokens.skipped.items()})
        return tokens

    train = codes(media.train, "train", variants)
    validation = codes(media.validation, "validation")
    extra_splits = {split: codes(source, split) for split, source in media.extra_splits.items()}
    return replace(media, train=train, validation=validation, skipped=skipped, extra_splits=extra_splits)


@dataclass
class FreshTokens:
    """Items of a Python data set, encoded whenever they are read.

    An item that the data set draws at random is another one in every epoch. A resumed run equals an uninterrupted one
    only if the data set returns the same items again.
    """

    media: PythonDataset
    encoder: TokenEncoder

    def __len__(self) -> int:
        return len(self.media)

    def name(self, item: int) -> str:
        return self.media.name(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        position = self.media.positions[item]
        # Read once: the media and the caption must be those of the same random item.
        read: Any = {position: self.media.dataset[position]}
        media = replace(self.media, dataset=read)
        batch = Batch(self.encoder.collate([media.load(item, rng)]), (self.name(item),), rng)
        codes = self.encoder.encode(batch)[0].cpu().numpy()
        return {**media.metadata(item), self.encoder.field: torch.from_numpy(codes.copy())}


def fresh_splits(encoder: TokenEncoder, media: Splits) -> Splits:
    """The same items of a Python data set, encoded by a frozen model at every step."""

    def codes(source: Dataset) -> FreshTokens:
        assert isinstance(source, PythonDataset)
        return FreshTokens(source, encoder)

    extra_splits = {split: codes(source) for split, source in media.extra_splits.items()}
    return replace(media, train=codes(media.train), validation=codes(media.validation), extra_splits=extra_splits)


def _encoded(
    encoder: TokenEncoder,
    source: MediaDataset,
    part: str,
    variants: int,
    done: str,
    cache: str | None,
    workers: int,
    encoding: EncodingConfig,
) -> TokenDataset:
    cacheable = isinstance(source, FileDataset)
    folder = Path(cache or default_folder()) if cacheable else Path(mkdtemp(prefix="quintet-codes-"))
    data, transform = "", ""
    if isinstance(source, FileDataset):
        data, transform = _identity(source.entries), source.preprocessing_key
    size, precision = encoding.encode_batch_size, encoding.encode_precision
    where = "" if precision == "fp32" else f" on {encoder.device.type}"  # rounding decides some codes
    described = "" if (size, precision) == UNNAMED_ENCODING else f"{precision}{where} in batches of {size}"
    key = CacheKey(encoder.digest, f"{part} {data}", transform, variants, described)

    def progress(count: int, total: int) -> None:
        # Processes share the cached codes; codes that are not cached are encoded by every process.
        say(f"{done}: {count} of {total}", any_rank=cacheable)

    workers = workers if cacheable else 0  # a data set object may not be for several processes
    encode = encoder.in_precision(precision)
    tokens = TokenCache(folder, key, source, encoder.collate, encode, progress, encoder.field, workers, size).open()
    if not cacheable:
        # Two data set objects cannot be compared, so their codes are removed after the training.
        finalize(tokens, _remove, folder, os.getpid())
    return tokens


def _identity(entries: Sequence[Entry]) -> str:
    """Hash of the names, sizes and modification times of the files in order; codes are looked up by position."""
    if isinstance(entries, ShardEntries):
        return entries.version
    rows = [[entry.file, entry.stamp] for entry in entries]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _remove(folder: Path, owner: int) -> None:
    """Remove the folder in the process that made it; data workers hold the dataset too."""
    if os.getpid() == owner:
        rmtree(folder, ignore_errors=True)
