"""Every recipe: `engine.compile` compiles blocks and losses once, whatever the lengths, and changes no result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.compile_budget import train_compiled


@pytest.mark.filterwarnings("ignore")  # torch hides its own warnings while it compiles, but not if they are errors
def test_a_compiled_training_has_no_break_and_hardly_recompiles(
    recipe: str, data: Path, finished: Path, tmp_path: Path
) -> None:
    found = train_compiled(recipe, data, tmp_path / "run")

    assert found.graphs > 1
    assert found.breaks == ()
    assert len(found.recompilations) <= 1, found.recompilations
    plain, compiled = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (finished, tmp_path / "run")
    )
    assert len(compiled) == len(plain)
    for ours, theirs in zip(compiled, plain, strict=True):
        for key, value in ours.items():
            if "time" not in key and "rate" not in key:
                assert value == pytest.approx(theirs[key], rel=1e-4, abs=1e-5), (ours["step"], key)
