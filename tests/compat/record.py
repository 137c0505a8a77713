"""Executes usages and records their outcomes: `python -m compat.record [MODULE …]`, or `make migration`.

The records are `src/quintet/compat/tables/usages/<module>.json`, from which docs/migration.md and
docs/migration-tables.md are generated.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from compat.usage import modules, usages_of
from quintet.compat.usages import RECORDS, modules_in


def record(module: str) -> None:
    """Execute the usages of a module and write their outcomes."""
    rows = []
    for usage in usages_of(module):
        with tempfile.TemporaryDirectory() as folder:
            refusal = usage.execute(Path(folder))
        rows.append([usage.name, usage.title, refusal])
        sys.stdout.write(f"{usage.id}: {refusal or 'works'}\n")
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    (RECORDS / f"{module}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or modules():
        record(chosen)
    for stale in set(modules_in()) - set(modules()):
        (RECORDS / f"{stale}.json").unlink()
