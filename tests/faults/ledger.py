"""The rows of the table in docs/reliability.md, and the file in which passed trials are counted.

A test that put a run through a fault says so with the `ledger` fixture, after its last assertion. With
`QUINTET_LEDGER=FILE` the counts are appended to that file, from which `python -m faults.ledger` makes the table.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

WHOLE = os.environ.get("QUINTET_FAULTS") == "whole"
"""`make faults` runs every trial; `make test` runs a part of each kind."""

ROWS: Mapping[str, tuple[str, str]] = {
    "kill-save": ("`kill -9` at each file operation of a save", "resumes automatically, ends in the same bytes"),
    "kill-random": ("`kill -9` at a random time during training", "the same; at most one checkpoint interval lost"),
    "kill-start": ("`kill -9` before the first checkpoint", "`resume` starts from step 0, ends in the same bytes"),
    "signal": (
        "SIGTERM, SIGINT, SIGUSR1 during a step, validation, a save, data loading",
        "saves, exits with 128 + signal, ends in the same bytes",
    ),
    "second-signal": ("a second signal", "exits at once, leaves no partial file"),
    "disk-full": (
        "full disk during saves, logs, samples",
        "last checkpoint intact; continues, or stops with a clear error",
    ),
    "read-only": ("folder becomes read-only during saves, logs, samples", "the same"),
    "bit-flip": ("a flipped bit in any file of a checkpoint", "detected, named; newest intact checkpoint used"),
    "truncation": ("a truncated, emptied, missing or added file of a checkpoint", "the same"),
    "non-finite-data": (
        "NaN or Inf in the data",
        "step skipped, items named and counted; stops at the limit with finite weights",
    ),
    "non-finite-loss": ("NaN or Inf in a loss", "the same"),
    "non-finite-gradient": ("NaN or Inf in a gradient", "the same"),
    "non-finite-optimizer": ("NaN or Inf in the optimizer state", "the same"),
    "non-finite-weights": ("NaN or Inf in the weights", "never saved; stops and names the last finite checkpoint"),
    "roll-back": (
        "the same, with `train.max_rollbacks`",
        "rolls back to the last good checkpoint, continues with other items",
    ),
    "worker-killed": ("a data worker killed", "workers restart, ends in the same bytes"),
    "file-deleted": ("a data file deleted during training", "replaced by another item, named"),
    "file-replaced": ("a data file replaced during training", "replaced by another item, named"),
    "clock": ("the clock moves backwards", "no difference"),
    "two-processes": ("several processes started on the same run", "one continues, the others are refused"),
    "changed-config": ("resume with changed keys", "refused with the difference; `--force` where possible"),
    "changed-data": ("resume with changed data", "refused with the difference; `--force`"),
    "changed-version": ("resume with another version", "refused with the difference; `--force`"),
    "golden": ("the golden run of each format", "loads, evaluates, resumes"),
    "hostile-weights": (
        "hostile weight files: pickles, false headers",
        "refused with a one-line error, nothing executed",
    ),
    "hostile-media": ("hostile media: decompression bombs, false headers", "skipped with the reason, bounded memory"),
    "hostile-text": (
        "hostile configs, metadata, JSON; paths outside the folder",
        "refused or skipped, nothing read outside",
    ),
    "fuzz": ("random bytes and mutations for each file reader", "a clear error or a correct result"),
    "verify": (
        "`quintet verify`: steps between two checkpoints replayed",
        "the same hashes; a forged checkpoint is detected",
    ),
}
"""Key to the fault and what must hold."""


def record(row: str, recipe: str | None, trials: int) -> None:
    """Count trials that passed."""
    assert row in ROWS, row
    target = os.environ.get("QUINTET_LEDGER")
    if target:
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"row": row, "recipe": recipe or "any", "trials": trials}) + "\n")


def table(ledger: Path) -> list[str]:
    """The lines of the table; a row without trials is an error, because a test was lost."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in ledger.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        counts[entry["row"]][entry["recipe"]] += entry["trials"]
    missing = ROWS.keys() - counts.keys()
    if missing:
        raise SystemExit(f"no trial was counted for {', '.join(sorted(missing))}")
    lines = ["| fault | expected | trials | failed |", "|---|---|---|---|"]
    for row, (fault, expected) in ROWS.items():
        by_recipe = ", ".join(
            f"{trials}" if recipe == "any" else f"{trials} ({recipe})" for recipe, trials in sorted(counts[row].items())
        )
        lines.append(f"| {fault} | {expected} | {by_recipe} | 0 |")
    return lines


def main(ledger: Path, page: Path) -> None:
    """Put the table between its marks on the page."""
    begin, end = "<!-- table: begin -->\n", "<!-- table: end -->\n"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    made = f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    text = "\n".join([f"`make faults`, {made}:", "", *table(ledger)])
    page.write_text(f"{before}{begin}{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
