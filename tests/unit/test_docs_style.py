"""Form of the pages: their width, the length of the README, and the list of layers in CONTRIBUTING.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.test_layers import LAYERS

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "src", "benchmarks")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
WIDEST = 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_line_of_a_page_is_too_long(page: Path) -> None:
    """Tables and code blocks may be wider."""
    assert [number for number, line in _prose(page) if len(line) > WIDEST] == []


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    in_code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith("|"):
            yield number, line


@pytest.mark.parametrize(("page", "longest"), [("README.md", 160), ("docs/concepts.md", 75)])
def test_the_first_pages_are_short(page: str, longest: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= longest


def test_contributing_lists_the_layers_that_are_enforced() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\d+\. (.*)$", page, re.MULTILINE)
    assert len(listed) == len(LAYERS)
    for row, layer in zip(listed, LAYERS, strict=True):
        names = {f"{part.split()[1]}.py" if part.startswith("families") else part for part in layer}
        assert all(f"`{name}`" in row for name in names), row
