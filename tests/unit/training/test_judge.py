"""Which batches are judged, and the mean of the scores."""

from __future__ import annotations

import sys
from subprocess import run
from typing import Any

import pytest
import torch

from quintet import registry
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.synthetic.judges import Judge
from quintet.training.judge import judge_of, judged_rows, mean_scores

SCENE = {"objects": [{"colour": "red", "shape": "star", "position": "top"}]}


def batch(**fields: Any) -> Batch:
    return Batch(fields, ("a", "b"), ItemRNG(0, [0, 0], [0, 1]))


def test_a_batch_of_a_synthetic_set_has_its_judge() -> None:
    found = judge_of(batch(dataset=["shapes"] * 2, metadata=[SCENE] * 2), "validation")
    assert type(found).__name__ == "ShapesJudge"
    assert judge_of(batch(dataset=["shapes"] * 2, metadata=[SCENE] * 2), "withheld") is not None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"metadata": [SCENE] * 2},
        {"objects": [SCENE["objects"]] * 2},
        {"dataset": ["shapes", "motions"], "metadata": [SCENE] * 2},
        {"dataset": ["my photos"] * 2, "metadata": [SCENE] * 2},
        {"dataset": ["shapes"] * 2, "metadata": [SCENE, {}]},
        {"dataset": ["shapes"] * 2, "metadata": [SCENE, {"objects": []}]},
        {"dataset": ["shapes"] * 2, "metadata": [SCENE, {"objects": [{"bbox": [0, 0, 1, 1]}]}]},
        {"dataset": ["shapes"] * 2, "metadata": [SCENE, {"objects": SCENE["objects"] * 9}]},
    ],
)
def test_other_batches_have_none(fields: dict[str, Any]) -> None:
    assert judge_of(batch(**fields), "validation") is None


def test_a_split_that_cannot_be_judged_is_not() -> None:
    assert judge_of(batch(dataset=["shapes"] * 2, metadata=[SCENE] * 2), "test") is None
    solids = batch(dataset=["solids"] * 2, metadata=[{"class": "box", "proportions": {}}] * 2)
    assert judge_of(solids, "validation") is not None
    assert judge_of(solids, "withheld") is None


@pytest.mark.parametrize("dataset", registry.JUDGES)
def test_every_judge_of_the_registry_exists(dataset: str) -> None:
    assert isinstance(registry.find_judge(dataset), Judge)


def test_a_judge_is_imported_on_first_use() -> None:
    code = "import sys; import quintet.registry; sys.exit('quintet.synthetic' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
    assert registry.find_judge(None) is None


class Halves(Judge[float]):
    def knows(self, row: Any) -> bool:
        return True

    def score(self, media: float, row: Any) -> dict[str, float | list[float]]:
        nothing = float("nan")
        return {"match_one": media, "match_two": [media, nothing], "match_none": nothing}


def test_the_mean_ignores_nan() -> None:
    rows = judged_rows(Halves(), batch(metadata=[{}, {}]), "validation", [1.0, 0.0], [1.0, 1.0])
    assert {name: tuple(values.shape) for name, values in rows.items() if "two" in name} == {
        "match_two": (2, 2),
        "match_two_reconstruction": (2, 2),
    }
    assert all(values.dtype == torch.float64 for values in rows.values())
    assert mean_scores(rows) == {
        "match_one": 0.5,
        "match_two": 0.5,
        "match_one_reconstruction": 1.0,
        "match_two_reconstruction": 1.0,
    }
