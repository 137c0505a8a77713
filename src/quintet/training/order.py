"""Owns which items a step sees: a pure function of (seed, step), the same for any number of processes.

The items of all epochs form one endless stream, each epoch a permutation of its own. Step `s` takes the `s`-th
group of `batch_size` from it, so batches wrap over the end of an epoch and no item is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from quintet.common.rng import absorb, mix, seed_from
from quintet.data.splits import ShardShuffle

SampleIndex = tuple[int, int]
"""(epoch, item)"""

BUCKET_BATCHES = 64
"""How many batches are sorted by length together: enough to make them even, few enough to stay random."""


class Order:
    """The training order. Where `lengths` are given, batches hold items of similar length; with `shard_shuffle`,
    an epoch goes through the shards in groups, drawn again in each epoch, and shuffles the items of each group."""

    def __init__(
        self,
        num_items: int,
        batch_size: int,
        seed: int,
        lengths: Sequence[int] | None = None,
        shard_shuffle: ShardShuffle | None = None,
    ) -> None:
        self.num_items = num_items
        self.batch_size = batch_size
        self.seed = seed
        self.shard_shuffle = shard_shuffle
        self.lengths = None if lengths is None else np.asarray(lengths)
        self._permutation = lru_cache(maxsize=2)(self._make_permutation)
        self._window = lru_cache(maxsize=2)(self._make_window)

    def batch(self, step: int) -> list[SampleIndex]:
        """The global batch of one step."""
        if self.lengths is None:
            return self._stream(step * self.batch_size, self.batch_size)
        return self._window(step // BUCKET_BATCHES)[step % BUCKET_BATCHES]

    def share(self, step: int, micro: int, accumulate: int, rank: int, world_size: int) -> list[SampleIndex]:
        """One rank's part of one micro-batch: contiguous, so that the ranks' parts in order are the whole."""
        batch = self.batch(step)
        size = self.batch_size // (accumulate * world_size)
        start = (micro * world_size + rank) * size
        return batch[start : start + size]

    def _stream(self, start: int, count: int) -> list[SampleIndex]:
        slots: list[SampleIndex] = []
        while len(slots) < count:
            epoch, offset = divmod(start + len(slots), self.num_items)
            part = self._permutation(epoch)[offset : offset + count - len(slots)]
            slots.extend((epoch, int(item)) for item in part)
        return slots

    def _make_permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        # Sorting hashed keys, rather than numpy's shuffle, keeps old runs resumable whatever numpy changes.
        keys = self._keys(self.num_items, epoch, "order")
        if self.shard_shuffle is None:
            return np.argsort(keys, kind="stable")
        files = int(self.shard_shuffle.file_of.max()) + 1
        place_of_file = np.empty(files, np.int64)
        place_of_file[np.argsort(self._keys(files, epoch, "files"), kind="stable")] = np.arange(files)
        portion = place_of_file[self.shard_shuffle.file_of] // self.shard_shuffle.shards_per_group
        return np.lexsort((keys, portion))

    def _keys(self, count: int, epoch: int, name: str) -> npt.NDArray[np.uint64]:
        start = mix(np.full(count, seed_from(self.seed, epoch, name), np.uint64))
        return absorb(start, np.arange(count, dtype=np.int64))

    def _make_window(self, window: int) -> list[list[SampleIndex]]:
        assert self.lengths is not None
        size = self.batch_size * BUCKET_BATCHES
        slots = self._stream(window * size, size)
        # Epoch by epoch: the copies of an item in a small data set must not stand side by side.
        lengths = self.lengths
        ranked = sorted(range(size), key=lambda place: (slots[place][0], lengths[slots[place][1]]))
        batches = [
            [slots[place] for place in ranked[start : start + self.batch_size]]
            for start in range(0, size, self.batch_size)
        ]
        keys = absorb(
            mix(np.full(BUCKET_BATCHES, seed_from(self.seed, window, "buckets"), np.uint64)),
            np.arange(BUCKET_BATCHES, dtype=np.int64),
        )
        return [batches[number] for number in np.argsort(keys, kind="stable")]


def replacement(seed: int, slot: SampleIndex, attempt: int, num_items: int) -> int:
    """The item that stands in for an unreadable one."""
    return seed_from(seed, slot[0], slot[1], attempt, "replacement") % num_items
