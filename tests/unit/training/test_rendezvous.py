"""Processes that begin together agree on a number that nobody had before, whatever others left in the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from quintet.training.distributed.rendezvous import rendezvous

SOON = timedelta(seconds=60)


def meet_all(store: HashStore, world_size: int) -> set[str]:
    with ThreadPoolExecutor(world_size) as pool:
        meetings = [pool.submit(rendezvous, store, rank, world_size, SOON) for rank in range(world_size)]
        return {meeting.result() for meeting in meetings}


def test_all_agree_and_every_time_on_another_number() -> None:
    store = HashStore()
    assert [meet_all(store, 3) for _ in range(3)] == [{"1"}, {"2"}, {"3"}]


def test_an_attempt_that_came_to_nothing_is_forgotten() -> None:
    store = HashStore()
    for rank in (1, 0):  # each alone: the other one died
        with pytest.raises(TimeoutError, match="timed out waiting for"):
            rendezvous(store, rank, 2, timedelta(0))
    assert meet_all(store, 2) == {"2"}


def test_one_process_meets_nobody() -> None:
    assert rendezvous(HashStore(), 0, 1, timedelta(0)) == "1"
