"""The base of datasets handed over in Python: a person's own data set object as training items, and its splits.

Each medium adds which fields an item has and how they are preprocessed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from quintet.common.batch import Item
from quintet.common.rng import ItemRNG, seed_from
from quintet.config import DataConfig
from quintet.data.fields import Field, route
from quintet.data.splits import Splits

CAPTION = Field(
    "texts", ("text", "caption", "label"), lambda value: isinstance(value, str), "a caption", required=False
)


class Indexable(Protocol):
    """A torch or Hugging Face data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


@dataclass
class PythonDataset(ABC):
    """The items at some positions of a data set object. With `train` false nothing is random."""

    fields: ClassVar[Sequence[Field]]

    dataset: Indexable
    positions: Sequence[int]
    train: bool = field(default=True, kw_only=True)
    declared: Sequence[str] | None = field(default=None, kw_only=True)
    """Names of the values in its tuples."""

    def __len__(self) -> int:
        return len(self.positions)

    def name(self, item: int) -> str:
        return f"item {self.positions[item]}"

    @abstractmethod
    def load(self, item: int, draw: ItemRNG) -> Item:
        """Preprocess one item; `UnreadableItem` with the reason if it cannot be used."""

    def metadata(self, item: int) -> Item:
        """The caption alone; of most data sets the media have to be made for it all the same."""
        return {"texts": caption_of(self.routed(item))}

    def routed(self, item: int) -> dict[str, Any]:
        """The values of an item by field."""
        return route(self.dataset[self.positions[item]], self.fields, self.declared)


def caption_of(routed: Mapping[str, Any]) -> str:
    return "" if routed.get("texts") is None else str(routed["texts"])


def split_object(
    dataset: Indexable,
    config: DataConfig,
    make: Callable[..., PythonDataset],
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
) -> Splits:
    """A data set object, split by fraction and seed unless a validation set comes with it.

    `make` takes what every `PythonDataset` does.
    """
    declared = declared or getattr(dataset, "data_kwargs", None)
    everything = range(len(dataset))
    held_out = [] if validation is not None else _held_out(everything, config.validation_fraction, config.split_seed)
    chosen = set(held_out)
    train = [position for position in everything if position not in chosen]
    looked_at: Indexable = dataset if validation is None else validation
    positions = range(len(looked_at)) if validation is not None else held_out or train
    return Splits(
        make(dataset, train, train=True, declared=declared),
        make(looked_at, positions, train=False, declared=declared),
        f"python: {len(dataset)} items",
        about={"path": None, "dataset": type(dataset).__name__},
    )


def _held_out(positions: Sequence[int], fraction: float, seed: int) -> list[int]:
    """By hash, but neither side empty where two items can be had."""
    if not fraction or len(positions) < 2:
        return []
    ordered = sorted(positions, key=lambda position: _hash(seed, position))
    count = sum(_hash(seed, position) < fraction for position in positions)
    return sorted(ordered[: min(max(count, 1), len(positions) - 1)])


def _hash(seed: int, position: int) -> float:
    return seed_from(seed, position, "validation") / 2**63
