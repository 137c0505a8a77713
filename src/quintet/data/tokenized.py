"""Splits of media as splits of tokens: each dataset as a frozen model encodes it, once, and kept in the token cache.

What tokens depend on is read off the dataset itself: which files stand at which position, when they were changed, and
how they are preprocessed. A dataset that cannot tell is encoded for this training alone.
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
from typing import Protocol, runtime_checkable
from weakref import finalize

from quintet.common.batch import Dataset
from quintet.common.caches import default_folder
from quintet.common.logging import say
from quintet.data.index.entry import Entry
from quintet.data.index.shards import ShardEntries
from quintet.data.splits import Splits
from quintet.data.token_cache import CacheKey, Collate, Encode, MediaDataset, TokenCache, TokenDataset


@runtime_checkable
class FileDataset(MediaDataset, Protocol):
    """Media that can tell what their codes depend on."""

    @property
    def entries(self) -> Sequence[Entry]: ...

    @property
    def preprocessing_key(self) -> str:
        """How files are read, cut and augmented."""


@dataclass(frozen=True)
class TokenEncoder:
    """What turns media into tokens, or into a vector of each item: a frozen model, as the token cache needs it."""

    digest: str
    """A hash of all that the result depends on, except the media."""
    collate: Collate
    encode: Encode
    field: str = "codes"
    """The field of items."""


def tokenized_splits(
    encoder: TokenEncoder, media: Splits, done: str, *, cache: str | None = None, variants: int = 1
) -> Splits:
    """The same items as a frozen model encodes them; `done` is said beside how many are done ("clips encoded").

    `cache` is the folder of the token cache, none for the user's own. Of an item to train on there are so many
    `variants`, each augmented in its own way.
    """
    skipped = dict(media.skipped)

    def codes(source: Dataset, part: str, variants: int = 1) -> TokenDataset:
        assert isinstance(source, MediaDataset), "captions are asked for by `metadata`: media are opened only once"
        made = _made(encoder, source, part, variants, done, cache)
        skipped.update({made.name(item): reason for item, reason in made.skipped.items()})
        return made

    train = codes(media.train, "train", variants)
    validation = codes(media.validation, "validation")
    extra_splits = {split: codes(source, split) for split, source in media.extra_splits.items()}
    return replace(media, train=train, validation=validation, skipped=skipped, extra_splits=extra_splits)


def _made(
    encoder: TokenEncoder, source: MediaDataset, part: str, variants: int, done: str, cache: str | None
) -> TokenDataset:
    known = isinstance(source, FileDataset)
    folder = Path(cache or default_folder()) if known else Path(mkdtemp(prefix="quintet-codes-"))
    data, transform = "", ""
    if isinstance(source, FileDataset):
        data, transform = _identity(source.entries), source.preprocessing_key
    key = CacheKey(encoder.digest, f"{part} {data}", transform, variants)

    def tell(count: int, total: int) -> None:
        # Whichever process comes first encodes for all; codes that are not kept every process makes itself.
        say(f"{done}: {count} of {total}", any_rank=known)

    made = TokenCache(folder, key, source, encoder.collate, encoder.encode, tell, encoder.field).open()
    if not known:
        # Nothing tells whether two data set objects are the same.
        finalize(made, _remove, folder, os.getpid())
    return made


def _identity(entries: Sequence[Entry]) -> str:
    """Which files stand at which place, and when they were changed: codes are looked up by place."""
    if isinstance(entries, ShardEntries):
        return entries.version
    rows = [[entry.file, entry.stamp] for entry in entries]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _remove(folder: Path, owner: int) -> None:
    """Not by a data worker, which has the source too."""
    if os.getpid() == owner:
        rmtree(folder, ignore_errors=True)
