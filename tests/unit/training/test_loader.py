"""Items become batches: replacements, workers, and the ranks' shares of a validation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import Points

from helpers import DEADLINE
from quintet.common.batch import Batch, Dataset, Item, collate
from quintet.common.processes import is_alive
from quintet.common.rng import ItemRNG
from quintet.errors import RunError, UnreadableItem, UsageError
from quintet.training.loader import VALIDATION_EPOCH, LoadedBatch, Loader
from quintet.training.order import Order, replacement


@dataclass
class FakeEngine:
    """As much of an engine as a loader looks at."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


def loader(source: Dataset, workers: int = 0, rank: int = 0, world_size: int = 1, seed: int = 3) -> Loader:
    engine: Any = FakeEngine(rank, world_size)
    return Loader(source, seed, collate, engine, workers)


def steps(made: Loader, order: Order, first: int, last: int, accumulate: int = 1) -> list[list[LoadedBatch]]:
    stream = made.training(order, first, last, accumulate)
    return [list(islice(stream, accumulate)) for _ in range(first, last)]


def names(loaded: list[list[LoadedBatch]]) -> list[list[tuple[str, ...]]]:
    return [[each.batch.names for each in step] for step in loaded]


def flat(loaded: list[list[LoadedBatch]]) -> list[LoadedBatch]:
    return [each for step in loaded for each in step]


# --- training -----------------------------------------------------------------------------------------------------


def test_batches_have_the_items_and_random_numbers_of_the_order() -> None:
    source, order = Points(10), Order(10, 4, 3)
    ((whole,), *_) = steps(loader(source), order, 5, 6)
    slots = order.batch(5)
    assert whole.batch.names == tuple(f"point-{item}" for _, item in slots)
    assert whole.batch.rng.epochs == [epoch for epoch, _ in slots]
    assert whole.batch["length"].tolist() == [item + 1 for _, item in slots]
    for row, (epoch, item) in enumerate(slots):
        assert torch.equal(whole.batch["x"][row], source.load(item, ItemRNG(3, [epoch], [item]))["x"])


def test_ranks_and_micro_batches_together_are_the_batch() -> None:
    order = Order(10, 8, 3)
    whole = names(steps(loader(Points(10)), order, 0, 3))
    by_rank = [names(steps(loader(Points(10), rank=rank, world_size=2), order, 0, 3, accumulate=2)) for rank in (0, 1)]
    for step in range(3):
        parts = [by_rank[rank][step][micro] for micro in (0, 1) for rank in (0, 1)]
        assert (tuple(name for part in parts for name in part),) == tuple(whole[step])


def test_the_number_of_workers_changes_nothing() -> None:
    source, order = Points(12, broken=frozenset({2, 7})), Order(12, 4, 3)
    alone, one, two = (steps(loader(source, workers), order, 2, 8, accumulate=2) for workers in (0, 1, 2))
    for other in (one, two):
        assert names(other) == names(alone)
        for mine, theirs in zip(flat(alone), flat(other), strict=True):
            assert torch.equal(mine.batch["x"], theirs.batch["x"])
            assert mine.skipped == theirs.skipped
            assert torch.equal(mine.batch.rng.uniform("mask", 5), theirs.batch.rng.uniform("mask", 5))


def process_and_mask(batch: Batch) -> dict[str, Any]:
    return {"process": os.getpid(), "mask": batch.rng.uniform("mask", 5)}


@pytest.mark.parametrize("workers", [0, 1])
def test_training_batches_are_prepared_where_they_are_collated(workers: int) -> None:
    made = loader(Points(10), workers)
    made.prepare = process_and_mask
    ((whole,), *_) = steps(made, Order(10, 4, 3), 0, 1)
    assert (whole.batch["process"] == os.getpid()) == (workers == 0)
    assert torch.equal(whole.batch["mask"], whole.batch.rng.uniform("mask", 5))
    assert whole.batch.is_prepared
    assert whole.batch.prepared(process_and_mask) is whole.batch
    # Not those of validation, which has masks of its own.
    assert "mask" not in made.first(2).batch
    assert all("mask" not in loaded.batch for loaded, _ in made.validation(4, None))


@dataclass
class CutOff(Points):
    """The connection to the worker is closed once, at one item."""

    flag: Path = Path()

    def load(self, item: int, rng: ItemRNG) -> Item:
        if item == 5 and not self.flag.exists():
            self.flag.touch()
            raise ConnectionResetError("connection reset by peer")
        return super().load(item, rng)


def test_a_batch_that_cannot_be_fetched_from_its_worker_is_read_again(tmp_path: Path) -> None:
    order = Order(10, 4, 3)
    wanted = names(steps(loader(Points(10)), order, 0, 6))
    assert names(steps(loader(CutOff(10, flag=tmp_path / "cut"), workers=2), order, 0, 6)) == wanted
    with pytest.raises(ConnectionResetError):
        steps(loader(CutOff(10, flag=tmp_path / "own")), order, 0, 6)


