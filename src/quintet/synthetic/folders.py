"""Folders of synthetic data sets: refused requests, the split that a caption belongs to, the files about all items."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintet.common import files
from quintet.data.index.marker import write_marker
from quintet.errors import UsageError

MINIMUM_SIZE = 32
"""Pixels of a side, of images and video."""


def refuse_bad_request(folder: Path, num: int, seed: int, item: str, size: int | None = None) -> None:
    """`item` is what one of them is called."""
    if num <= 0:
        raise UsageError(f"--num is {num}; ask for at least one {item}.")
    if size is not None and size < MINIMUM_SIZE:
        raise UsageError(f"--size is {size}; choose {MINIMUM_SIZE} or more, smaller shapes cannot be told apart.")
    if seed < 0:
        raise UsageError(f"--seed is {seed}; choose 0 or more.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a new folder for the data set.")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; name a new folder, or remove this one first.")


def split_by_words(caption: str, validation_share: float) -> str:
    """`train` or `validation`, from the words alone: a validation caption is never trained on, word for word."""
    words = " ".join(re.findall(r"[a-z0-9]+", caption.lower()))
    share = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") / 2**64
    return "validation" if share < validation_share else "train"


def write_records(folder: Path, about: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """The marker, `dataset.json` (what it is), and, because all is there, `metadata.jsonl`."""
    write_marker(folder, about)
    files.replace_text(folder / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
