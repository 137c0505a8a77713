"""Owns turning the files of a folder into codes by a trained tokenizer, and codes back into files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common import files
from quintet.common.inference import inference_mode
from quintet.common.weights import checkpoint
from quintet.data.token_files import ITEMS, code_contents, read_codes
from quintet.errors import UnreadableItem, UsageError
from quintet.runs import EvalSession, Trained
from quintet.training.task import Task

__all__ = ["ITEMS", "decode_folder", "encode_folder", "read_codes"]


def encode_folder(trained: Trained, data: str, out: Path) -> int:
    """Codes of every readable file of a folder; returns how many."""
    files.refuse_existing(out)
    _refuse_without_codes(trained.recipe)
    looker = EvalSession.open(trained, data)
    source, recipe = looker.loader.source, trained.recipe
    rows: list[dict[str, Any]] = []
    codes: list[Tensor] = []
    with inference_mode(trained.modules):
        for item in range(len(source)):
            try:
                batch = looker.loader.single(item).to(looker.engine.device, looker.engine.dtype)
            except UnreadableItem as problem:
                rows.append({"file": source.name(item), "skipped": str(problem)})
                continue
            with looker.engine.autocast():
                codes.append(recipe.encode(trained.modules, batch).cpu().to(torch.int32))
            rows.append({"file": source.name(item), "row": len(codes) - 1})
    if not codes:
        raise UsageError(f"no file of {data} can be read; `quintet data check {data}` says why")
    checkpoint.write_folder(out, code_contents(codes, rows))
    return len(codes)


def _refuse_without_codes(recipe: Task[Any]) -> None:
    """Before anything is read."""
    if type(recipe).encode is Task.encode:
        hears = type(recipe).hearing is not Task.hearing
        hint = "; its layers make semantic tokens (--layer N)" if hears else ""
        raise UsageError(f"recipe {recipe.name} is not a tokenizer: it has no codes to encode to{hint}")


def decode_folder(trained: Trained, folder: Path, out: Path) -> int:
    """Files from the codes of a folder; returns how many."""
    files.refuse_existing(out)
    codes, items = read_codes(folder)
    known = getattr(trained.model, "num_codes", None)
    if known is not None and codes.numel() and not -1 <= codes.min() <= codes.max() < known:
        raise UsageError(f"the codes in {folder} are not of the model {trained.folder}, which knows 0 to {known - 1}")
    with inference_mode(trained.modules):
        for number, (file, row) in enumerate(items):
            try:
                artifacts = trained.recipe.decode(
                    trained.modules, codes[row : row + 1].long(), f"{number:05d}-{_stem(file)}"
                )
            except (RuntimeError, LookupError, ValueError) as error:
                reason = files.one_line(error)
                raise UsageError(f"the codes in {folder} are not of the model {trained.folder} ({reason})") from None
            out.mkdir(parents=True, exist_ok=True)
            for artifact in artifacts:
                artifact.write(out / artifact.file)
    return len(items)


def _stem(file: str) -> str:
    """What to call the result: the file's own name, without what no file name can hold."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "_", Path(file.replace("\\", "/")).stem)[:50]
