"""The recorded outcomes of the usages of the original packages, for the migration page.

`make migration` writes them by executing `tests/compat/usages`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

RECORDS = Path(__file__).parent / "tables" / "usages"


@dataclass(frozen=True)
class Record:
    """The outcome of one usage."""

    name: str
    """The public name of the package that it shows."""
    title: str
    refusal: str
    """The message with which it is refused; empty if it works."""


def modules_in() -> list[str]:
    """The modules with recorded usages."""
    return sorted(file.stem for file in RECORDS.glob("*.json"))


def records_of(module: str) -> list[Record]:
    return [Record(*row) for row in json.loads((RECORDS / f"{module}.json").read_text(encoding="utf-8"))]


def records_of_package(package: str) -> list[Record]:
    """The usages of a package, such as `musiclm_pytorch`: of its models, then of its trainers."""
    return [row for module in modules_in() if module.startswith(package) for row in records_of(module)]
