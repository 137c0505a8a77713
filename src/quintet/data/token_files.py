"""Files of `quintet encode`: `codes.safetensors` (one tensor, items first) and `items.jsonl` in the same order.

Items may differ in length, their first axis; shorter ones are padded with -1. Semantic tokens (items, tokens) are codes
too, one per time step; `codes.json` beside them has the size of their vocabulary and their rate in tokens per second.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common import files
from quintet.common.weights import checkpoint, tensor_groups
from quintet.errors import CheckpointError, UsageError

ITEMS = "items.jsonl"
CODES = "codes"


@dataclass(frozen=True)
class SemanticTokens:
    """The tokens (n,) of each file, by its name in the folder."""

    of_file: Mapping[str, Tensor]
    num_codes: int
    rate: float
    """Tokens per second."""


def code_contents(codes: Sequence[Tensor], rows: Sequence[Mapping[str, Any]]) -> checkpoint.Contents:
    """The files of a folder: `codes` of one item each (1, length, ...), and one line per file."""
    return checkpoint.Contents(
        tensors={CODES: {CODES: _joined(codes)}},
        text={ITEMS: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)},
    )


def _joined(codes: Sequence[Tensor]) -> Tensor:
    """One tensor of all items (items, longest, ...), padded with -1, which is not a code."""
    longest = max(each.shape[1] for each in codes)
    joined = codes[0].new_full((sum(map(len, codes)), longest, *codes[0].shape[2:]), -1)
    for row, each in enumerate(codes):
        joined[row, : each.shape[1]] = each
    return joined


def read_codes(folder: Path) -> tuple[Tensor, list[tuple[str, int]]]:
    """The codes of a folder (items, length, ...), and the file name and row of each item."""
    try:
        for name in (ITEMS, f"{CODES}.safetensors"):
            if (folder / name).is_symlink():
                raise ValueError(f"{name} is a link")
        checkpoint.verify_used(folder)
        lines = checkpoint.read_regular(folder / ITEMS).decode("utf-8").splitlines()
        codes = tensor_groups.read_tensors(folder, CODES)[CODES]
        if codes.ndim < 2 or codes.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"codes of type {codes.dtype} and shape {tuple(codes.shape)}")
        return codes, _items([json.loads(line) for line in lines if line.strip()], len(codes))
    except (OSError, ValueError, KeyError, RecursionError, CheckpointError) as error:
        reason = files.one_line(error)
        raise UsageError(f"{folder} does not hold codes written by `quintet encode` ({reason})") from None


def read_semantic(folder: Path) -> SemanticTokens:
    """The semantic tokens of a folder, checked against its `codes.json`."""
    codes, items = read_codes(folder)
    try:
        about = checkpoint.read_json(folder, CODES)
        num_codes, rate = about["num_codes"], about["rate"]
        if type(num_codes) is not int or type(rate) not in (int, float) or not (math.isfinite(rate) and rate > 0):
            raise ValueError("'num_codes' or 'rate' is not a valid number")
        if codes.ndim != 2:
            raise ValueError(f"codes of shape {tuple(codes.shape)}, not (items, tokens)")
        rows = {file: codes[row][codes[row] >= 0].long() for file, row in items}
        for file, row in items:
            if not len(rows[file]) or codes[row].min() < -1 or codes[row].max() >= num_codes:
                raise ValueError(f"the tokens of {file[:80]} are not in the range 0 to {num_codes - 1}")
            if not torch.equal(codes[row, : len(rows[file])].long(), rows[file]):
                raise ValueError(f"there are gaps in the tokens of {file[:80]}")
        return SemanticTokens(rows, num_codes, float(rate))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CheckpointError) as error:
        reason = files.one_line(error)
        raise UsageError(
            f"{folder} does not hold semantic tokens written by `quintet encode … --layer N` ({reason})"
        ) from None


def _items(lines: Sequence[Any], rows: int) -> list[tuple[str, int]]:
    items = []
    for number, line in enumerate(lines, start=1):
        file, row = (line.get("file"), line.get("row", 0)) if isinstance(line, dict) else (None, None)
        if not isinstance(file, str) or type(row) is not int or not 0 <= row < rows:
            raise ValueError(f"line {number} of {ITEMS} does not name a file and one of the {rows} rows")
        if "row" in line:
            items.append((file, row))
    return items
