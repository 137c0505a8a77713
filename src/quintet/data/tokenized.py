"""Owns the way from a run's media to their codes: each source as a frozen model has it, made once and kept.

What codes depend on is read off the source itself: which files stand at which place, when they were changed, and how
they are cut. A source that cannot tell is encoded for this training alone.
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
from quintet.data.index.folder import Entry
from quintet.data.index.shards import ShardEntries
from quintet.data.splits import Splits
from quintet.data.token_cache import CacheKey, Collate, Encode, MediaDataset, TokenCache, TokenDataset
from quintet.pipelines.frozen import FrozenModel


@runtime_checkable
class FileDataset(MediaDataset, Protocol):
    """Media that can tell what their codes depend on."""

    @property
    def entries(self) -> Sequence[Entry]: ...

    @property
    def reading(self) -> str:
        """How files are read, cut and augmented."""


@dataclass(frozen=True)
class TokenEncoder:
    """A frozen model that makes something of media: codes, or a vector of each item."""

    digest: str
    """A hash of all that it makes depends on, but for the media."""
    collate: Collate
    encode: Encode
    kept_as: str = "codes"
    """The field of items."""


def tokenized_splits(
    tokenizer: FrozenModel, media: Splits, what: str, *, cache: str | None = None, variants: int = 1
) -> Splits:
    """The same items as codes; `what` they are called together.

    `cache` is the folder of the code cache, none for the user's own. Of an item to train on there are so many
    `variants`, each augmented in its own way.
    """
    maker = TokenEncoder(tokenizer.digest, tokenizer.recipe.collate, tokenizer.encode)
    return encoded_splits(maker, media, f"{what} encoded", cache=cache, variants=variants)


def encoded_splits(
    maker: TokenEncoder, media: Splits, done: str, *, cache: str | None = None, variants: int = 1
) -> Splits:
    """The same items as a frozen model has them; `done` is said beside how many have been through it."""
    skipped = dict(media.skipped)

    def codes(source: Dataset, part: str, variants: int = 1) -> TokenDataset:
        assert isinstance(source, MediaDataset), "captions are asked for by `about`: media are opened only once"
        made = _made(maker, source, part, variants, done, cache)
        skipped.update({made.name(item): reason for item, reason in made.skipped.items()})
        return made

    train = codes(media.train, "train", variants)
    validation = codes(media.validation, "validation")
    extra_splits = {split: codes(source, split) for split, source in media.extra_splits.items()}
    return replace(media, train=train, validation=validation, skipped=skipped, extra_splits=extra_splits)


def _made(
    maker: TokenEncoder, source: MediaDataset, part: str, variants: int, done: str, cache: str | None
) -> TokenDataset:
    known = isinstance(source, FileDataset)
    folder = Path(cache or default_folder()) if known else Path(mkdtemp(prefix="quintet-codes-"))
    data, reading = (_identity(source.entries), source.reading) if isinstance(source, FileDataset) else ("", "")
    key = CacheKey(maker.digest, f"{part} {data}", reading, variants)

    def tell(count: int, total: int) -> None:
        # Whichever process comes first encodes for all; codes that are not kept every process makes itself.
        say(f"{done}: {count} of {total}", any_rank=known)

    made = TokenCache(folder, key, source, maker.collate, maker.encode, tell, maker.kept_as).open()
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
