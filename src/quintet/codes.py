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
from quintet.pipelines.base import Embedder, Pipeline, Tokenizer, as_tokenizer
from quintet.training.engine import Engine
from quintet.training.loader import Loader

__all__ = ["ITEMS", "decode_folder", "encode_folder", "read_codes"]


def encode_folder(pipeline: Pipeline[Any], data: str, out: Path) -> int:
    """Codes of every readable file of a folder; returns how many."""
    files.refuse_existing(out)
    tokenizer = as_tokenizer(pipeline).with_keys({"data.path": data, "data.validation_path": data})
    loader, _ = file_loader(tokenizer)
    rows: list[dict[str, Any]] = []
    codes: list[Tensor] = []
    with tokenizer.inference():
        for item in range(len(loader.source)):
            name = loader.source.name(item)
            try:
                batch = loader.single(item).to(tokenizer.device, tokenizer.dtype)
            except UnreadableItem as problem:
                rows.append({"file": name, "skipped": str(problem)})
                continue
            codes.append(tokenizer.encode_batch(batch).cpu().to(torch.int32))
            rows.append({"file": name, "row": len(codes) - 1})
    if not codes:
        raise UsageError(f"no file of {data} can be read; `quintet data check {data}` says why")
    checkpoint.write_folder(out, code_contents(codes, rows))
    return len(codes)


def file_loader(pipeline: Tokenizer[Any] | Embedder[Any]) -> tuple[Loader, dict[str, str]]:
    """The files of `data.path`, one by one, for a pipeline that is moved to its device; and those left out."""
    config = pipeline.config
    engine = Engine(config.engine, config.train.seed)
    pipeline.move_to_device()
    splits = pipeline.splits()
    return Loader(splits.validation, config.train.seed, pipeline.collate, engine, workers=0), splits.skipped


def decode_folder(pipeline: Pipeline[Any], folder: Path, out: Path) -> int:
    """Files from the codes of a folder; returns how many."""
    files.refuse_existing(out)
    codes, items = read_codes(folder)
    tokenizer = as_tokenizer(pipeline)
    known = getattr(tokenizer.model, "num_codes", None)
    if known is not None and codes.numel() and not -1 <= codes.min() <= codes.max() < known:
        raise UsageError(f"the codes in {folder} are not of the model {_name(tokenizer)}, which knows 0 to {known - 1}")
    with inference_mode(tokenizer.modules):
        for number, (file, row) in enumerate(items):
            try:
                artifacts = tokenizer.decode_files(codes[row : row + 1].long(), f"{number:05d}-{_stem(file)}")
            except (RuntimeError, LookupError, ValueError) as error:
                reason = files.one_line(error)
                raise UsageError(f"the codes in {folder} are not of the model {_name(tokenizer)} ({reason})") from None
            out.mkdir(parents=True, exist_ok=True)
            for artifact in artifacts:
                artifact.write(out / artifact.file)
    return len(items)


def _name(pipeline: Pipeline[Any]) -> str:
    return pipeline.reference if pipeline.origin is None else str(pipeline.origin.folder)


def _stem(file: str) -> str:
    """What to call the result: the file's own name, without what no file name can hold."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "_", Path(file.replace("\\", "/")).stem)[:50]
