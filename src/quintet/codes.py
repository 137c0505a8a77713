"""Encoding the files of a folder with a trained tokenizer, and decoding codes to files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common import files
from quintet.common.inference import inference_mode
from quintet.common.outputs import mark_output
from quintet.common.weights import checkpoint
from quintet.data.token_files import ITEMS, code_contents, read_codes
from quintet.errors import UnreadableItem, UsageError
from quintet.pipelines.base import Embedder, Pipeline, Tokenizer, as_tokenizer
from quintet.training.engine import Engine
from quintet.training.loader import Loader

__all__ = ["ITEMS", "decode_folder", "encode_folder", "read_codes"]


def encode_folder(pipeline: Pipeline[Any], data: str, out: Path) -> int:
    """Encode every readable file of a folder; returns the number of files."""
    files.refuse_existing(out)
    tokenizer = as_tokenizer(pipeline).with_keys({"data.path": data, "data.validation_path": data})
    loader, _ = file_loader(tokenizer)
    rows: list[dict[str, Any]] = []
    codes: list[Tensor] = []
    with tokenizer.inference():
        for item in range(len(loader.dataset)):
            name = loader.dataset.name(item)
            try:
                batch = loader.single(item).to(tokenizer.device, tokenizer.dtype)
            except UnreadableItem as problem:
                rows.append({"file": name, "skipped": str(problem)})
                continue
            codes.append(tokenizer.encode_batch(batch).cpu().to(torch.int32))
            rows.append({"file": name, "row": len(codes) - 1})
    if not codes:
        raise UsageError(f"no file of {data} can be read; `quintet data check {data}` lists the reasons")
    checkpoint.write_folder(out, code_contents(codes, rows))
    return len(codes)


def file_loader(pipeline: Tokenizer[Any] | Embedder[Any]) -> tuple[Loader, dict[str, str]]:
    """A loader of all files of `data.path`, and the skipped files. Moves the pipeline to its device."""
    config = pipeline.config
    engine = Engine(config.engine, config.train.seed)
    pipeline.move_to_device()
    splits = pipeline.splits()
    return Loader(splits.validation, config.train.seed, pipeline.collate, engine, workers=0), splits.skipped


def decode_folder(pipeline: Pipeline[Any], folder: Path, out: Path) -> int:
    """Decode the codes of a folder to files; returns the number of files."""
    files.refuse_existing(out)
    codes, items = read_codes(folder)
    tokenizer = as_tokenizer(pipeline)
    num_codes = getattr(tokenizer.model, "num_codes", None)
    if num_codes is not None and codes.numel() and not -1 <= codes.min() <= codes.max() < num_codes:
        raise UsageError(
            f"the codes in {folder} are not from the model {_name(tokenizer)}, whose codes are 0 to {num_codes - 1}"
        )
    try:
        with inference_mode(tokenizer.modules), files.atomic_folder(out) as temporary:
            mark_output(temporary)
            _decode_items(tokenizer, codes, items, folder, temporary)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from None
    return len(items)


def _decode_items(
    tokenizer: Tokenizer[Any], codes: Tensor, items: Sequence[tuple[str, int]], folder: Path, out: Path
) -> None:
    for number, (file, row) in enumerate(items):
        try:
            artifacts = tokenizer.decode_files(codes[row : row + 1].long(), f"{number:05d}-{_stem(file)}")
        except (RuntimeError, LookupError, ValueError) as error:
            reason = files.one_line(error)
            raise UsageError(f"the codes in {folder} are not from the model {_name(tokenizer)} ({reason})") from None
        for artifact in artifacts:
            artifact.write(out / artifact.file)


def _name(pipeline: Pipeline[Any]) -> str:
    return pipeline.reference if pipeline.origin is None else str(pipeline.origin.folder)


def _stem(file: str) -> str:
    """The stem of a file name, without control characters and of at most 50 characters."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "_", Path(file.replace("\\", "/")).stem)[:50]
