"""Judges of synthetic data sets: programs without learned weights that say whether media show what captions promise.

Each set has one, in its `<set>_judge` module; `quintet.registry.find_judge` finds it by the set's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

WITHHELD = "withheld"
"""The split of items that show two attributes which are never trained on together."""

MediaT = TypeVar("MediaT")
Row = Mapping[str, Any]
"""What is true of an item: its columns in `metadata.jsonl`."""
Scores = Mapping[str, float | list[float]]


class Judge(ABC, Generic[MediaT]):
    """Metrics of media against the metadata of the items whose captions they were generated from."""

    splits: ClassVar[tuple[str, ...]] = ("validation", WITHHELD)
    """The splits that can be judged."""

    def metrics(self, media: Iterable[MediaT], metadata: Sequence[Row], split: str) -> dict[str, Tensor]:
        """By metric the scores of all items, (items) or (items, …) float64, 1 where media are as promised.

        NaN is where a caption promises nothing of the kind. Of the withheld split there is one metric: whether both
        attributes that were never seen together are right.
        """
        score = self.score_withheld if split == WITHHELD else self.score
        rows = [score(each, row) for each, row in zip(media, metadata, strict=True)]
        return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}

    @abstractmethod
    def knows(self, row: Row) -> bool:
        """Whether a row says all that the judge compares with; a person may have added others to the set."""

    @abstractmethod
    def score(self, media: MediaT, row: Row) -> Scores:
        """The metrics of one item."""

    def score_withheld(self, media: MediaT, row: Row) -> Scores:
        """The same, of the withheld split."""
        raise NotImplementedError(f"{type(self).__name__} judges {', '.join(self.splits)}")


def has_keys(value: object, keys: Collection[str]) -> bool:
    """Whether a column holds an object with these keys."""
    return isinstance(value, dict) and value.keys() >= set(keys)
