"""Base class of Python data sets: the items of a user's data set object as training items, and their splits.

Each medium adds the fields of an item and their preprocessing. An item of the user's data set is a dictionary, a tuple
with declared names, a bare tuple, or a single value. A bare tuple is routed by type where that is unambiguous;
otherwise an error lists the values of the item and the expected fields.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

from quintet.common.batch import Item
from quintet.common.rng import ItemRNG, seed_from
from quintet.config import DataConfig
from quintet.data.splits import Splits
from quintet.errors import UsageError


@dataclass(frozen=True)
class Field:
    """A field of an item: its name in batches, its other accepted names, and the values it accepts."""

    name: str
    aliases: tuple[str, ...]
    accepts: Callable[[Any], bool]
    expects: str
    required: bool = True

    def known_as(self, key: str) -> bool:
        return key == self.name or key in self.aliases


def route(item: Any, fields: Sequence[Field], declared: Sequence[str] | None = None) -> dict[str, Any]:
    """The values of an item by field name. `declared` names the elements of a tuple."""
    if isinstance(item, Mapping):
        routed = _by_key(item, fields)
    elif declared is not None:
        routed = _by_name(item, fields, declared)
    else:
        routed = _by_type(item if isinstance(item, (tuple, list)) else (item,), fields)
    missing = [field for field in fields if field.required and field.name not in routed]
    if missing:
        raise UsageError(
            f"an item of the data set has no '{missing[0].name}': it is {_described(item)}; "
            f"expected {_expected(fields)}"
        )
    return routed


def _by_key(item: Mapping[Any, Any], fields: Sequence[Field]) -> dict[str, Any]:
    """If an item has several names of one field, the first counts: its own name, then its aliases in order."""
    found = {field.name: [key for key in (field.name, *field.aliases) if key in item] for field in fields}
    return {name: item[keys[0]] for name, keys in found.items() if keys}


def _by_name(item: Any, fields: Sequence[Field], declared: Sequence[str]) -> dict[str, Any]:
    values = item if isinstance(item, (tuple, list)) else (item,)
    if len(values) != len(declared):
        raise UsageError(
            f"{len(declared)} fields are declared ({', '.join(declared)}), but an item has {len(values)} values"
        )
    unknown = [name for name in declared if not any(field.known_as(name) for field in fields)]
    if unknown:
        raise UsageError(f"the declared field '{unknown[0]}' is unknown; expected {_expected(fields)}")
    named = dict(zip(declared, values, strict=True))
    return _by_key(named, fields)


def _by_type(values: Sequence[Any], fields: Sequence[Field]) -> dict[str, Any]:
    routed: dict[str, Any] = {}
    for value in values:
        fitting = [field for field in fields if field.accepts(value)]
        if len(fitting) != 1 or fitting[0].name in routed:
            why = (
                "fits several fields" if len(fitting) > 1 else "fits no field" if not fitting else "fits a field twice"
            )
            raise UsageError(
                f"a {_kind(value)} in an item {why}: the item is {_described(values)}; expected {_expected(fields)}; "
                "return a dictionary, or declare the names with data_kwargs"
            )
        routed[fitting[0].name] = value
    return routed


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f"{tuple(shape)} {value.dtype}" if shape is not None else "")


def _described(item: Any) -> str:
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{key}: {_kind(value)}" for key, value in item.items()) + "}"
    values = item if isinstance(item, (tuple, list)) else (item,)
    return "(" + ", ".join(_kind(value) for value in values) + ")"


def _expected(fields: Sequence[Field]) -> str:
    return ", ".join(f"{field.name} ({field.expects}{'' if field.required else ', optional'})" for field in fields)


CAPTION = Field(
    "texts", ("text", "caption", "label"), lambda value: isinstance(value, str), "a caption", required=False
)


class Indexable(Protocol):
    """A torch or Hugging Face data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


@runtime_checkable
class OwnSplit(Indexable, Protocol):
    """A data set that chooses its validation items itself."""

    def split_positions(self, fraction: float, seed: int) -> tuple[list[int], list[int]]:
        """The positions of the training items and of the validation items, of which there may be none."""


@dataclass
class PythonDataset(ABC):
    """The items at some positions of a data set object. Nothing is random if `train` is false."""

    fields: ClassVar[Sequence[Field]]

    dataset: Indexable
    positions: Sequence[int]
    train: bool = field(default=True, kw_only=True)
    declared: Sequence[str] | None = field(default=None, kw_only=True)
    """Names of the elements of its tuples."""

    def __len__(self) -> int:
        return len(self.positions)

    def name(self, item: int) -> str:
        return f"item {self.positions[item]}"

    @abstractmethod
    def load(self, item: int, rng: ItemRNG) -> Item:
        """Preprocess one item; raises `UnreadableItem` with the reason if it cannot be used."""

    def metadata(self, item: int) -> Item:
        """The caption only; most data sets load the media of an item for it as well."""
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
    """Splits of a Python data set, by fraction and seed unless `validation` is another data set.

    `make` takes the arguments of `PythonDataset`.
    """
    declared = declared or getattr(dataset, "data_kwargs", None)
    train, held_out = list(range(len(dataset))), list[int]()
    if validation is None:
        split = dataset.split_positions if isinstance(dataset, OwnSplit) else partial(_split_positions, len(dataset))
        train, held_out = split(config.validation_fraction, config.split_seed)
    validated: Indexable = dataset if validation is None else validation
    positions = range(len(validated)) if validation is not None else held_out or train
    return Splits(
        make(dataset, train, train=True, declared=declared),
        make(validated, positions, train=False, declared=declared),
        f"python: {len(dataset)} items",
        about={"path": None, "dataset": type(dataset).__name__},
    )


def _split_positions(count: int, fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """The positions of the training items and of the validation items."""
    held_out = _held_out(range(count), fraction, seed)
    chosen = set(held_out)
    return [position for position in range(count) if position not in chosen], held_out


def _held_out(positions: Sequence[int], fraction: float, seed: int) -> list[int]:
    """Validation positions, chosen by hash; neither side is empty if there are two items."""
    if not fraction or len(positions) < 2:
        return []
    ordered = sorted(positions, key=lambda position: _hash(seed, position))
    count = sum(_hash(seed, position) < fraction for position in positions)
    return sorted(ordered[: min(max(count, 1), len(positions) - 1)])


def _hash(seed: int, position: int) -> float:
    return seed_from(seed, position, "validation") / 2**63
