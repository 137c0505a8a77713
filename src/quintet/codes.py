"""Owns codes on disk: a folder with `codes.safetensors` (one tensor, items first) and `items.jsonl` in its order."""

from __future__ import annotations

import json
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
    with looking(trained.nets), looker.engine.autocast():
        for item in range(len(source)):
            try:
                batch = looker.loader.single(item).to(looker.engine.device, looker.engine.dtype)
            except UnreadableItem as problem:
                rows.append({"file": source.name(item), "skipped": str(problem)})
                continue
            codes.append(recipe.encode(trained.nets, batch).cpu().to(torch.int32))
            rows.append({"file": source.name(item), "row": len(codes) - 1})
    if not codes:
        raise UsageError(f"no file of {data} can be read; `quintet data check {data}` says why")
    contents = checkpoint.Contents(
        tensors={CODES: {CODES: torch.cat(codes)}},
        text={ITEMS: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)},
    )
    checkpoint.write_folder(out, contents)
    return len(codes)


def decode_folder(trained: Trained, folder: Path, out: Path) -> int:
    """Files from the codes of a folder; returns how many."""
    _refuse_existing(out)
    try:
        lines = (folder / ITEMS).read_text(encoding="utf-8").splitlines()
        codes = checkpoint.read_tensors(folder, CODES)[CODES]
        rows = [row for row in map(json.loads, lines) if "row" in row]
    except (OSError, ValueError, KeyError, CheckpointError) as error:
        raise UsageError(f"{folder} does not hold codes written by `quintet encode` ({error})") from None
    out.mkdir(parents=True, exist_ok=True)
    with looking(trained.nets):
        for number, row in enumerate(rows):
            one = codes[row["row"] : row["row"] + 1].long()
            name = f"{number:05d}-{Path(row['file']).stem}"
            for artifact in trained.recipe.decode(trained.nets, one, name):
                artifact.write(out / artifact.file)
    return len(rows)


def _refuse_existing(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists already and is not empty; choose another folder with --out")
