"""Owns what travels from the data to the model: sources of items, and batches of named fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG

Item = dict[str, Any]
"""One item: field name to tensor, number or text."""


class Dataset(Protocol):
    """Items by number. What it returns is a pure function of the item and the draw; it must be picklable, so
    that worker processes can hold it. An item that cannot be used raises `UnreadableItem`."""

    def __len__(self) -> int: ...

    def name(self, item: int) -> str: ...

    def load(self, item: int, rng: ItemRNG) -> Item: ...


@dataclass(frozen=True)
class Batch:
    """Named fields of several items, their names, and their random choices."""

    fields: dict[str, Any]
    names: tuple[str, ...]
    rng: ItemRNG
    precision: torch.dtype = torch.float32

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def __contains__(self, field: str) -> bool:
        return field in self.fields

    def __len__(self) -> int:
        return len(self.names)

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """On the device; floating-point fields in the given precision."""
        fields = {name: _moved(value, device, dtype) for name, value in self.fields.items()}
        return replace(self, fields=fields, precision=dtype)

    def pin_memory(self) -> Batch:
        """In page-locked memory, from which copies to a GPU run beside the computation."""
        fields = {
            name: value.pin_memory() if isinstance(value, Tensor) else value for name, value in self.fields.items()
        }
        return replace(self, fields=fields)

    def nonfinite_items(self) -> tuple[str, ...]:
        """The names of the items that hold a non-finite number."""
        bad = {
            self.names[row]
            for value in self.fields.values()
            if isinstance(value, Tensor) and value.is_floating_point() and value.shape[:1] == (len(self.names),)
            for row, numbers in enumerate(value)
            if not numbers.isfinite().all()
        }
        return tuple(name for name in self.names if name in bad)


def _moved(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.is_floating_point():
        return value.to(device, dtype, non_blocking=True)
    return value.to(device, non_blocking=True)


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """Tensors of equal shape are stacked, numbers become tensors, anything else stays a list.

    What not all items have is left out. A recipe whose items differ in length brings its own, which pads and adds a
    mask.
    """
    fields: dict[str, Any] = {}
    for name in (name for name in items[0] if all(name in item for item in items)):
        values = [item[name] for item in items]
        if all(isinstance(value, Tensor) for value in values):
            fields[name] = torch.stack(values)
        elif all(isinstance(value, (int, float)) for value in values):
            fields[name] = torch.tensor(values)
        else:
            fields[name] = values
    return fields
