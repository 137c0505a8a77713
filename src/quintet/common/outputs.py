"""Folders that quintet wrote, recognised by a file that it wrote into them, so that they are never read as data.

A run has its `config.yaml`. A folder of `quintet sample` has its `samples.jsonl`. Other folders of media or shards that
quintet writes get the empty file `.quintet-output`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

OUTPUT_MARKER = ".quintet-output"
RUN_CONFIG = "config.yaml"
SAMPLES = "samples.jsonl"
OUTPUT_FILES = frozenset({OUTPUT_MARKER, RUN_CONFIG, SAMPLES})
_CONFIG_SECTIONS = (rb"recipe", rb"data", rb"train", rb"optim", rb"checkpoint")
_READ = 2**16


def mark_output(folder: Path) -> None:
    """Mark a folder that quintet created, so that it is not data of a folder above it."""
    with suppress(OSError):  # a folder that cannot be marked is still a good output
        (folder / OUTPUT_MARKER).touch()


def is_run(folder: Path) -> bool:
    return _is_run_config(_start_of(str(folder / RUN_CONFIG)))


def output_kind(folder: str | os.PathLike[str], names: Collection[str]) -> str | None:
    """What quintet wrote into a folder that contains these names ("a run"); None for a folder of somebody else.

    A user's own `config.yaml` or `samples.jsonl` marks nothing: the content counts.
    """
    if RUN_CONFIG in names and is_run(Path(folder)):
        return "a run"
    if SAMPLES in names and _is_sample_row(_start_of(os.path.join(folder, SAMPLES))):
        return "samples of a model"
    return "an output of quintet" if OUTPUT_MARKER in names else None


def _start_of(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            return file.read(_READ) or b""
    except OSError:
        return b""


def _is_run_config(content: bytes) -> bool:
    return all(re.search(rb"^" + section + rb":", content, re.MULTILINE) for section in _CONFIG_SECTIONS)


def _is_sample_row(content: bytes) -> bool:
    try:
        row = json.loads(content.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and isinstance(row.get("file"), str) and isinstance(row.get("model"), str)
