"""A failed process announces the reason once; tests/integration covers real processes."""

from __future__ import annotations

import threading

import pytest
from torch.distributed import HashStore

from quintet.training.distributed import watchdog as watch_module
from quintet.training.distributed.watchdog import HangWatchdog, did_not_answer


def watchdog_at(store: HashStore, alive: bool = True, rank: int = 1, attempt: str = "0") -> HangWatchdog:
    return HangWatchdog(store, lambda: alive, attempt, rank, world_size=2)


def test_a_failed_process_announces_the_reason_and_waits_for_the_others() -> None:
    store = HashStore()
    store.add("quintet/0/exited", 1)
    watchdog_at(store).fail("nobody answers")
    assert store.get("quintet/0/failed") == b"process 1: nobody answers"
    assert store.check(["quintet/0/exited/all"])


def test_the_first_reason_is_kept() -> None:
    store = HashStore()
    watches = [watchdog_at(store, rank=rank) for rank in range(2)]
    for watch in watches:
        watch.stop()
    store.add("quintet/0/exited", 1)
    watches[1].fail("the first")
    watches[0].fail("the second")
    assert store.get("quintet/0/failed") == b"process 1: the first"


def test_a_new_attempt_ignores_the_previous_one() -> None:
    store = HashStore()
    store.add("quintet/0/exited", 1)
    watchdog_at(store).fail("nobody answers")
    later = watchdog_at(store, attempt="1")
    later.stop()
    assert not store.check(["quintet/1/failed"])


def test_a_store_that_does_not_respond_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its machine has lost its power: connections stand, and nothing comes."""
    monkeypatch.setattr(watch_module, "INTERVAL", 0.001)
    monkeypatch.setattr(watch_module, "GRACE", 0.1)
    asked, over = threading.Event(), threading.Event()

    class Silent(HashStore):
        def check(self, keys: list[str]) -> bool:
            asked.set()
            return not over.wait()

    watch = watchdog_at(Silent())
    asked.wait()
    watch.fail("nobody answers")
    over.set()


def test_a_closed_store_is_not_polled() -> None:
    store = HashStore()
    watchdog_at(store, alive=False).fail("nobody answers")
    assert not store.check(["quintet/0/failed"])


# --- processes that do not move -----------------------------------------------------------------------------------


def waiting(store: HashStore, points: int) -> HangWatchdog:
    """The watchdog of process 0 of two, which has passed some points; asked by the test instead of its thread."""
    watch = HangWatchdog(store, lambda: True, "0", 0, world_size=2, timeout=40)
    watch.stop()
    for _ in range(points):
        watch.pass_point()
    return watch


def published(store: HashStore, watch: HangWatchdog, *progress: str) -> list[tuple[int, ...]]:
    """The suspects after each of the things that process 1 published, while process 0 waits."""
    found = []
    for text in progress:
        store.set("quintet/0/progress/1", text)
        found.append(watch._find_suspects(waited=10))
    return found


def test_a_process_that_stays_behind_is_suspected() -> None:
    store = HashStore()
    assert published(store, waiting(store, points=4), "3 1", "3 2", "3 3") == [(), (1,), (1,)]


def test_a_process_that_moves_or_waits_at_the_same_point_is_not_suspected() -> None:
    store = HashStore()
    assert published(store, waiting(store, points=4), "1 1", "2 2", "3 3", "3 4", "4 5", "4 6") == [()] * 6


def test_a_process_whose_thread_is_silent_is_suspected() -> None:
    """It is stopped, or its machine is gone, at whatever point."""
    store = HashStore()
    assert published(store, waiting(store, points=4), *["4 7"] * 5) == [(), (), (), (1,), (1,)]


def test_the_others_are_looked_at_only_by_a_process_that_waits() -> None:
    class Unused(HashStore):
        def get(self, key: str) -> bytes:
            raise AssertionError(key)

    watch = waiting(Unused(), points=4)
    assert watch._find_suspects(waited=9) == ()


def test_the_sentence_names_the_processes_that_are_known() -> None:
    sentences = [did_not_answer(ranks) for ranks in ((), (3,), (3, 5))]
    assert [sentence.partition(" of this run did not answer")[0] for sentence in sentences] == [
        "another process",
        "process 3",
        "processes 3, 5",
    ]
