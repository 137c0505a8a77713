"""Helpers of synthetic datasets: random choices, captions, splits, and writing a dataset folder."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from quintet.common import files
from quintet.data.index.folder import METADATA_NAMES
from quintet.data.index.marker import MARKER, write_marker
from quintet.errors import UsageError
from quintet.synthetic.workers import call_for_all

MINIMUM_SIZE = 32
"""Minimum side of images and video, in pixels."""
VALIDATION_FRACTION = 0.1

_WRITING = ".writing"
"""Temporary folder inside an existing folder. A process that was killed leaves it; it is hidden, and so never data."""

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
    if folder.is_dir() and any(path.name != _WRITING for path in folder.iterdir()):
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
    """Write the items of a dataset into a subfolder, `dataset.json` (its `metadata`) and `metadata.jsonl`.

    `write(index, path)` writes one item to a file and returns its row: `text`, `split`, and its attributes. All of it
    appears at once: items without their captions and splits would be the wrong data.
    """
    folder = Path(folder)
    refuse_bad_request(folder, metadata["num"], metadata["seed"], noun, metadata.get("size"))
    exists = folder.is_dir()
    # An existing folder may be the current one or a mount, which cannot be replaced.
    temporary = folder / _WRITING if exists else folder.with_name(f".{folder.name}.writing")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / file_name).parent.mkdir(parents=True)

        def write_row(index: int) -> dict[str, Any]:
            name = file_name.format(index)
            return {"file_name": name, **write(index, temporary / name)}

        rows = call_for_all(write_row, metadata["num"])
        write_marker(temporary, dict(metadata))
        files.replace_text(temporary / METADATA_NAMES[0], "".join(json.dumps(row) + "\n" for row in rows))
        if not exists:
            os.rename(temporary, folder)
            return
        # The media last: without them there is no data to train on.
        for name in (METADATA_NAMES[0], MARKER, posixpath.dirname(file_name)):
            os.rename(temporary / name, folder / name)
    except OSError as error:
        raise UsageError(f"cannot write the dataset to {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
