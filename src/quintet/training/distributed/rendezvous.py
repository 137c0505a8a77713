"""Owns how the processes of a run find each other in a store that may hold what processes before them left.

A launcher that starts a failed run again may keep its store, and its count of restarts may differ between machines. So
the first process, new at each attempt, opens a meeting with a number of its own; everybody else says hello under a name
that nobody had before, and is told that number. All later keys of this attempt stand behind it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

PAUSE = 0.05
"""Seconds between two looks."""


class Store(Protocol):
    """What is used of torch's key-value store."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...


def rendezvous(store: Store, rank: int, world_size: int, within: timedelta) -> str:
    """The number of this meeting, once all processes are there; a TimeoutError where some never come."""
    look = _opening(store, world_size) if rank == 0 else _attending(store, rank)
    deadline = time.monotonic() + within.total_seconds()
    while (number := look()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain for " + ("the other processes" if rank == 0 else "the first process"))
        time.sleep(PAUSE)
    return number


def _opening(store: Store, world_size: int) -> Callable[[], str | None]:
    number = str(store.add("quintet/meetings", 1))
    absent = set(range(1, world_size))

    def look() -> str | None:
        for rank in sorted(absent):
            # A hello may be an old one: only who is alive answers to the number.
            if store.check([f"quintet/hello/{rank}"]):
                store.set(f"quintet/told/{store.get(f'quintet/hello/{rank}').decode()}", number)
            if store.check([f"quintet/{number}/here/{rank}"]):
                absent.discard(rank)
        if absent:
            return None
        store.set(f"quintet/{number}/all", "")
        return number

    return look


def _attending(store: Store, rank: int) -> Callable[[], str | None]:
    name = uuid.uuid4().hex
    store.set(f"quintet/hello/{rank}", name)

    def look() -> str | None:
        # Asked again each time: a first process that is about to end may have told its own number.
        if not store.check([f"quintet/told/{name}"]):
            return None
        number = store.get(f"quintet/told/{name}").decode()
        store.set(f"quintet/{number}/here/{rank}", "")
        return number if store.check([f"quintet/{number}/all"]) else None

    return look
