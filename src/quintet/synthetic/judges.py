"""Judges of synthetic datasets: programs without learned weights that check whether media match their captions.

Each dataset has a judge in its `<dataset>_judge` module; `quintet.registry.find_judge` finds it by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

WITHHELD = "withheld"
"""The split of items with a combination of two attributes that is never trained on."""

MediaT = TypeVar("MediaT")
Row = Mapping[str, Any]
"""The attributes of an item: its columns in `metadata.jsonl`."""
Scores = Mapping[str, float | list[float]]


class Judge(ABC, Generic[MediaT]):
    """Scores media with the metadata of the items whose captions they were generated from."""

    splits: ClassVar[tuple[str, ...]] = ("validation", WITHHELD)
    """The splits that can be judged."""

    def metrics(self, media: Iterable[MediaT], metadata: Sequence[Row], split: str) -> dict[str, Tensor]:
        """The scores of all items by metric, (items,) or (items, …) in float64; 1 if the media match the caption.

        NaN if a metric does not apply to a caption. The withheld split has one metric: whether both attributes of the
        withheld combination match.
        """
        score = self.score_withheld if split == WITHHELD else self.score
        rows = [score(each, row) for each, row in zip(media, metadata, strict=True)]
        return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}

    @abstractmethod
    def knows(self, row: Row) -> bool:
        """Whether a row has all attributes that the judge needs; users may add other items to the dataset."""

    @abstractmethod
    def score(self, media: MediaT, row: Row) -> Scores:
        """The metrics of one item."""

    def score_withheld(self, media: MediaT, row: Row) -> Scores:
        """The metric of one item of the withheld split."""
        raise NotImplementedError(f"{type(self).__name__} judges {', '.join(self.splits)}")


def has_keys(value: object, keys: Collection[str]) -> bool:
    """Whether a column is an object with these keys."""
    return isinstance(value, dict) and value.keys() >= set(keys)
