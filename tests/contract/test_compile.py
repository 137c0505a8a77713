"""Every recipe: `engine.compile` compiles blocks and losses once, whatever the lengths, and changes no result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract import worlds
from contract.cases import CASES
from contract.compile_budget import train_compiled
from helpers import executed, metrics, torchrun


@pytest.mark.filterwarnings("ignore")  # torch hides its own warnings while it compiles, but not if they are errors
def test_a_compiled_training_has_no_break_and_hardly_recompiles(
    recipe: str, data: Path, finished: Path, tmp_path: Path
) -> None:
    found = train_compiled(recipe, data, tmp_path / "run")

    assert found.graphs > 1
    assert found.breaks == ()
    assert len(found.recompilations) <= 1, found.recompilations
    assert_equal_metrics(tmp_path / "run", finished, 1e-4)


def assert_equal_metrics(compiled: Path, plain: Path, tolerance: float) -> None:
    for ours, theirs in zip(metrics(compiled), metrics(plain), strict=True):
        for key, value in ours.items():
            if "time" not in key and "rate" not in key:
                assert value == pytest.approx(theirs[key], rel=tolerance, abs=tolerance / 10), (ours["step"], key)


def test_two_processes_with_compiled_shards_have_the_metrics_of_plain_shards(
    pictures: Path, meshes: Path, tmp_path: Path
) -> None:
    """The blocks of the text encoder and of the generator differ; those of the mesh transformer are checkpointed."""
    plan = [
        {
            "recipe": recipe,
            "data": str(data),
            "words": (*CASES[recipe].tiny, *CASES[recipe].worlds["sharded"], *EXACT, f"engine.compile={compiled}"),
            "out": str(tmp_path / f"{recipe}-{compiled}"),
        }
        for recipe, data in (("muse", pictures), ("mesh-transformer", meshes))
        for compiled in ("true", "false")
    ]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = torchrun(2, "-m", worlds.__name__, tmp_path / "plan.json")
    with executed(command, tmp_path / "said", cwd=Path(__file__).parents[1]) as process:
        assert process.end() == 0, process.seen
    for recipe in ("muse", "mesh-transformer"):
        assert json.loads((tmp_path / f"{recipe}-true" / "graphs-1.json").read_text()) > 2
        assert_equal_metrics(tmp_path / f"{recipe}-true", tmp_path / f"{recipe}-false", 1e-10)


EXACT = ("engine.precision=fp64", "train.steps=4", "eval.every=2", "checkpoint.every=4", "sample.every=4")
