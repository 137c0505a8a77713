"""What synthetic data sets share: words drawn at random, the split of a caption, and how a folder is written."""

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
"""Pixels of a side, of images and video."""
VALIDATION_SHARE = 0.1

OptionT = TypeVar("OptionT")


def pick(rng: np.random.Generator, options: Sequence[OptionT]) -> OptionT:
    return options[int(rng.integers(len(options)))]


def with_article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


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


def split_by_words(caption: str, withheld: bool = False) -> str:
    """`train`, `validation` or `withheld`, from the words alone: equal captions are never in two splits.

    `withheld` is whether the words say what is never trained on, such as one colour of one shape.
    """
    if withheld:
        return "withheld"
    words = " ".join(re.findall(r"[a-z0-9]+", caption.lower()))
    share = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") / 2**64
    return "validation" if share < VALIDATION_SHARE else "train"


def write_items(
    folder: Path, about: Mapping[str, Any], noun: str, file_name: str, write: Callable[[int, Path], Mapping[str, Any]]
) -> None:
    """The items of a set, `dataset.json` (what it is) and, when all is there, `metadata.jsonl`.

    `write` writes the item of a number as a file and returns its row: `text`, `split`, and what is true of it.
    """
    folder = Path(folder)
    refuse_bad_request(folder, about["num"], about["seed"], noun, about.get("size"))
    (folder / file_name).parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for index in range(about["num"]):
        name = file_name.format(index)
        rows.append({"file_name": name, **write(index, folder / name)})
    write_marker(folder, dict(about))
    files.replace_text(folder / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
