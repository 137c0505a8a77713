"""Helpers of synthetic datasets: random choices, captions, splits, and writing a dataset folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from quintet.common import files
from quintet.data.index.marker import write_marker
from quintet.errors import UsageError

MINIMUM_SIZE = 32
"""Minimum side of images and video, in pixels."""
VALIDATION_FRACTION = 0.1

OptionT = TypeVar("OptionT")


def pick(rng: np.random.Generator, options: Sequence[OptionT]) -> OptionT:
    return options[int(rng.integers(len(options)))]


def with_article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


def refuse_bad_request(folder: Path, num: int, seed: int, item: str, size: int | None = None) -> None:
    """Raise `UsageError` for invalid options of a dataset; `item` is the noun for one item in messages."""
    if num <= 0:
        raise UsageError(f"--num is {num}; it must be at least 1 {item}.")
    if size is not None and size < MINIMUM_SIZE:
        raise UsageError(f"--size is {size}; it must be at least {MINIMUM_SIZE}, because smaller shapes look the same.")
    if seed < 0:
        raise UsageError(f"--seed is {seed}; it must be at least 0.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; choose a new folder for the dataset.")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; choose a new folder, or remove this one first.")


def split_by_words(caption: str, withheld: bool = False) -> str:
    """The split of a caption, `train`, `validation` or `withheld`: a function of its words, so that equal captions are
    in the same split.

    `withheld` is true for combinations that are never trained on, such as one colour of one shape.
    """
    if withheld:
        return "withheld"
    words = " ".join(re.findall(r"[a-z0-9]+", caption.lower()))
    fraction = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") / 2**64
    return "validation" if fraction < VALIDATION_FRACTION else "train"


def write_items(
    folder: Path,
    metadata: Mapping[str, Any],
    noun: str,
    file_name: str,
    write: Callable[[int, Path], Mapping[str, Any]],
) -> None:
    """Write the items of a dataset, `dataset.json` (its `metadata`) and, last, `metadata.jsonl`.

    `write(index, path)` writes one item to a file and returns its row: `text`, `split`, and its attributes.
    """
    folder = Path(folder)
    refuse_bad_request(folder, metadata["num"], metadata["seed"], noun, metadata.get("size"))
    (folder / file_name).parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for index in range(metadata["num"]):
        name = file_name.format(index)
        rows.append({"file_name": name, **write(index, folder / name)})
    write_marker(folder, dict(metadata))
    files.replace_text(folder / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
