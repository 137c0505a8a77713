"""Which items a step sees: permutations of each epoch, the same for any number of processes."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.training.order import BUCKET_BATCHES, Order, ShardShuffle, replacement

steady = settings(deadline=None, derandomize=True, max_examples=50)
"""The same examples in every session, however busy the machine."""


def stream(order: Order, steps: int) -> list[tuple[int, int]]:
    return list(chain.from_iterable(order.batch(step) for step in range(steps)))


@steady
@given(num=st.integers(1, 40), batch=st.integers(1, 50), seed=st.integers(0, 2**32))
def test_each_epoch_is_a_permutation_and_batches_wrap_over_its_end(num: int, batch: int, seed: int) -> None:
    order = Order(num, batch, seed)
    slots = stream(order, steps=-(-3 * num // batch))
    assert all(len(order.batch(step)) == batch for step in range(3))
    assert [epoch for epoch, _ in slots] == [place // num for place in range(len(slots))]
    for epoch in range(3):
        assert sorted(item for number, item in slots if number == epoch)[:num] == list(range(num))


@steady
@given(files=st.lists(st.integers(0, 9), min_size=1, max_size=60), together=st.integers(1, 12), batch=st.integers(1, 9))
def test_portions_take_few_files_at_a_time_and_each_item_once(files: list[int], together: int, batch: int) -> None:
    order = Order(len(files), batch, 7, shard_shuffle=ShardShuffle(np.array(files), together))
    slots = stream(order, steps=-(-2 * len(files) // batch))
    for epoch in range(2):
        items = [item for number, item in slots if number == epoch]
        assert sorted(items)[: len(files)] == list(range(len(files)))
        spans = {file: [place for place, item in enumerate(items) if files[item] == file] for file in {*files}}
        for place in range(len(items)):
            assert sum(span[0] <= place <= span[-1] for span in spans.values()) <= together


def test_portions_of_all_files_are_the_order_without() -> None:
    files = np.arange(50) % 5
    assert stream(Order(50, 7, 3, shard_shuffle=ShardShuffle(files, 5)), 20) == stream(Order(50, 7, 3), 20)


def test_portions_differ_from_epoch_to_epoch() -> None:
    order = Order(40, 20, 0, shard_shuffle=ShardShuffle(np.arange(40) // 10, 1))
    assert [[item // 10 for _, item in order.batch(step)][::10] for step in (0, 1)] != [
        [item // 10 for _, item in order.batch(step)][::10] for step in (2, 3)
    ]


def test_epochs_and_seeds_differ() -> None:
    one, two, other = (
        Order(100, 100, 0).batch(0),
        Order(100, 100, 0).batch(1),
        Order(100, 100, 1).batch(0),
    )
    items = [[item for _, item in slots] for slots in (one, two, other)]
    assert items[0] != items[1]
    assert items[0] != items[2]
    assert items[0] != sorted(items[0])


def test_any_step_can_be_asked_for_at_once() -> None:
    """A resumed run asks for step 1000 first."""
    straight = Order(30, 8, 4)
    for step in range(1001):
        last = straight.batch(step)
    assert Order(30, 8, 4).batch(1000) == last


@pytest.mark.parametrize("lengths", [None, list(range(50))], ids=["plain", "bucketed"])
@pytest.mark.parametrize(("world_size", "accumulate"), [(1, 1), (2, 1), (1, 3), (2, 3), (4, 2), (3, 4)])
def test_shares_in_order_are_the_batch(lengths: list[int] | None, world_size: int, accumulate: int) -> None:
    order = Order(50, 24, 9, lengths)
    for step in (0, 3, 70):
        shares = [
            order.local_batch(step, micro, accumulate, rank, world_size)
            for micro in range(accumulate)
            for rank in range(world_size)
        ]
        assert {len(share) for share in shares} == {24 // (world_size * accumulate)}
        assert list(chain.from_iterable(shares)) == order.batch(step)


def spread(batch: list[tuple[int, int]], lengths: list[int]) -> int:
    values = [lengths[item] for _, item in batch]
    return max(values) - min(values)


@pytest.mark.parametrize("num", [30, 96, 1000])
def test_bucketing_sees_every_item_once_an_epoch(num: int) -> None:
    lengths = [(7 * item) % 83 for item in range(num)]
    plain, bucketed = Order(num, 8, 3), Order(num, 8, 3, lengths)
    assert Counter(stream(plain, 2 * BUCKET_BATCHES)) == Counter(stream(bucketed, 2 * BUCKET_BATCHES))
    assert max(Counter(stream(bucketed, 2 * BUCKET_BATCHES)).values()) == 1


def test_bucketed_batches_are_more_even_than_plain_ones() -> None:
    lengths = [(7 * item) % 499 for item in range(1000)]
    plain, bucketed = Order(1000, 8, 3), Order(1000, 8, 3, lengths)
    spreads = [sum(spread(order.batch(step), lengths) for step in range(200)) for order in (plain, bucketed)]
    assert spreads[1] < spreads[0] / 10


def test_bucketed_batches_come_in_no_order_of_length() -> None:
    lengths = list(range(1000))
    firsts = [Order(1000, 8, 3, lengths).batch(step)[0][1] for step in range(BUCKET_BATCHES)]
    assert firsts != sorted(firsts)
    assert firsts != sorted(firsts, reverse=True)


@pytest.mark.parametrize("num", [32, 96])
def test_bucketing_a_small_data_set_does_not_fill_a_batch_with_one_item(num: int) -> None:
    """Epochs hold whole batches here, so no batch needs the same item twice."""
    order = Order(num, 8, 3, lengths=list(range(num)))
    for step in range(3 * BUCKET_BATCHES):
        items = [item for _, item in order.batch(step)]
        assert len(set(items)) == len(items), f"step {step}: {items}"


def test_the_order_stays_what_it_is_for_ever() -> None:
    """Written down once: a run of last year must see the same items when it is resumed."""
    assert Order(10, 4, 0).batch(0) == [(0, 5), (0, 6), (0, 2), (0, 0)]
    assert Order(10, 4, 0).batch(2) == [(0, 9), (0, 4), (1, 8), (1, 7)]
    assert Order(7, 3, 123).batch(1000) == [(428, 6), (428, 5), (428, 3)]
    bucketed = Order(256, 4, 5, lengths=[(7 * item) % 256 for item in range(256)])
    assert bucketed.batch(0) == [(0, 64), (0, 247), (0, 174), (0, 101)]
    assert bucketed.batch(63) == [(0, 120), (0, 47), (0, 230), (0, 157)]
    assert [replacement(0, (1, 2), attempt, 100) for attempt in range(4)] == [80, 32, 26, 45]


@steady
@given(seed=st.integers(0, 2**32), epoch=st.integers(0, 2**31), item=st.integers(0, 999), num=st.integers(1, 1000))
def test_replacement_is_a_pure_function(seed: int, epoch: int, item: int, num: int) -> None:
    made = [replacement(seed, (epoch, item), attempt, num) for attempt in range(3)]
    assert made == [replacement(seed, (epoch, item), attempt, num) for attempt in range(3)]
    assert all(0 <= each < num for each in made)


def test_replacements_spread_over_the_data() -> None:
    """Another attempt, epoch or item asks for another stand-in."""
    made = {
        replacement(0, (epoch, item), attempt, 10**9) for epoch in range(5) for item in range(5) for attempt in (0, 1)
    }
    assert len(made) == 50
