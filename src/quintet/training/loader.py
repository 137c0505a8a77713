"""Owns how items become batches: worker processes, replacement of unreadable items, the ranks' shares."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from quintet.common.batch import Batch, Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.errors import QuintetError, RunError, UnreadableItem, UsageError
from quintet.training.engine import Engine
from quintet.training.order import Order, SampleIndex, replacement
from quintet.training.signals import SIGNALS

VALIDATION_EPOCH = 2**31
"""The epoch whose choices validation uses: fixed, and one no training reaches."""

DEATHS = 3
"""Times in a row that workers may die without having delivered a batch."""

ATTEMPTS = 100
"""Replacements tried for one item before the data set is called broken."""

Collate = Callable[[Sequence[Item]], dict[str, Any]]


@dataclass
class LoadedBatch:
    """One batch as the workers hand it over, with the items that turned out unreadable on the way."""

    batch: Batch
    skipped: dict[str, str]

    def pin_memory(self) -> LoadedBatch:
        """Called by DataLoader where the device is a GPU."""
        return LoadedBatch(self.batch.pin_memory(), self.skipped)


@dataclass
class _Reader(TorchDataset[LoadedBatch | QuintetError]):
    """Lives in the workers. Indexed by the slots of a whole batch: the epoch travels in the index, because a
    persistent worker would never see a changed attribute."""

    dataset: Dataset
    seed: int
    collate: Collate

    def __getitem__(self, slots: tuple[SampleIndex, ...]) -> LoadedBatch | QuintetError:
        """An error is handed over, not raised: raised in a worker, its one sentence would drown in a traceback."""
        skipped: dict[str, str] = {}
        try:
            read = [self._read(slot, skipped) for slot in slots]
            used = [item for item, _ in read]
            names = tuple(self.dataset.name(item) for item in used)
            rng = ItemRNG(self.seed, [epoch for epoch, _ in slots], used)
            return LoadedBatch(Batch(self.collate([fields for _, fields in read]), names, rng), skipped)
        except QuintetError as error:
            return error

    def _read(self, slot: SampleIndex, skipped: dict[str, str]) -> tuple[int, Item]:
        epoch, item = slot
        for attempt in range(ATTEMPTS):
            try:
                return item, self.dataset.load(item, ItemRNG(self.seed, [epoch], [item]))
            except UnreadableItem as problem:
                last = f"{self.dataset.name(item)} ({problem})"
                skipped[self.dataset.name(item)] = str(problem)
                item = replacement(self.seed, slot, attempt, len(self.dataset))
        raise RunError(
            f"{ATTEMPTS} items in a row could not be read, the last one {last}; run `quintet data check` on the folder"
        )


def _only(loaded: Sequence[LoadedBatch | QuintetError]) -> LoadedBatch | QuintetError:
    return loaded[0]


def _ignore_signals(worker: int) -> None:
    """A stop request to the whole process group is for the trainer, which still needs its workers to save."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@dataclass
