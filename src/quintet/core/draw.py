"""Owns the random choices of a model and its data: masks, crops, flips, dropped texts.

Every number is a pure function of (seed, epoch, item, name). Neither the rank, the number of workers nor the
split into batches can change it, so a resumed run and a run on other devices make the same choices. The
generator is SplitMix64 used as a counter-based hash, vectorised over items.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(state: Words) -> Words:
    """The finaliser of SplitMix64: every bit of the input moves every bit of the output."""
    with np.errstate(over="ignore"):
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


def absorb(state: Words, value: int | npt.NDArray[np.int64] | Words) -> Words:
    """Fold one more value into the state."""
    word = np.asarray(value & 0xFFFFFFFFFFFFFFFF if isinstance(value, int) else value).astype(np.uint64)
    with np.errstate(over="ignore"):
        return mix(state + _GOLDEN * (word + np.uint64(1)))


def seed_from(*parts: int | str) -> int:
    """One non-negative 63-bit seed out of several values, for generators that take a single one."""
    state = np.zeros((), np.uint64)
    for part in parts:
        state = absorb(state, zlib.crc32(part.encode()) if isinstance(part, str) else part)
    return int(state >> np.uint64(1))


class Draw:
    """The random numbers of a batch of items, asked for by name; row i belongs to item i alone."""

    def __init__(self, seed: int, epochs: Sequence[int], items: Sequence[int]) -> None:
        self.seed = seed
        self.epochs = np.asarray(epochs, np.int64)
        self.items = np.asarray(items, np.int64)
        start = np.full(self.items.shape, seed & 0xFFFFFFFFFFFFFFFF, np.uint64)
        self._rows = absorb(absorb(mix(start), self.epochs), self.items)

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
        """One number in [0, 1) for the only item of this draw: what a reader of single items asks for."""
        (value,) = self.uniform(name).tolist()
        return float(value)
