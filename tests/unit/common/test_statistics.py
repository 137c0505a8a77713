"""Statistics in one process: adding, naming, and what a rank without items brings. (Two: test_processes.py.)"""

from __future__ import annotations

import torch

from quintet.common import collectives
from quintet.common.statistics import Statistics


def report(start: int, count: int) -> Statistics:
    rows = torch.arange(start, start + count, dtype=torch.float64)[:, None]
    return Statistics({"sum": rows.sum(), "count": torch.tensor(count)}, {"rows": rows})


def test_adding_sums_and_lays_rows_one_after_the_other() -> None:
    total = report(0, 3) + report(3, 2) + report(5, 0)
    assert total.sums["sum"] == 10
    assert total.sums["count"] == 5
    assert total.rows["rows"].flatten().tolist() == [0, 1, 2, 3, 4]
    assert total.parts_of("rows") == (3, 2, 0)


def test_adding_changes_neither_side() -> None:
    one, two = report(0, 2), report(2, 2)
    one + two
    assert one.sums["sum"] == 1
    assert len(two.rows["rows"]) == 2
    assert Statistics() + one + Statistics() == one + Statistics()


def test_one_side_may_know_names_the_other_does_not() -> None:
    total = Statistics({"a": torch.tensor(1)}, {"x": torch.ones(2)}) + Statistics(
        {"b": torch.tensor(2)}, {"y": torch.ones(3)}
    )
    assert total.sums == {"a": torch.tensor(1), "b": torch.tensor(2)}
    assert (total.parts_of("x"), total.parts_of("y")) == ((2,), (3,))


def test_one_process_is_the_global_batch() -> None:
    total = (report(0, 3) + report(3, 2)).over_ranks()
    assert total.sums["sum"] == 10
    assert total.rows["rows"].flatten().tolist() == [0, 1, 2, 3, 4]


def test_names_travel_under_a_prefix_and_back() -> None:
    both = (report(0, 2) + report(2, 1)).with_prefix("quantizer") + report(7, 1).with_prefix("logits")
    assert set(both.sums) == {"quantizer/sum", "quantizer/count", "logits/sum", "logits/count"}
    own = both.strip_prefix("quantizer")
    assert own.sums["sum"] == 3
    assert own.parts_of("rows") == (2, 1)
    assert both.strip_prefix("logits").rows["rows"].tolist() == [[7]]
    assert both.strip_prefix("quant") == Statistics()


def test_a_rank_without_items_counts_nothing_and_keeps_in_step() -> None:
    """As many parts as the others bring: they are gathered one by one, and a missing one would hang the rest."""
    empty = (report(0, 3) + report(3, 2)).zeros_like()
    assert empty.sums["sum"] == 0
    assert empty.sums["count"] == 0
    assert empty.sums["count"].dtype == torch.int64
    assert empty.rows["rows"].shape == (0, 1)
    assert empty.parts_of("rows") == (0, 0)


def test_collectives_are_the_obvious_thing_in_one_process() -> None:
    tensor = torch.randn(3, 2, requires_grad=True)
    assert collectives.world_size() == 1
    assert collectives.rank() == 0
    assert not collectives.is_distributed()
    assert collectives.sum_over_ranks(tensor) is tensor
    assert collectives.gather_rows(tensor) is tensor
    assert collectives.gather_uneven_rows(tensor) is tensor
    assert collectives.gather_texts("ü", torch.device("cpu")) == ["ü"]
    assert collectives.gather_texts("", torch.device("cpu")) == [""]
    assert collectives.maximum_over_ranks(tensor) is tensor


def test_mean_of_masked_values() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 40.0]])
    assert collectives.mean_over_ranks(values) == 11.5
    assert collectives.mean_over_ranks(values, torch.tensor([[True, True], [True, False]])) == 2
    assert collectives.mean_over_ranks(values, torch.tensor([[True], [False]])) == 1.5
    assert collectives.mean_over_ranks(values, torch.zeros(2, 2)) == 0


def test_values_outside_the_mask_do_not_count() -> None:
    """The loss of padding may well be infinite."""
    values = torch.tensor([1.0, 3.0, float("inf"), float("nan")])
    assert collectives.mean_over_ranks(values, torch.tensor([True, True, False, False])) == 2
