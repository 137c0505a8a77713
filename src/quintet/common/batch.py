"""`Dataset` and `Batch`: items by index, and batches of named fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG

Item = dict[str, Any]
"""One item: a mapping from field name to tensor, number or text."""
Collate = Callable[[Sequence[Item]], dict[str, Any]]
"""Combines items into the fields of a batch."""


class Dataset(Protocol):
    """Map-style data set.

    `load` is a pure function of the item and its random numbers, and raises `UnreadableItem` for an item that cannot be
    used. A data set must be picklable, because it is sent to worker processes."""

    def __len__(self) -> int: ...

    def name(self, item: int) -> str: ...

    def load(self, item: int, rng: ItemRNG) -> Item: ...


@dataclass(frozen=True)
class Batch:
    """Named fields of several items, the names of the items, and their random numbers.

    Tensor fields of collated items have the shape (batch, ...)."""

    fields: dict[str, Any]
    names: tuple[str, ...]
    rng: ItemRNG
    precision: torch.dtype = torch.float32
    is_prepared: bool = False
    """Whether it has the fields of `Task.prepare`."""

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def __contains__(self, field: str) -> bool:
        return field in self.fields

    def __len__(self) -> int:
        return len(self.names)

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Move all tensors to `device`, and convert floating-point tensors to `dtype`."""
        fields = {name: _to_device(value, device, dtype) for name, value in self.fields.items()}
        return replace(self, fields=fields, precision=dtype)

    def prepared(self, prepare: Prepare) -> Batch:
        """With the fields that `prepare` computes on the CPU; a batch that has them is returned as it is."""
        if self.is_prepared:
            return self
        device = next((value.device for value in self.fields.values() if isinstance(value, Tensor)), CPU)
        host = self if device == CPU else self.to(CPU, self.precision)
        new = replace(self, fields=prepare(host)).to(device, self.precision).fields
        return replace(self, fields={**self.fields, **new}, is_prepared=True)

    def pin_memory(self) -> Batch:
        """Copy all tensors to page-locked memory, so that copies to a GPU overlap with computation."""
        fields = {
            name: value.pin_memory() if isinstance(value, Tensor) else value for name, value in self.fields.items()
        }
        return replace(self, fields=fields)

    def nonfinite_items(self) -> tuple[str, ...]:
        """The names of the items with a NaN or infinite value in any field."""
        bad = {
            self.names[row]
            for value in self.fields.values()
            if isinstance(value, Tensor) and value.is_floating_point() and value.shape[:1] == (len(self.names),)
            for row, numbers in enumerate(value)
            if not numbers.isfinite().all()
        }
        return tuple(name for name in self.names if name in bad)


CPU = torch.device("cpu")

Prepare = Callable[[Batch], dict[str, Any]]
"""Further fields of a training batch, from its collated fields on the CPU and its random numbers."""


def _to_device(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.is_floating_point():
        return value.to(device, dtype, non_blocking=True)
    return value.to(device, non_blocking=True)


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """Stack tensors of equal shape, turn numbers into tensors, and keep anything else as a list.

    Fields that some items lack are dropped. A task whose items differ in length overrides `Task.collate` to pad them
    and to add a mask.
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
