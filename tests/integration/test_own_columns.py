"""A person's own columns in the metadata decide nothing, whatever they are called and whatever they contain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.cases import GOLDEN, case_of
from helpers import copied, succeed

RECIPES = {"muse": "objects", "phenaki": "motion", "soundstorm": "sound", "mesh-transformer": "class"}
"""A generator of each medium, and the column that the judge of its synthetic data reads."""
NAMES = ("class", "objects", "motion", "sound", "proportions", "dataset", "metadata", "texts", "images", "codes")
ODD: dict[str, list[Any]] = {
    "objects": [
        [{"shape": "dog", "colour": 3, "position": None, "size": []}],
        [{"shape": "star"}],
        [[]],
        {"a": 1},
        "a",
    ],
    "motion": [
        {"shape": "dog", "colour": "plaid", "motion": "sideways"},
        {"shape": [], "colour": {}, "motion": 1},
        "a",
    ],
    "sound": [dict.fromkeys(("kind", "timbre", "register", "tempo", "direction", "loudness"), "odd"), [], "a"],
    "class": ["bench", "stairs", "dog", ["bench"], {"a": 1}, None, 3],
}


def with_columns(folder: Path, change: Any) -> Path:
    """Change the metadata of a copy of a data set: `change` gets the number of a row and the row."""
    path = folder / "metadata.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({**row, **change(number, row)}) + "\n" for number, row in enumerate(rows)]
    path.write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize("recipe", RECIPES)
def test_own_data_with_the_columns_of_a_synthetic_set(recipe: str, tmp_path: Path) -> None:
    golden = GOLDEN / f"{recipe}-format-1"
    folder = with_columns(copied(golden / "data", tmp_path / "data"), lambda *_: dict.fromkeys(NAMES, "mine"))
    (folder / "dataset.json").unlink()
    outcome = succeed("eval", golden / "hub", "--data", folder, "--out", tmp_path / "eval.json", "eval.num_generated=4")
    assert "match_" not in outcome.output


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_synthetic_set_with_changed_columns(recipe: str, tmp_path: Path) -> None:
    """Items that the judge does not know are not judged."""
    golden, column = GOLDEN / f"{recipe}-format-1", RECIPES[recipe]
    for value in ODD[column]:
        folder = copied(golden / "data", tmp_path / f"data-{ODD[column].index(value)}")

        def change(number: int, row: dict[str, Any], value: Any = value) -> dict[str, Any]:
            own = {} if column != "class" else {"proportions": {"height": "odd", "depth": []}}
            return {column: value, **own, "split": ("train", "validation", "withheld")[number % 3]}

        words = ("--data", with_columns(folder, change), "--out", tmp_path / "eval.json")
        succeed("eval", golden / "hub", *words, "eval.num_generated=4")


@pytest.mark.parametrize("recipe", [*RECIPES, "mulan"])
def test_training_on_a_synthetic_set_with_own_items(recipe: str, tmp_path: Path) -> None:
    def change(number: int, row: dict[str, Any]) -> dict[str, Any]:
        return {name: ["mine"] for name in NAMES} if number % 2 else {}

    data = with_columns(copied(GOLDEN / f"{recipe}-format-1" / "data", tmp_path / "data"), change)
    words = ("train.steps=1", "eval.every=1", "sample.every=1")
    succeed("train", recipe, data, "--out", tmp_path / "run", *case_of(recipe).tiny, *words)
