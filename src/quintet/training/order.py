"""`Order`: the items of each training step, a pure function of (seed, step) for any number of processes.

The items of all epochs form one endless stream; each epoch is a permutation. Step `s` takes the `s`-th group of
`batch_size` items, so batches wrap around the end of an epoch and no item is dropped.
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
"""Number of batches that are sorted by length together: enough for even lengths, few enough to stay random."""


class Order:
    """The training order.

    With `lengths`, batches contain items of similar length. With `shard_shuffle`, an epoch reads a few shard files at a
    time, in a new random order, and shuffles the items within that group."""

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

    def local_batch(
        self, step: int, micro: int, grad_accum_steps: int, rank: int, world_size: int
    ) -> list[SampleIndex]:
        """The items of one rank in one micro-batch: a contiguous slice, in rank order, of the micro-batch."""
        batch = self.batch(step)
        size = self.batch_size // (grad_accum_steps * world_size)
        start = (micro * world_size + rank) * size
        return batch[start : start + size]

    def longest(self, count: int) -> list[SampleIndex]:
        """The longest items, or the first ones if items have no lengths: a batch that needs the most memory."""
        if self.lengths is None:
            return self._stream(0, count)
        ranked = np.argsort(-self.lengths, kind="stable")
        return [(0, int(ranked[number % self.num_items])) for number in range(count)]

    def _stream(self, start: int, count: int) -> list[SampleIndex]:
        indices: list[SampleIndex] = []
        while len(indices) < count:
            epoch, offset = divmod(start + len(indices), self.num_items)
            part = self._permutation(epoch)[offset : offset + count - len(indices)]
            indices.extend((epoch, int(item)) for item in part)
        return indices

    def _make_permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        # Sorting hashed keys, rather than numpy's shuffle, keeps old runs resumable whatever numpy changes.
        keys = self._keys(self.num_items, epoch, "order")
        if self.shard_shuffle is None:
            return np.argsort(keys, kind="stable")
        files = int(self.shard_shuffle.file_of.max()) + 1
        file_position = np.empty(files, np.int64)
        file_position[np.argsort(self._keys(files, epoch, "files"), kind="stable")] = np.arange(files)
        group = file_position[self.shard_shuffle.file_of] // self.shard_shuffle.shards_per_group
        return np.lexsort((keys, group))

    def _keys(self, count: int, epoch: int, name: str) -> npt.NDArray[np.uint64]:
        start = mix(np.full(count, seed_from(self.seed, epoch, name), np.uint64))
        return absorb(start, np.arange(count, dtype=np.int64))

    def _make_window(self, window: int) -> list[list[SampleIndex]]:
        assert self.lengths is not None
        size = self.batch_size * BUCKET_BATCHES
        indices = self._stream(window * size, size)
        # Sort by epoch first: repetitions of an item of a small data set must not end up in one batch.
        lengths = self.lengths
        ranked = sorted(range(size), key=lambda position: (indices[position][0], lengths[indices[position][1]]))
        batches = [
            [indices[position] for position in ranked[start : start + self.batch_size]]
            for start in range(0, size, self.batch_size)
        ]
        keys = absorb(
            mix(np.full(BUCKET_BATCHES, seed_from(self.seed, window, "buckets"), np.uint64)),
            np.arange(BUCKET_BATCHES, dtype=np.int64),
        )
        return [batches[number] for number in np.argsort(keys, kind="stable")]


def replacement(seed: int, index: SampleIndex, attempt: int, num_items: int) -> int:
    """The item that replaces an unreadable one."""
    return seed_from(seed, index[0], index[1], attempt, "replacement") % num_items
