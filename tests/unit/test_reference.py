"""The committed pages of `docs/reference` are those that the generator writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintet import config as configs
from quintet.cli import reference
from quintet.registry import RECIPES

FOLDER = Path(__file__).parents[2] / reference.FOLDER


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_the_committed_page_equals_the_generated_one(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == reference.pages()[name], "run `make reference`"


def test_no_other_page_is_committed() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(reference.pages())


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_page_lists_every_key_once_with_a_description(recipe: str) -> None:
    schema = RECIPES[recipe].config_class()
    rows = reference.page(recipe, RECIPES[recipe]).split("## Presets")[0].splitlines()
    for key in configs.keys(schema):
        (row,) = (row for row in rows if row.startswith(f"| `{key}` |"))
        assert row.removesuffix("|").rsplit("|", 1)[-1].strip(), key


def test_lines_outside_of_tables_are_short() -> None:
    for text in reference.pages().values():
        assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("|"))


def test_pages_are_written_to_a_folder(tmp_path: Path) -> None:
    assert sorted(path.name for path in reference.write(tmp_path / "new")) == sorted(reference.pages())
    assert (tmp_path / "new" / "muse.md").read_text(encoding="utf-8") == reference.pages()["muse.md"]
