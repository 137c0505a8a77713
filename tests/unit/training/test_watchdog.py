"""Who gives up says why, once; the rest is tried on real processes in tests/integration."""

from __future__ import annotations

import threading

import pytest
from torch.distributed import HashStore

from quintet.training.distributed import watchdog as watch_module
from quintet.training.distributed.watchdog import HangWatchdog


def watch_at(store: HashStore, alive: bool = True, rank: int = 1, meeting: str = "0") -> HangWatchdog:
    return HangWatchdog(store, lambda: alive, meeting, rank, world_size=2)


def test_who_fails_says_why_and_waits_for_the_others_to_be_gone() -> None:
    store = HashStore()
    store.add("quintet/0/exited", 1)
    watch_at(store).fail("nobody answers")
    assert store.get("quintet/0/failed") == b"process 1: nobody answers"
    assert store.check(["quintet/0/exited/all"])


def test_the_first_reason_stands() -> None:
    store = HashStore()
    watches = [watch_at(store, rank=rank) for rank in range(2)]
    for watch in watches:
        watch.stop()
    store.add("quintet/0/exited", 1)
    watches[1].fail("the first")
    watches[0].fail("the second")
    assert store.get("quintet/0/failed") == b"process 1: the first"


def test_a_new_attempt_does_not_hear_of_the_last_one() -> None:
    store = HashStore()
    store.add("quintet/0/exited", 1)
    watch_at(store).fail("nobody answers")
    later = watch_at(store, meeting="1")
    later.stop()
    assert not store.check(["quintet/1/failed"])


def test_a_store_that_answers_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its machine has lost its power: connections stand, and nothing comes."""
    monkeypatch.setattr(watch_module, "INTERVAL", 0.001)
    monkeypatch.setattr(watch_module, "GRACE", 0.1)
    asked, over = threading.Event(), threading.Event()

    class Silent(HashStore):
        def check(self, keys: list[str]) -> bool:
            asked.set()
            return not over.wait()

    watch = watch_at(Silent())
    asked.wait()
    watch.fail("nobody answers")
    over.set()


def test_a_store_that_has_ended_is_not_asked() -> None:
    store = HashStore()
    watch_at(store, alive=False).fail("nobody answers")
    assert not store.check(["quintet/0/failed"])
