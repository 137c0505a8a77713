"""Every recipe: what a data worker receives does not contain the model, however the worker is started.

With `spawn` and `forkserver`, which are the default on macOS and of new versions of Python, dataset and functions of
the task (`collate`, `prepare`) are sent to each worker. A module there would be copied, on a GPU with its memory, or
could not be sent at all.
"""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from contract.cases import Case
from contract.worlds import make_task
from quintet.common.batch import Batch, Prepare
from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.training.prepare import open_splits

GENERATORS = ("muse", "phenaki", "soundstorm", "mesh-transformer")


class WithoutModules(ForkingPickler):
    """What `multiprocessing` sends, as long as it is no module."""

    def reducer_override(self, value: object) -> Any:
        assert not isinstance(value, nn.Module), f"{type(value).__name__} would be sent to the worker"
        return NotImplemented


def sent(value: Any) -> Any:
    """A copy as another process receives it."""
    stream = io.BytesIO()
    WithoutModules(stream).dump(value)
    return ForkingPickler.loads(stream.getvalue())


def prepared(fields: dict[str, Any], prepare: Prepare) -> dict[str, Any]:
    return Batch(fields, ("one", "two"), ItemRNG(0, [0, 0], [0, 1])).prepared(prepare).fields


def test_workers_receive_dataset_and_functions_without_the_model(recipe: str, case: Case, data: Path) -> None:
    task = make_task(recipe, data, case.tiny)
    dataset = open_splits(task).train
    rows = [dataset.load(item, ItemRNG(0, [0], [item])) for item in range(2)]
    expected = prepared(task.collate(rows), task.prepare)

    theirs, collate, prepare = sent((dataset, task.collate, task.prepare))
    there = prepared(collate([theirs.load(item, ItemRNG(0, [0], [item])) for item in range(2)]), prepare)
    assert there.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(there[name], value) if isinstance(value, torch.Tensor) else there[name] == value


@pytest.mark.parametrize("recipe", GENERATORS)
def test_a_worker_refuses_codes_outside_the_vocabulary(recipe: str, case: Case, data: Path) -> None:
    """In one sentence; on a GPU, the embedding of such a code fails in a kernel that names neither item nor code."""
    task = make_task(recipe, data, case.tiny)
    dataset = open_splits(task).train
    rows = [dataset.load(item, ItemRNG(0, [0], [item])) for item in range(2)]
    rows[1]["codes"] = rows[1]["codes"].clone()
    rows[1]["codes"].flatten()[0] = 10**6
    with pytest.raises(UsageError, match=r"^two has codes from \d+ to 1000000, which are outside the vocabulary of"):
        prepared(task.collate(rows), task.prepare)
