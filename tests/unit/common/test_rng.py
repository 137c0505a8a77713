"""Random choices are a pure function of (seed, epoch, item, name), and stay what they are for ever."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.common.rng import ItemRNG, seed_from

steady = settings(deadline=None, derandomize=True, max_examples=50)
"""The same examples in every session, however busy the machine."""

EPOCHS = [0, 0, 3, 3, 2**31, 1]
ITEMS = [0, 1, 12_345, 5, 7, 5]


def test_split_into_batches_changes_nothing() -> None:
    whole = ItemRNG(4, EPOCHS, ITEMS)
    parts = [ItemRNG(4, EPOCHS[:2], ITEMS[:2]), ItemRNG(4, EPOCHS[2:], ITEMS[2:])]
    assert torch.equal(whole.uniform("mask", 3, 2), torch.cat([part.uniform("mask", 3, 2) for part in parts]))
    assert torch.equal(whole.integers("level", 0, 9), torch.cat([part.integers("level", 0, 9) for part in parts]))


@steady
@given(st.permutations(range(len(ITEMS))))
def test_order_of_the_batch_changes_nothing(places: list[int]) -> None:
    straight = ItemRNG(4, EPOCHS, ITEMS).uniform("mask", 5)
    moved = ItemRNG(4, [EPOCHS[place] for place in places], [ITEMS[place] for place in places]).uniform("mask", 5)
    assert torch.equal(moved, straight[places])


def test_numbers_do_not_depend_on_earlier_calls() -> None:
    rng = ItemRNG(4, EPOCHS, ITEMS)
    first = rng.uniform("crop", 4)
    rng.uniform("other", 100)
    assert torch.equal(rng.uniform("crop", 4), first)
    assert torch.equal(rng.uniform("crop", 9)[:, :4], first)  # a longer answer begins with the shorter one


def test_the_global_rng_of_torch_is_not_used() -> None:
    before = torch.get_rng_state()
    ItemRNG(0, [0], [0]).uniform("x", 10)
    assert torch.equal(torch.get_rng_state(), before)


def test_uniform_is_uniform() -> None:
    """Mean and variance over items, over positions of one item, and over epochs, each within five deviations."""
    count = 40_000
    over_items = ItemRNG(1, [0] * count, list(range(count))).uniform("x")
    over_places = ItemRNG(1, [0], [3]).uniform("x", count)[0]
    over_epochs = ItemRNG(1, list(range(count)), [3] * count).uniform("x")
    for values in (over_items, over_places, over_epochs):
        assert values.dtype == torch.float32
        assert values.min() >= 0
        assert values.max() < 1
        assert abs(values.double().mean() - 0.5) < 5 * (1 / 12 / count) ** 0.5
        assert abs(values.double().var() - 1 / 12) < 5 * (1 / 180 / count) ** 0.5


def test_neighbours_are_not_correlated() -> None:
    count = 40_000
    rows = ItemRNG(1, [0] * count, list(range(count))).uniform("x", 2).double()
    other_name = ItemRNG(1, [0] * count, list(range(count))).uniform("y").double()
    pairs = [(rows[:, 0], rows[:, 1]), (rows[:-1, 0], rows[1:, 0]), (rows[:, 0], other_name)]
    for one, two in pairs:
        assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1]) < 5 / count**0.5


@pytest.mark.parametrize(
    "other",
    [ItemRNG(1, [0] * 8, range(8)), ItemRNG(0, [1] * 8, range(8)), ItemRNG(0, [0] * 8, range(8, 16))],
    ids=["seed", "epoch", "items"],
)
def test_other_seeds_epochs_and_items_differ(other: ItemRNG) -> None:
    own = ItemRNG(0, [0] * 8, range(8))
    assert not torch.isclose(own.uniform("x"), other.uniform("x")).any()


def test_other_names_differ() -> None:
    rng = ItemRNG(0, [0] * 8, range(8))
    assert not torch.isclose(rng.uniform("x"), rng.uniform("y")).any()


@steady
@given(low=st.integers(-1000, 1000), span=st.integers(1, 2000), seed=st.integers(0, 2**64 - 1))
def test_integers_stay_in_their_range(low: int, span: int, seed: int) -> None:
    values = ItemRNG(seed, [0, 1], [2, 3]).integers("level", low, low + span, 7)
    assert values.dtype == torch.int64
    assert values.shape == (2, 7)
    assert low <= values.min()
    assert values.max() < low + span


def test_integers_reach_every_value_about_equally_often() -> None:
    counts = ItemRNG(0, [0], [0]).integers("level", 5, 12, 70_000)[0].bincount()
    assert counts[:5].sum() == 0
    assert counts[5:].tolist() == pytest.approx([10_000] * 7, rel=0.05)


def test_number_is_the_row() -> None:
    assert ItemRNG(3, [9], [4]).number("flip") == ItemRNG(3, [1, 9], [8, 4]).uniform("flip")[1].item()


def test_number_is_for_one_item() -> None:
    with pytest.raises(ValueError, match="too many values"):
        ItemRNG(3, [1, 9], [8, 4]).number("flip")


def test_an_empty_batch_is_a_batch() -> None:
    rng = ItemRNG(0, [], [])
    assert len(rng) == 0
    assert rng.uniform("x", 3).shape == (0, 3)


def test_the_numbers_never_change() -> None:
    """Written down once: a run of last year must make the same choices when it is resumed."""
    rng = ItemRNG(0, [0, 0, 3], [0, 1, 12_345])
    assert rng.bits("mask", 2).tolist() == [
        [310861477098224586, 8460592913428860753],
        [11533296528913843980, 2305049635760284117],
        [4203509037363579588, 817111028847765735],
    ]
    assert rng.uniform("flip").tolist() == [0.706027626991272, 0.19679641723632812, 0.23119139671325684]
    assert rng.integers("level", -3, 9, 4).tolist() == [[-1, 2, 3, 3], [8, 2, 8, 8], [1, 5, 0, -1]]
    assert ItemRNG(2**63 + 5, [2**31], [7]).number("crop-x") == 0.3107345700263977
    assert seed_from(0, 1, "order") == 358907424293071457
    assert seed_from("a") == 6040484594543115847


@steady
@given(st.lists(st.integers(0, 2**64 - 1) | st.text(max_size=5), max_size=4))
def test_seeds_fit_every_generator(parts: list[int | str]) -> None:
    assert 0 <= seed_from(*parts) < 2**63


def test_seeds_depend_on_every_part_and_their_order() -> None:
    made = [seed_from(1, 2), seed_from(2, 1), seed_from(1, 2, 0), seed_from(1, 2, "a"), seed_from(1, 2, "b")]
    assert len(set(made)) == len(made)
