"""Data of the original trainers: routing of items, and the data sets and loaders that scripts read from a trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from torch.utils.data import Dataset as TorchDataset

from quintet.common.rng import ItemRNG
from quintet.data.python_dataset import PythonDataset
from quintet.errors import UsageError
from quintet.training.loader import VALIDATION_EPOCH


class NamedItems:
    """A data set whose tuples become dictionaries by the names of their values, as the mesh trainers do.

    Values without a name are dropped, and names without a value are left out; `ignored` names are removed."""

    def __init__(self, dataset: Any, names: Sequence[str], ignored: Sequence[str] = ()) -> None:
        self.dataset, self.names, self.ignored = dataset, tuple(names), frozenset(ignored)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        item = self.dataset[index]
        if isinstance(item, (tuple, list)):
            item = dict(zip(self.names, item, strict=False))
        if not isinstance(item, Mapping):
            return item
        return {name: value for name, value in item.items() if name not in self.ignored and value is not None}


class SplitItems:
    """A data set that is split as by the originals: the first items of a random permutation train."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.data_kwargs = getattr(dataset, "data_kwargs", None)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def split_positions(self, fraction: float, seed: int) -> tuple[list[int], list[int]]:
        count = len(self)
        size = int((1 - fraction) * count)
        if size in (0, count):  # one side would be empty
            return list(range(count)), []
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
        return order[:size], order[size:]


class FolderItems(TorchDataset[Any]):
    """The items of a folder as a data set of tensors: images (channels, height, width) in [0, 1], or all fields."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        fields = self.dataset.load(index, ItemRNG(self.seed, [VALIDATION_EPOCH], [index]))
        media = next((fields[name] for name in ("images", "videos") if name in fields), None)
        if media is None:
            return fields
        return media.float() / 255 if media.dtype == torch.uint8 else media


def items_of(split: Any, seed: int) -> Any:
    """The items of a split of quintet as a data set of the user's own items, or of tensors of a folder."""
    if isinstance(split, PythonDataset):
        dataset: Any = split.dataset
        while isinstance(dataset, (NamedItems, SplitItems)):
            dataset = dataset.dataset
        return Subset(dataset, list(split.positions))
    return FolderItems(split, seed)


Merge = Callable[[list[Tensor]], Tensor]


def stack_shortest(values: list[Tensor]) -> Tensor:
    """Stack tensors, cut to the shortest."""
    length = min(len(value) for value in values)
    return torch.stack([value[:length] for value in values])


def pad(values: list[Tensor], padding: float) -> Tensor:
    """Stack tensors, padded to the longest."""
    return nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=padding)


def loader_of(dataset: Any, batch_size: int, merge: Merge, drop_last: bool = False) -> DataLoader[Any]:
    """Shuffled batches as the originals made them, independent of the batches of the training."""

    collated = partial(batch_of, merge=merge)
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=drop_last, collate_fn=collated)


def batch_of(items: list[Any], merge: Merge) -> Any:
    """Items as a batch: a dictionary, a tuple or a single value, as each of them is."""
    first = items[0]
    if isinstance(first, Mapping):
        return {name: _merged([item[name] for item in items], merge) for name in first}
    if isinstance(first, (tuple, list)):
        return tuple(_merged(list(values), merge) for values in zip(*items, strict=True))
    return _merged(items, merge)


def _merged(values: list[Any], merge: Merge) -> Any:
    if not all(isinstance(value, Tensor) for value in values):
        return list(values)
    same = all(value.shape == values[0].shape for value in values)
    return torch.stack(values) if same else merge(values)


def cycle(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of a loader without end."""
    if len(loader) == 0:
        raise UsageError(
            f"there are fewer items than a batch of {loader.batch_size}, so that there is no batch to read"
        )
    while True:
        yield from loader


Field = Callable[[Any], bool]
"""Whether a value of a batch belongs to a field."""


def is_floats(*dims: int) -> Field:
    return lambda value: isinstance(value, Tensor) and value.dtype == torch.float and value.ndim in dims


def has_dtype(dtype: torch.dtype) -> Field:
    return lambda value: isinstance(value, Tensor) and value.dtype == dtype


def is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def fields_by_type(data: Sequence[Any], fields: Mapping[str, Field]) -> tuple[str, ...]:
    """The field of each value of a batch: the first one that accepts it."""
    names = []
    for value in data:
        fitting = [name for name, accepts in fields.items() if accepts(value)]
        if not fitting or fitting[0] in names:
            kind = f"{type(value).__name__} {tuple(getattr(value, 'shape', ()))}"
            raise UsageError(f"a value of a batch ({kind}) fits no field, or a field twice; known: {', '.join(fields)}")
        names.append(fitting[0])
    return tuple(names)
