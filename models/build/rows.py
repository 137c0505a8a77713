"""`metadata.jsonl` of a prepared folder: file name, captions, package, licence and split of every item."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ALLOWED = frozenset({"CC0-1.0", "CC-BY-2.0", "CC-BY-3.0", "CC-BY-4.0", "MIT", "BSD-3-Clause", "Apache-2.0", "OFL-1.1"})
"""SPDX names of licences that allow what a starter model is for, given that its card names them."""


@dataclass(frozen=True)
class Row:
    """One item; `source` is the package and its version."""

    file_name: str
    text: list[str]
    source: str
    license: str
    split: str = "train"


def checked_license(name: str, source: str) -> str:
    if name not in ALLOWED:
        raise SystemExit(f"{source} has the licence {name}, which no starter model is trained on")
    return name


def package_source(package: Path) -> str:
    """Name and version of a package of the npm registry."""
    about = json.loads((package / "package.json").read_text(encoding="utf-8"))
    return f"npm:{about['name']}@{about['version']}"


def read_rows(folder: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]


def begin(target: Path) -> Path:
    """An empty folder to prepare `target` in, so that nobody trains on half of it."""
    if target.exists():
        raise SystemExit(f"{target} exists; delete it first")
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def finish(target: Path, rows: Sequence[Row]) -> None:
    """Write the metadata, give the folder its name, and print what is in it."""
    partial = target.with_name(f"{target.name}.partial")
    lines = (json.dumps(asdict(row), ensure_ascii=False) for row in sorted(rows, key=lambda row: row.file_name))
    (partial / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.rename(target)
    splits = Counter(row.split for row in rows)
    print(f"{target}: " + ", ".join(f"{count} {split}" for split, count in sorted(splits.items())))
    for (source, licence), count in sorted(Counter((row.source, row.license) for row in rows).items()):
        print(f"  {count:5d} {source} ({licence})")
