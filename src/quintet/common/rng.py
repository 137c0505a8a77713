"""`ItemRNG`: counter-based random numbers for masks, crops, flips and dropped conditioning.

Every number is a pure function of (seed, epoch, item, name). It does not depend on the rank, the number of workers or
the split into batches, so a resumed run and a run on other devices make the same choices. The generator is SplitMix64
used as a counter-based hash, vectorised over items.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ALL = 2**64 - 1


def mix(state: Words) -> Words:
    """The finaliser of SplitMix64: every input bit affects every output bit."""
    with np.errstate(over="ignore"):
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


def absorb(state: Words, value: int | npt.NDArray[np.int64] | Words) -> Words:
    """Fold one more value into the state."""
    word = np.asarray(value & _ALL if isinstance(value, int) else value).astype(np.uint64)
    with np.errstate(over="ignore"):
        return mix(state + _GOLDEN * (word + np.uint64(1)))


def mix_one(state: int) -> int:
    """`mix` of one Python integer: for a single item, numpy's call overhead costs more than the arithmetic."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _ALL
    return state ^ (state >> 31)


def absorb_one(state: int, value: int) -> int:
    """`absorb` of one number."""
    return mix_one((state + int(_GOLDEN) * ((value & _ALL) + 1)) & _ALL)


def seed_from(*parts: int | str) -> int:
    """Combine several values into one non-negative 63-bit seed, for generators that take a single seed."""
    state = 0
    for part in parts:
        state = absorb_one(state, zlib.crc32(part.encode()) if isinstance(part, str) else part)
    return state >> 1


class ItemRNG:
    """Named random numbers of a batch of items; row i depends only on item i."""

    def __init__(self, seed: int, epochs: Sequence[int], items: Sequence[int]) -> None:
        self.seed = seed
        self.epochs = epochs
        self.items = items

    @cached_property
    def _rows(self) -> Words:
        """One state per item, (items,), from which the numbers of every name are derived."""
        start = mix(np.full(len(self), self.seed & _ALL, np.uint64))
        return absorb(absorb(start, np.asarray(self.epochs, np.int64)), np.asarray(self.items, np.int64))

    def __len__(self) -> int:
        return len(self.items)

    def bits(self, name: str, *shape: int) -> Words:
        """Random 64-bit words, (items, *shape)."""
        rows = absorb(self._rows, zlib.crc32(name.encode()))
        count = int(np.prod(shape, dtype=np.int64))
        counters = np.arange(count, dtype=np.uint64)
        return absorb(rows[:, None], counters[None, :]).reshape(len(self), *shape)

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Float32 numbers in [0, 1), exact multiples of 2^-24, (items, *shape)."""
        words = self.bits(name, *shape) >> np.uint64(40)
        return torch.from_numpy(words.astype(np.float32) * np.float32(2**-24))

    def integers(self, name: str, low: int, high: int, *shape: int) -> Tensor:
        """Int64 numbers in [low, high), (items, *shape)."""
        span = np.uint64(high - low)
        words = (self.bits(name, *shape) >> np.uint64(32)) * span >> np.uint64(32)
        return torch.from_numpy(words.astype(np.int64) + low)

    def number(self, name: str) -> float:
        """One number in [0, 1), for an RNG of a single item."""
        (epoch,), (item,) = self.epochs, self.items
        state = absorb_one(absorb_one(mix_one(self.seed & _ALL), epoch), item)
        word = absorb_one(absorb_one(state, zlib.crc32(name.encode())), 0)
        return (word >> 40) * 2.0**-24
