"""Owns codes on disk: a folder with `codes.safetensors` (one tensor, items first) and `items.jsonl` in its order.

Items may differ in length, their first axis; the shorter ones end in -1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.core import checkpoint
from quintet.core.evaluate import looking
from quintet.errors import CheckpointError, UnreadableItem, UsageError
from quintet.runs import Looker, Trained

ITEMS = "items.jsonl"
CODES = "codes"


def encode_folder(trained: Trained, data: str, out: Path) -> int:
    """Codes of every readable file of a folder; returns how many."""
    _refuse_existing(out)
    looker = Looker.open(trained, data)
    source, recipe = looker.loader.source, trained.recipe
    rows: list[dict[str, Any]] = []
    codes: list[Tensor] = []
    with looking(trained.nets):
        for item in range(len(source)):
            try:
                batch = looker.loader.single(item).to(looker.engine.device, looker.engine.dtype)
            except UnreadableItem as problem:
                rows.append({"file": source.name(item), "skipped": str(problem)})
                continue
            with looker.engine.autocast():
                codes.append(recipe.encode(trained.nets, batch).cpu().to(torch.int32))
            rows.append({"file": source.name(item), "row": len(codes) - 1})
    if not codes:
        raise UsageError(f"no file of {data} can be read; `quintet data check {data}` says why")
    contents = checkpoint.Contents(
        tensors={CODES: {CODES: _joined(codes)}},
        text={ITEMS: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)},
    )
    checkpoint.write_folder(out, contents)
    return len(codes)


def _joined(codes: Sequence[Tensor]) -> Tensor:
    """One tensor of all items; of different lengths the shorter ones end in -1, which is no code."""
    longest = max(each.shape[1] for each in codes)
    joined = codes[0].new_full((sum(map(len, codes)), longest, *codes[0].shape[2:]), -1)
    for row, each in enumerate(codes):
        joined[row, : each.shape[1]] = each
    return joined


def decode_folder(trained: Trained, folder: Path, out: Path) -> int:
    """Files from the codes of a folder; returns how many."""
    _refuse_existing(out)
    codes, items = read_codes(folder)
    known = getattr(trained.model, "num_codes", None)
    if known is not None and codes.numel() and not -1 <= codes.min() <= codes.max() < known:
        raise UsageError(f"the codes in {folder} are not of the model {trained.folder}, which knows 0 to {known - 1}")
    with looking(trained.nets):
        for number, (file, row) in enumerate(items):
            try:
                artifacts = trained.recipe.decode(
                    trained.nets, codes[row : row + 1].long(), f"{number:05d}-{_stem(file)}"
                )
            except (RuntimeError, LookupError, ValueError) as error:
                reason = checkpoint.one_line(error)
                raise UsageError(f"the codes in {folder} are not of the model {trained.folder} ({reason})") from None
            out.mkdir(parents=True, exist_ok=True)
            for artifact in artifacts:
                artifact.write(out / artifact.file)
    return len(items)


def read_codes(folder: Path) -> tuple[Tensor, list[tuple[str, int]]]:
    """The codes of a folder, and of each item its file, as written, and its row."""
    try:
        for name in (ITEMS, f"{CODES}.safetensors"):
            if (folder / name).is_symlink():
                raise ValueError(f"{name} is a link")
        lines = checkpoint.read_regular(folder / ITEMS).decode("utf-8").splitlines()
        codes = checkpoint.read_tensors(folder, CODES)[CODES]
        if codes.ndim < 2 or codes.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"codes of type {codes.dtype} and shape {tuple(codes.shape)}")
        return codes, _items([json.loads(line) for line in lines if line.strip()], len(codes))
    except (OSError, ValueError, KeyError, RecursionError, CheckpointError) as error:
        reason = checkpoint.one_line(error)
        raise UsageError(f"{folder} does not hold codes written by `quintet encode` ({reason})") from None


def _items(lines: Sequence[Any], rows: int) -> list[tuple[str, int]]:
    items = []
    for number, line in enumerate(lines, start=1):
        file, row = (line.get("file"), line.get("row", 0)) if isinstance(line, dict) else (None, None)
        if not isinstance(file, str) or type(row) is not int or not 0 <= row < rows:
            raise ValueError(f"line {number} of {ITEMS} does not name a file and one of the {rows} rows")
        if "row" in line:
            items.append((file, row))
    return items


def _stem(file: str) -> str:
    """What to call the result: the file's own name, without what no file name can hold."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "_", Path(file.replace("\\", "/")).stem)[:50]


def _refuse_existing(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists already and is not empty; choose another folder with --out")
