"""`read_groups`: the items that a tokenizer encodes, read in order by data workers ahead of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from quintet.common.batch import Batch, Collate, Dataset
from quintet.common.rng import ItemRNG
from quintet.common.workers import ignore_signals, kill, start_workers
from quintet.errors import QuintetError, RunError, UnreadableItem


@dataclass
class Group:
    """Some items, as one batch for each variant."""

    items: range
    variants: list[tuple[list[int], Batch]]
    """The readable items of each variant, which has none of the items that an earlier one could not read."""
    skipped: dict[int, str]
    """Unreadable items, each with the reason."""


@dataclass
class _GroupReader(TorchDataset[Group | QuintetError]):
    """Runs in the workers."""

    media: Dataset
    collate: Collate
    variants: int
    groups: Sequence[range]

    def __getitem__(self, number: int) -> Group | QuintetError:
        """Errors are returned, not raised: DataLoader would bury the message in a worker traceback."""
        try:
            return self._read(self.groups[number])
        except QuintetError as error:
            return error

    def _read(self, items: range) -> Group:
        skipped: dict[int, str] = {}
        variants: list[tuple[list[int], Batch]] = []
        for variant in range(self.variants):
            read = {}
            for item in (item for item in items if item not in skipped):
                try:
                    read[item] = self.media.load(item, ItemRNG(0, [variant], [item]))
                except UnreadableItem as problem:
                    skipped[item] = str(problem)
            if read:
                rng = ItemRNG(0, [variant] * len(read), list(read))
                names = tuple(self.media.name(item) for item in read)
                variants.append((list(read), Batch(self.collate(list(read.values())), names, rng)))
        return Group(items, variants, skipped)


def read_groups(
    media: Dataset, collate: Collate, variants: int, groups: Sequence[range], workers: int
) -> Iterator[Group]:
    """The groups in their order; `workers` processes read ahead, or none."""
    reader = _GroupReader(media, collate, variants, groups)
    workers = min(workers, len(groups)) if len(groups) > 1 else 0
    read = _read_ahead(reader, workers) if workers else (reader[number] for number in range(len(groups)))
    for group in read:
        if isinstance(group, QuintetError):
            raise group
        yield group


def _read_ahead(reader: _GroupReader, workers: int) -> Iterator[Group | QuintetError]:
    loader: DataLoader[Group | QuintetError] = DataLoader(
        reader,
        batch_size=None,
        sampler=range(len(reader.groups)),
        num_workers=workers,
        prefetch_factor=1,
        generator=torch.Generator(),  # so that starting workers does not advance the global RNG
        worker_init_fn=ignore_signals,
    )
    batches, processes = start_workers(loader)
    try:
        yield from batches
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise RunError(
            f"a data worker died while items were encoded ({str(error).splitlines()[0]}); if memory ran out, reduce "
            f"data.num_workers (now {workers}), or set it to 0 to read in the training process"
        ) from None
    finally:
        kill(processes)
        del batches
