"""Batches of named fields: stacking, moving, and naming the items that hold a bad number."""

from __future__ import annotations

import torch

from quintet.common.batch import Batch, collate
from quintet.common.rng import ItemRNG


def batch(fields: dict[str, object], count: int = 3) -> Batch:
    return Batch(fields, tuple(f"item-{number}" for number in range(count)), ItemRNG(0, [0] * count, range(count)))


def test_collate_stacks_tensors_and_numbers_and_keeps_the_rest() -> None:
    fields = collate(
        [{"x": torch.ones(2), "n": 1, "f": 0.5, "t": "a"}, {"x": torch.zeros(2), "n": 2, "f": 1, "t": "b"}]
    )
    assert torch.equal(fields["x"], torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert fields["n"].tolist() == [1, 2]
    assert fields["f"].tolist() == [0.5, 1.0]
    assert fields["t"] == ["a", "b"]


def test_moving_changes_the_precision_of_floats_alone() -> None:
    moved = batch({"x": torch.ones(3), "codes": torch.arange(3), "t": ["a", "b", "c"]}).to(
        torch.device("cpu"), torch.float64
    )
    assert moved["x"].dtype == moved.precision == torch.float64
    assert moved["codes"].dtype == torch.int64
    assert moved["t"] == ["a", "b", "c"]
    assert len(moved) == 3
    assert "x" in moved
    assert "y" not in moved


def test_nonfinite_items_are_the_items_with_a_nonfinite_value() -> None:
    x = torch.zeros(3, 2, 2)
    x[1, 0, 1] = float("inf")
    assert batch({"x": x, "codes": torch.arange(3)}).nonfinite_items() == ("item-1",)
    assert batch({"x": x, "y": torch.tensor([float("nan"), 0, 0])}).nonfinite_items() == ("item-0", "item-1")


def test_nonfinite_items_ignores_fields_without_a_batch_axis() -> None:
    about_none = {"scale": torch.tensor(1.0), "nothing": torch.zeros(3, 0), "table": torch.full((5, 2), float("nan"))}
    own = torch.tensor([0.0, 0.0, float("nan")])
    assert batch({**about_none, "own": own}).nonfinite_items() == ("item-2",)


def test_a_field_that_not_all_items_have_is_left_out() -> None:
    items = [{"number": 1, "objects": ["a"]}, {"number": 2}]
    for order in (items, items[::-1]):
        assert collate(order).keys() == {"number"}
