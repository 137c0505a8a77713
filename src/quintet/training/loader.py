"""`Loader`: batches from a data set, with worker processes, replacement of unreadable items and sharding by rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.process import BaseProcess

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from quintet.common.batch import Batch, Collate, Dataset, Item, Prepare
from quintet.common.rng import ItemRNG
from quintet.common.workers import ignore_signals, kill, start_workers
from quintet.errors import QuintetError, RunError, UnreadableItem, UsageError
from quintet.training.engine import Engine
from quintet.training.order import Order, SampleIndex, replacement

VALIDATION_EPOCH = 2**31
"""The epoch number that validation uses for random numbers: fixed, and never reached by training."""

MAX_DEATHS = 3
"""Number of times in a row that workers may die before they deliver a batch."""

MAX_ATTEMPTS = 100
"""Number of replacements tried for one unreadable item before training stops."""


@dataclass
class LoadedBatch:
    """A batch from a worker, and the unreadable items found while loading it, each with the reason."""

    batch: Batch
    skipped: dict[str, str]

    def pin_memory(self) -> LoadedBatch:
        """Called by DataLoader if the device is a GPU."""
        return LoadedBatch(self.batch.pin_memory(), self.skipped)


@dataclass
class _Reader(TorchDataset[LoadedBatch | QuintetError]):
    """Runs in the workers. Indexed by the sample indices of a full batch: the epoch is part of the index, because
    persistent workers would not see a changed attribute."""

    dataset: Dataset
    seed: int
    collate: Collate
    prepare: Prepare | None

    def __getitem__(self, indices: tuple[SampleIndex, ...]) -> LoadedBatch | QuintetError:
        """Errors are returned, not raised: DataLoader would bury the message in a worker traceback."""
        skipped: dict[str, str] = {}
        try:
            read = [self._read(index, skipped) for index in indices]
            used = [item for item, _ in read]
            names = tuple(self.dataset.name(item) for item in used)
            rng = ItemRNG(self.seed, [epoch for epoch, _ in indices], used)
            batch = Batch(self.collate([fields for _, fields in read]), names, rng)
            return LoadedBatch(batch if self.prepare is None else batch.prepared(self.prepare), skipped)
        except QuintetError as error:
            return error

    def _read(self, index: SampleIndex, skipped: dict[str, str]) -> tuple[int, Item]:
        epoch, item = index
        for attempt in range(MAX_ATTEMPTS):
            try:
                return item, self.dataset.load(item, ItemRNG(self.seed, [epoch], [item]))
            except UnreadableItem as problem:
                last = f"{self.dataset.name(item)} ({problem})"
                skipped[self.dataset.name(item)] = str(problem)
                item = replacement(self.seed, index, attempt, len(self.dataset))
        raise RunError(
            f"{MAX_ATTEMPTS} items in a row could not be read, the last of them {last}; "
            "run `quintet data check` on the folder"
        )


def _single(loaded: Sequence[LoadedBatch | QuintetError]) -> LoadedBatch | QuintetError:
    return loaded[0]


@dataclass
class Loader:
    """Batches of one data set for one rank."""

    dataset: Dataset
    seed: int
    collate: Collate
    engine: Engine
    workers: int
    skipped: dict[str, str] = field(default_factory=dict)
    """Unreadable items found so far, each with the reason."""
    notify: Callable[[str], None] = lambda text: None
    """Receives messages for the user."""
    prepare: Prepare | None = None
    """Adds fields to training batches (`Task.prepare`)."""

    def training(self, order: Order, first_step: int, last_step: int, grad_accum_steps: int) -> Iterator[LoadedBatch]:
        """The micro-batches of all steps in order, `grad_accum_steps` per step."""
        batches = self._local_batches(order, range(first_step, last_step), grad_accum_steps)
        return self._stream(batches, self.workers, self.prepare)

    def validation(self, batch_size: int, batches: int | None) -> Iterator[tuple[LoadedBatch, bool]]:
        """The items in order, at most `batches` batches, each split over the ranks.

        Every rank gets the same number of batches, because a forward pass may contain collectives. A rank without items
        repeats one, marked False: its metrics must not be counted.
        """
        count = len(self.dataset) if batches is None else min(len(self.dataset), batches * batch_size)
        local_batches: list[tuple[tuple[SampleIndex, ...], bool]] = []
        for start in range(0, count, batch_size):
            items = range(start, min(start + batch_size, count))
            size = -(-len(items) // self.engine.world_size)
            local = items[self.engine.rank * size : (self.engine.rank + 1) * size]
            local_batches.append((tuple((VALIDATION_EPOCH, item) for item in local or items[:1]), bool(local)))
        # Read in this process: starting workers would take longer than they save.
        stream = self._stream(iter([indices for indices, _ in local_batches]), workers=0)
        for loaded, (_, is_counted) in zip(stream, local_batches, strict=True):
            yield loaded, is_counted

    def single(self, item: int) -> Batch:
        """One item as a batch of size 1; raises `UnreadableItem` if it cannot be read."""
        rng = ItemRNG(self.seed, [VALIDATION_EPOCH], [item])
        return Batch(self.collate([self.dataset.load(item, rng)]), (self.dataset.name(item),), rng)

    def init_batches(self, order: Order, grad_accum_steps: int, steps: int = 1) -> Iterator[LoadedBatch]:
        """The micro-batches of the first steps, read in this process; training reads them again."""
        return self._stream(self._local_batches(order, range(steps), grad_accum_steps), 0, self.prepare)

    def longest(self, order: Order, count: int) -> LoadedBatch:
        """A training batch of the longest items, read in this process."""
        return next(self._stream(iter([tuple(order.longest(count))]), 0, self.prepare))

    def _local_batches(self, order: Order, steps: range, grad_accum_steps: int) -> Iterator[tuple[SampleIndex, ...]]:
        rank, world_size = self.engine.rank, self.engine.world_size
        return (
            tuple(order.local_batch(step, micro, grad_accum_steps, rank, world_size))
            for step in steps
            for micro in range(grad_accum_steps)
        )

    def first(self, count: int) -> LoadedBatch:
        """The first `count` items as one batch, the same on every rank."""
        indices = tuple((VALIDATION_EPOCH, item) for item in range(min(count, len(self.dataset))))
        return next(self._stream(iter([indices]), workers=0))

    def check_readable(self, what: str = "items", fix: str = "") -> None:
        """Raise UsageError if none of the items can be read; `fix` is the end of the message."""
        reasons: dict[str, str] = {}
        for item in range(len(self.dataset)):
            try:
                self.dataset.load(item, ItemRNG(self.seed, [0], [item]))
                return
            except UnreadableItem as problem:
                reasons.setdefault(str(problem), self.dataset.name(item))
        listed = "; ".join(f"{name}: {reason}" for reason, name in list(reasons.items())[:3])
        raise UsageError(f"none of the {len(self.dataset)} {what} can be read ({listed}){fix}")

    def check_validation(self) -> None:
        """Raise UsageError if none of the validation items, which are those of this loader, can be read."""
        self.check_readable(
            "validation items",
            "; restore these files, or choose other validation items with a `split` column, data.validation_fraction "
            "or data.validation_path",
        )

    def _stream(
        self, batches_of_indices: Iterator[tuple[SampleIndex, ...]], workers: int, prepare: Prepare | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches in order. Dead workers are restarted; their batches are a pure function of the indices."""
        deaths = 0
        pending: deque[tuple[SampleIndex, ...]] = deque()
        while True:
            batches, processes = self._batches(_recorded(batches_of_indices, pending), workers, prepare)
            try:
                for loaded in batches:
                    if isinstance(loaded, QuintetError):
                        raise loaded
                    pending.popleft()
                    self.skipped.update(loaded.skipped)
                    deaths = 0
                    yield loaded
                return
            except (RuntimeError, ConnectionError, EOFError) as error:
                # Fetching a finished batch from a dead worker fails with a connection error.
                is_disconnected = workers > 0 and not isinstance(error, RuntimeError)
                if not is_disconnected and "DataLoader worker" not in str(error):
                    raise
                deaths += 1
                if deaths == MAX_DEATHS:
                    raise RunError(
                        f"data workers died {MAX_DEATHS} times in a row ({error}); if memory ran out, reduce "
                        f"data.num_workers (now {workers}), or set it to 0 to read in the training process"
                    ) from None
                self.notify(f"a data worker died ({error}); restarting the workers")
                batches_of_indices = chain([*pending], batches_of_indices)
                pending.clear()
            finally:
                # DataLoader would wait until they have read what was requested, and then for the end of a time-out.
                kill(processes)
                del batches

    def _batches(
        self, batches_of_indices: Iterator[tuple[SampleIndex, ...]], workers: int, prepare: Prepare | None
    ) -> tuple[Iterator[LoadedBatch | QuintetError], set[BaseProcess]]:
        """The batches, and the worker processes that read them."""
        generator = torch.Generator()  # so that starting workers does not advance the global RNG
        loader: DataLoader[LoadedBatch | QuintetError] = DataLoader(
            _Reader(self.dataset, self.seed, self.collate, prepare),
            batch_sampler=_Batches(batches_of_indices),
            collate_fn=_single,
            num_workers=workers,
            pin_memory=self.engine.device.type == "cuda",
            generator=generator,
            prefetch_factor=4 if workers else None,
            worker_init_fn=ignore_signals,
        )
        return start_workers(loader)


def _recorded(
    batches_of_indices: Iterator[tuple[SampleIndex, ...]], memory: deque[tuple[SampleIndex, ...]]
) -> Iterator[tuple[SampleIndex, ...]]:
    """Record the indices of each batch as it is requested: batches are returned in the same order."""
    for indices in batches_of_indices:
        memory.append(indices)
        yield indices


@dataclass
class _Batches:
    """Batch sampler for DataLoader: each 'batch' is one element, the indices of a full batch."""

    batches_of_indices: Iterator[tuple[SampleIndex, ...]]

    def __iter__(self) -> Iterator[list[tuple[SampleIndex, ...]]]:
        return ([indices] for indices in self.batches_of_indices)
