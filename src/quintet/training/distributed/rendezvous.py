"""Rendezvous: the processes of a run find each other in a key-value store that may hold keys of earlier attempts.

A launcher that restarts a failed run may reuse its store, and the restart count may differ between machines. So rank 0,
new at each attempt, takes the next attempt number. Every other rank registers under a random name, and rank 0 sends the
attempt number to that name. All later keys of the attempt are prefixed with its number.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

PAUSE = 0.05
"""Seconds between two polls of the store."""


class Store(Protocol):
    """The used part of the interface of torch's key-value store."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...


def rendezvous(store: Store, rank: int, world_size: int, timeout: timedelta) -> str:
    """Wait for all processes and return the attempt number. Raises TimeoutError if some do not arrive."""
    poll = _lead(store, world_size) if rank == 0 else _join(store, rank)
    deadline = time.monotonic() + timeout.total_seconds()
    while (number := poll()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError("timed out waiting for " + ("the other processes" if rank == 0 else "rank 0"))
        time.sleep(PAUSE)
    return number


def _lead(store: Store, world_size: int) -> Callable[[], str | None]:
    number = str(store.add("quintet/attempts", 1))
    missing = set(range(1, world_size))

    def poll() -> str | None:
        for rank in sorted(missing):
            # A registration may be of an earlier attempt: only a live process answers.
            if store.check([f"quintet/registered/{rank}"]):
                store.set(f"quintet/assigned/{store.get(f'quintet/registered/{rank}').decode()}", number)
            if store.check([f"quintet/{number}/ready/{rank}"]):
                missing.discard(rank)
        if missing:
            return None
        store.set(f"quintet/{number}/all", "")
        return number

    return poll


def _join(store: Store, rank: int) -> Callable[[], str | None]:
    name = uuid.uuid4().hex
    store.set(f"quintet/registered/{rank}", name)

    def poll() -> str | None:
        # Read at every poll: the rank 0 of an earlier attempt may have sent its own number.
        if not store.check([f"quintet/assigned/{name}"]):
            return None
        number = store.get(f"quintet/assigned/{name}").decode()
        store.set(f"quintet/{number}/ready/{rank}", "")
        return number if store.check([f"quintet/{number}/all"]) else None

    return poll
