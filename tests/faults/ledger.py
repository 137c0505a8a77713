"""The counts of passed trials: recorded by tests, kept in a ledger, and written as a table to docs/reliability.md.

A test counts its trials with the `ledger` fixture, after its last assertion, or with the mark `fault(row)`, which
counts one trial for each passed test. With `QUINTET_LEDGER=FILE` the counts are appended to that file. `make faults`
then runs `python -m faults.ledger FILE LEDGER PAGE`, which adds them to the ledger in the repository. Trials of a row
replace those of the same row, recipe and test file, so that the matrix can be run in parts.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from faults.rows import ROWS

WHOLE = os.environ.get("QUINTET_FAULTS") == "whole"
"""`make faults` runs every trial; `make test` runs a part of each kind."""

RECIPE = os.environ.get("QUINTET_FAULTS_RECIPE") or None
"""Run only the tests of this recipe; `any` runs the tests that are not repeated for each recipe."""

ANY = "any"
"""The recipe of tests that are not repeated for each recipe."""

TESTS = Path(__file__).parents[1]


class Entry(NamedTuple):
    """Passed trials of one row with one recipe in one test file, and the run of `make faults` that counted them."""

    row: str
    recipe: str
    file: str
    trials: int
    date: str
    commit: str
    machine: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.row, self.recipe, self.file


def record(row: str, recipe: str | None, file: Path, trials: int = 1) -> None:
    """Count trials that passed."""
    assert row in ROWS, row
    target = os.environ.get("QUINTET_LEDGER")
    if target:
        counted = {"row": row, "recipe": recipe or ANY, "file": file.relative_to(TESTS).as_posix(), "trials": trials}
        with Path(target).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(counted) + "\n")


def read(ledger: Path) -> list[Entry]:
    if not ledger.exists():
        return []
    return [Entry(**json.loads(line)) for line in ledger.read_text(encoding="utf-8").splitlines()]


def merged(entries: Iterable[Entry], counted: Path, date: str, commit: str, machine: str) -> list[Entry]:
    """The entries, with those of a run of `make faults` in place of older ones; without test files that are gone."""
    totals: Counter[tuple[str, str, str]] = Counter()
    for line in counted.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        totals[row["row"], row["recipe"], row["file"]] += row["trials"]
    new = [Entry(*key, trials, date, commit, machine) for key, trials in totals.items()]
    old = [
        entry for entry in entries if entry.key not in totals and entry.row in ROWS and (TESTS / entry.file).exists()
    ]
    order = {row: number for number, row in enumerate(ROWS)}
    return sorted(old + new, key=lambda entry: (order[entry.row], entry.key))


def write(ledger: Path, entries: Iterable[Entry]) -> None:
    ledger.write_text("".join(json.dumps(entry._asdict()) + "\n" for entry in entries), encoding="utf-8")


def tables(entries: Iterable[Entry], recipes: Iterable[str]) -> list[str]:
    """The lines of two tables: the trials of each row with the recipes that they cover, and when each was counted."""
    entries = [*entries]
    lines = ["| fault | expected | trials passed | recipes |", "|---|---|---|---|"]
    for row, (fault, expected) in ROWS.items():
        own = [entry for entry in entries if entry.row == row]
        trials = sum(entry.trials for entry in own)
        covered = _recipes({entry.recipe for entry in own}, {*recipes})
        lines.append(f"| {fault} | {expected} | {trials or 'not recorded yet'} | {covered} |")
    lines += ["", "| recipe | trials passed | counted | commit | machine |", "|---|---|---|---|---|"]
    for recipe in sorted({entry.recipe for entry in entries}):
        own = [entry for entry in entries if entry.recipe == recipe]
        named = "not repeated for each recipe" if recipe == ANY else f"`{recipe}`"
        columns = [", ".join(sorted({getattr(entry, name) for entry in own})) for name in ("date", "commit", "machine")]
        lines.append(f"| {named} | {sum(entry.trials for entry in own)} | {' | '.join(columns)} |")
    return lines


def _recipes(tried: set[str], known: set[str]) -> str:
    """The recipes that a row covers; tests that are not repeated for each recipe cover the code that all share."""
    names = tried - {ANY}
    if not names:
        return "shared code" if tried else ""
    return f"all {len(known)}" if names >= known else ", ".join(sorted(names))


def write_page(page: Path, lines: Iterable[str]) -> None:
    """Write the tables between their marks on the page."""
    begin, end = "<!-- table: begin -->\n", "<!-- table: end -->\n"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    page.write_text("".join([before, begin, *(f"{line}\n" for line in lines), end, after]), encoding="utf-8")


def main(counted: Path, ledger: Path, page: Path) -> None:
    from quintet.registry import RECIPES

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"],
        capture_output=True,
        text=True,
        check=True,
    )
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    entries = merged(read(ledger), counted, f"{datetime.now(UTC):%Y-%m-%d}", commit.stdout.strip(), machine)
    write(ledger, entries)
    write_page(page, tables(entries, RECIPES))
    if missing := ROWS.keys() - {entry.row for entry in entries}:
        sys.stderr.write(f"no trial is recorded yet for {', '.join(sorted(missing))}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
