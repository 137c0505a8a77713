"""The marker of a synthetic data set: `dataset.json`, in its folder or beside its shards, with its name.

Data without a marker is the user's own, whatever its files and columns are called.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quintet.common import files
from quintet.registry import JUDGES

MARKER = "dataset.json"
LARGEST_MARKER = 2**16


def read_marker(path: Path | None) -> dict[str, Any] | None:
    """The content of a marker: `name`, `version` and settings; None if it is damaged or from another program."""
    try:
        if path is None or not path.is_file() or path.stat().st_size > LARGEST_MARKER:
            return None
        marker = json.loads(files.read_regular(path))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(marker, dict) or not isinstance(marker.get("version"), int):
        return None
    name = marker.get("name")
    return marker if isinstance(name, str) and name in JUDGES else None


def write_marker(folder: Path, marker: dict[str, Any]) -> None:
    files.replace_text(folder / MARKER, json.dumps(marker) + "\n")
