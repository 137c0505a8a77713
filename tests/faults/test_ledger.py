"""The ledger of the fault matrix: parts replace what they repeat, and the page shows what the ledger holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from faults import ledger
from faults.ledger import Entry, merged, read, tables, write
from faults.rows import ROWS
from quintet.registry import RECIPES

REPOSITORY = Path(__file__).parents[2]
LEDGER = REPOSITORY / "benchmarks" / "results" / "faults.jsonl"
KILLS, CLOCK = "faults/test_kill.py", "faults/test_clock.py"


def counted(path: Path, *rows: tuple[str, str, str, int]) -> Path:
    lines = [dict(zip(("row", "recipe", "file", "trials"), row, strict=True)) for row in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def entry(row: str, recipe: str, file: str, trials: int, date: str = "old") -> Entry:
    return Entry(row, recipe, file, trials, date, "commit", "machine")


def test_a_part_replaces_only_what_it_repeats(tmp_path: Path) -> None:
    old = [
        entry("kill-save", "vqgan", KILLS, 10),
        entry("kill-save", "muse", KILLS, 20),
        entry("clock", "vqgan", "faults/test_gone.py", 5),
    ]
    part = counted(tmp_path / "part", ("kill-save", "muse", KILLS, 3), ("kill-save", "muse", KILLS, 4))
    found = merged(old, part, "new", "commit", "machine")
    assert found == [entry("kill-save", "muse", KILLS, 7, "new"), entry("kill-save", "vqgan", KILLS, 10)]
    write(tmp_path / "ledger", found)
    assert read(tmp_path / "ledger") == found


def test_a_row_says_the_recipes_that_it_covers() -> None:
    everyone = [entry("clock", recipe, CLOCK, 2) for recipe in RECIPES]
    rest = [entry("golden", "any", CLOCK, 8), entry("kill-save", "muse", KILLS, 1), entry("kill-save", "any", KILLS, 1)]
    lines = tables([*everyone, *rest], RECIPES)
    rows = dict(zip(ROWS, lines[2:], strict=False))
    assert rows["clock"].endswith(f"| {2 * len(RECIPES)} | all {len(RECIPES)} |")
    assert rows["golden"].endswith("| 8 | shared code |")
    assert rows["kill-save"].endswith("| 2 | muse |")
    assert rows["signal"].endswith("| not recorded yet |  |")
    assert "| `muse` | 3 | old | commit | machine |" in lines


def test_the_page_shows_the_ledger() -> None:
    page = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- table: begin -->\n")[2].partition("<!-- table: end -->")[0]
    assert shown.splitlines() == tables(read(LEDGER), RECIPES)


def test_a_marked_test_counts_one_trial_each_time_that_it_passes(tmp_path: Path) -> None:
    suite = tmp_path / "tests"
    suite.mkdir()
    (suite / "conftest.py").write_text(
        "from faults import ledger as ledgers\n"
        f"ledgers.TESTS = __import__('pathlib').Path({str(suite)!r})\n"
        "from faults.plugin import ledger, pytest_collection_modifyitems, pytest_runtest_makereport\n"
    )
    (suite / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.fault('moved-run')\n"
        "@pytest.mark.parametrize('recipe', ['muse', 'vqgan'])\n"
        "@pytest.mark.parametrize('number', [1, 2, 3])\n"
        "def test_marked(recipe, number):\n    assert number < 3\n"
        "@pytest.mark.fault\n"
        "def test_counted(ledger):\n    ledger('clock', 5)\n"
        "def test_other():\n    raise SystemExit('not selected')\n"
    )
    counts = tmp_path / "counts"
    for recipe in ("muse", "any"):
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "fault", "-c", "/dev/null", suite],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ledger.TESTS), str(REPOSITORY / "src")]),
                "QUINTET_LEDGER": str(counts),
                "QUINTET_FAULTS_RECIPE": recipe,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert ("2 passed" if recipe == "muse" else "1 passed") in ran.stdout, ran.stdout
    lines = [json.loads(line) for line in counts.read_text().splitlines()]
    assert [(line["row"], line["recipe"], line["trials"]) for line in lines] == [
        ("moved-run", "muse", 1),
        ("moved-run", "muse", 1),
        ("clock", "any", 5),
    ]