class Loader:
    """Batches of one source for one rank."""

    dataset: Dataset
    seed: int
    collate: Collate
    engine: Engine
    workers: int
    skipped: dict[str, str] = field(default_factory=dict)
    """Items that turned out unreadable, with the reason."""
    notify: Callable[[str], None] = lambda text: None
    """Where to say what happened."""

    def training(self, order: Order, first_step: int, last_step: int, accumulate: int) -> Iterator[LoadedBatch]:
        """The micro-batches of all steps in turn, `accumulate` of each."""
        return self._stream(self._shares(order, range(first_step, last_step), accumulate), self.workers)

    def validation(self, batch_size: int, batches: int | None) -> Iterator[tuple[LoadedBatch, bool]]:
        """The items in order, at most `batches` batches, each shared out over the ranks.

        Every rank gets the same number of batches, because a forward pass may be a joint effort; where a rank
        has no items left it repeats one, marked False, and its figures are not to be counted.
        """
        count = len(self.dataset) if batches is None else min(len(self.dataset), batches * batch_size)
        shares: list[tuple[tuple[SampleIndex, ...], bool]] = []
        for start in range(0, count, batch_size):
            items = range(start, min(start + batch_size, count))
            size = -(-len(items) // self.engine.world_size)
            mine = items[self.engine.rank * size : (self.engine.rank + 1) * size]
            shares.append((tuple((VALIDATION_EPOCH, item) for item in mine or items[:1]), bool(mine)))
        # Reading in this process: it is short, and workers would cost more to start than they save.
        stream = self._stream(iter([slots for slots, _ in shares]), workers=0)
        for loaded, (_, counts) in zip(stream, shares, strict=True):
            yield loaded, counts

    def single(self, item: int) -> Batch:
        """One item as a batch of its own; `UnreadableItem` where it cannot be read."""
        rng = ItemRNG(self.seed, [VALIDATION_EPOCH], [item])
        return Batch(self.collate([self.dataset.load(item, rng)]), (self.dataset.name(item),), rng)

    def init_batches(self, order: Order, accumulate: int, steps: int = 1) -> Iterator[LoadedBatch]:
        """The micro-batches of the first steps, read in this process and consumed by nobody."""
        return self._stream(self._shares(order, range(steps), accumulate), workers=0)

    def _shares(self, order: Order, steps: range, accumulate: int) -> Iterator[tuple[SampleIndex, ...]]:
        place = (self.engine.rank, self.engine.world_size)
        return (
            tuple(order.local_batch(step, micro, accumulate, *place)) for step in steps for micro in range(accumulate)
        )

    def first(self, count: int) -> LoadedBatch:
        """The first items as one batch, the same on every rank."""
        slots = tuple((VALIDATION_EPOCH, item) for item in range(min(count, len(self.dataset))))
        return next(self._stream(iter([slots]), workers=0))

    def check_readable(self) -> None:
        """An error before any training when no item at all can be read."""
        reasons: dict[str, str] = {}
        for item in range(len(self.dataset)):
            try:
                self.dataset.load(item, ItemRNG(self.seed, [0], [item]))
                return
            except UnreadableItem as problem:
                reasons.setdefault(str(problem), self.dataset.name(item))
        listed = "; ".join(f"{name}: {reason}" for reason, name in list(reasons.items())[:3])
        raise UsageError(f"none of the {len(self.dataset)} items can be read ({listed})")

    def _stream(self, shares: Iterator[tuple[SampleIndex, ...]], workers: int) -> Iterator[LoadedBatch]:
        """The batches in turn. Workers that die are started again: what they read is a function of the slots."""
        deaths = 0
        handed_out: deque[tuple[SampleIndex, ...]] = deque()
        while True:
            batches = self._batches(_remembered(shares, handed_out), workers)
            try:
                for loaded in batches:
                    if isinstance(loaded, QuintetError):
                        raise loaded
                    handed_out.popleft()
                    self.skipped.update(loaded.skipped)
                    deaths = 0
                    yield loaded
                return
            except (RuntimeError, ConnectionError, EOFError) as error:
                # A batch that a dead worker had ready is fetched from it all the same, and the line to it is cut.
                is_cut_off = workers > 0 and not isinstance(error, RuntimeError)
                if not is_cut_off and "DataLoader worker" not in str(error):
                    raise
                deaths += 1
                if deaths == DEATHS:
                    raise RunError(
                        f"data workers died {DEATHS} times in a row ({error}); if memory ran out, use fewer "
                        f"data.num_workers (now {workers}), or 0 to read in the training process"
                    ) from None
                self.notify(f"a data worker died ({error}); the workers are started again")
                del batches
                shares = chain([*handed_out], shares)
                handed_out.clear()

    def _batches(self, shares: Iterator[tuple[SampleIndex, ...]], workers: int) -> Iterator[LoadedBatch | QuintetError]:
        generator = torch.Generator()  # so that starting workers does not touch the process's own stream
        loader: DataLoader[LoadedBatch | QuintetError] = DataLoader(
            _Reader(self.dataset, self.seed, self.collate),
            batch_sampler=_Batches(shares),
            collate_fn=_only,
            num_workers=workers,
            pin_memory=self.engine.device.type == "cuda",
            generator=generator,
            prefetch_factor=4 if workers else None,
            worker_init_fn=_ignore_signals,
        )
        with _child_handler_kept():
            return iter(loader)


def _remembered(
    shares: Iterator[tuple[SampleIndex, ...]], memory: deque[tuple[SampleIndex, ...]]
) -> Iterator[tuple[SampleIndex, ...]]:
    """The shares, each noted as it is handed out: batches come back in the same order."""
    for share in shares:
        memory.append(share)
        yield share


@contextmanager
def _child_handler_kept() -> Iterator[None]:
    """DataLoader raises the death of a worker from a signal handler, at whatever line the training is, be it
    between two halves of an optimizer step. Without that handler it raises where the next batch is asked for."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, before)


@dataclass
class _Batches:
    """What DataLoader calls a batch sampler: each 'batch' is one index, the slots of a whole batch."""

    shares: Iterator[tuple[SampleIndex, ...]]

    def __iter__(self) -> Iterator[list[tuple[SampleIndex, ...]]]:
        return ([slots] for slots in self.shares)
