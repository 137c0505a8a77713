"""Owns the way from a data set handed over in Python to the sources of a run, whatever its items are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from quintet.common.batch import Dataset
from quintet.common.rng import seed_from
from quintet.config import DataConfig
from quintet.data.splits import Splits


class Indexable(Protocol):
    """A torch or Hugging Face data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


MakeDataset = Callable[[Indexable, Sequence[int], Sequence[str] | None, bool], Dataset]
"""Items of a data set by their places, with the names of the values in its tuples; and whether to train on them."""


def split_object(
    dataset: Indexable,
    config: DataConfig,
    make: MakeDataset,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
) -> Splits:
    """A data set object, split by fraction and seed unless a validation set comes with it."""
    declared = declared or getattr(dataset, "data_kwargs", None)
    everything = range(len(dataset))
    held_out = [] if validation is not None else _held_out(everything, config.validation_fraction, config.split_seed)
    chosen = set(held_out)
    train = [place for place in everything if place not in chosen]
    looked_at: Indexable = dataset if validation is None else validation
    places = range(len(looked_at)) if validation is not None else held_out or train
    return Splits(
        make(dataset, train, declared, True),
        make(looked_at, places, declared, False),
        f"python: {len(dataset)} items",
        about={"path": None, "dataset": type(dataset).__name__},
    )


def _held_out(places: Sequence[int], fraction: float, seed: int) -> list[int]:
    """By hash, but neither side empty where two items can be had."""
    if not fraction or len(places) < 2:
        return []
    ordered = sorted(places, key=lambda place: _hash(seed, place))
    count = sum(_hash(seed, place) < fraction for place in places)
    return sorted(ordered[: min(max(count, 1), len(places) - 1)])


def _hash(seed: int, place: int) -> float:
    return seed_from(seed, place, "validation") / 2**63