def test_starting_workers_leaves_the_stream_of_torch_alone() -> None:
    before = torch.get_rng_state()
    steps(loader(Points(8), workers=1), Order(8, 4, 3), 0, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_reading_is_lazy() -> None:
    source = Points(1000)
    stream = loader(source).training(Order(1000, 4, 3), 0, 250, 1)
    next(stream)
    assert len(source.loaded) <= 8


# --- replacements -------------------------------------------------------------------------------------------------


def test_an_unreadable_item_is_replaced_deterministically() -> None:
    broken = frozenset({1, 4, 5})
    order = Order(10, 5, 3)
    found = flat(steps(loader(Points(10, broken=broken)), order, 0, 4))
    again = flat(steps(loader(Points(10, broken=broken)), order, 0, 4))
    assert [each.batch.names for each in found] == [each.batch.names for each in again]
    expected = []
    for step in range(4):
        for slot in order.batch(step):
            item, attempt = slot[1], 0
            while item in broken:
                item = replacement(3, slot, attempt, 10)
                attempt += 1
            expected.append(f"point-{item}")
    assert [name for each in found for name in each.batch.names] == expected
    skipped = {name: reason for each in found for name, reason in each.skipped.items()}
    assert skipped == {f"point-{item}": f"point {item} is broken" for item in broken}


def test_a_replacement_makes_its_own_choices() -> None:
    """Its random numbers are those of the replacement item, not of the unreadable one."""
    source, order = Points(10, broken=frozenset({1, 4, 5})), Order(10, 10, 3)
    ((loaded,),) = steps(loader(source), order, 0, 1)
    for row, (epoch, _) in enumerate(order.batch(0)):
        item = int(loaded.batch.names[row].split("-")[1])
        assert torch.equal(loaded.batch["x"][row], source.load(item, ItemRNG(3, [epoch], [item]))["x"])
        assert torch.equal(loaded.batch.rng.uniform("m")[row], ItemRNG(3, [epoch], [item]).uniform("m")[0])


class Broken(Points):
    def load(self, item: int, rng: ItemRNG) -> dict[str, Any]:
        raise UnreadableItem("no such disk")


@pytest.mark.parametrize("num", [5, 100_000])
def test_a_data_set_that_becomes_unreadable_is_a_one_line_error(num: int) -> None:
    with pytest.raises(RunError, match=r"could not be read.*point-\d+ \(no such disk\).*quintet data check"):
        steps(loader(Broken(num)), Order(num, 2, 3), 0, 1)


def test_the_sentence_is_the_same_from_a_worker() -> None:
    with pytest.raises(RunError) as caught:
        steps(loader(Broken(5), workers=1), Order(5, 2, 3), 0, 1)
    assert "no such disk" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("num", [3, 1000])
def test_nothing_readable_is_an_error_before_training(num: int) -> None:
    with pytest.raises(UsageError, match=rf"none of the {num} items can be read \(point-0: no such disk\)"):
        loader(Broken(num)).check_readable()


def test_one_readable_item_is_enough_and_is_all_that_is_read() -> None:
    source = Points(1000, broken=frozenset(range(5)))
    loader(source).check_readable()
    assert source.loaded == [5]


# --- validation ---------------------------------------------------------------------------------------------------


def validated(num: int, batch_size: int, batches: int | None, world_size: int) -> list[list[tuple[LoadedBatch, bool]]]:
    return [
        list(loader(Points(num), rank=rank, world_size=world_size).validation(batch_size, batches))
        for rank in range(world_size)
    ]


def counted(parts: list[tuple[LoadedBatch, bool]]) -> Iterator[str]:
    return (name for loaded, counts in parts if counts for name in loaded.batch.names)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize(("num", "batch_size"), [(1, 1), (7, 3), (8, 4), (9, 4), (10, 100), (5, 1), (13, 6)])
def test_validation_counts_every_item_exactly_once(num: int, batch_size: int, world_size: int) -> None:
    ranks = validated(num, batch_size, None, world_size)
    assert len({len(parts) for parts in ranks}) == 1
    assert all(len(loaded.batch) > 0 for parts in ranks for loaded, _ in parts)
    seen = Counter(name for parts in ranks for name in counted(parts))
    assert seen == Counter(f"point-{item}" for item in range(num))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_validation_over_some_batches_takes_the_first_items(world_size: int) -> None:
    ranks = validated(20, 4, 2, world_size)
    assert {len(parts) for parts in ranks} == {2}
    assert sorted(name for parts in ranks for name in counted(parts)) == sorted(f"point-{item}" for item in range(8))


def test_validation_makes_the_same_choices_whenever_and_in_whatever_batches() -> None:
    one, other = (
        torch.cat([loaded.batch["x"] for loaded, _ in loader(Points(9)).validation(size, None)]) for size in (2, 5)
    )
    assert torch.equal(one, other)
    trained = steps(loader(Points(9)), Order(9, 9, 3), 0, 1)[0][0].batch
    first = trained.names.index("point-0")
    assert not torch.equal(trained["x"][first], one[0])


def test_first_and_single_show_the_validation_items() -> None:
    made = loader(Points(5))
    first = made.first(3).batch
    assert first.names == ("point-0", "point-1", "point-2")
    assert torch.equal(made.single(2)["x"][0], first["x"][2])
    assert first.rng.epochs == [VALIDATION_EPOCH] * 3
    assert len(made.first(100).batch) == 5
    with pytest.raises(UnreadableItem):
        loader(Points(5, broken=frozenset({2}))).single(2)


def test_the_opening_is_the_first_step_and_consumes_nothing() -> None:
    order = Order(10, 4, 3)
    made = loader(Points(10), rank=1, world_size=2)
    opening = [each.batch.names for each in made.init_batches(order, 2)]
    assert [opening] == names(steps(made, order, 0, 1, accumulate=2))


SOME_STEPS = """
import sys
from multiprocessing import active_children
from pathlib import Path
from toy import toy_trainer

trainer = toy_trainer(Path(sys.argv[1]), data__num_workers=2)
trainer.train_step()
print(*(child.pid for child in active_children()))
"""


def test_a_script_that_stops_between_two_steps_exits_and_leaves_no_workers(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SOME_STEPS, str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    workers = [int(word) for word in done.stdout.split()]
    assert len(workers) == 2
    assert not [worker for worker in workers if is_alive(worker)]
