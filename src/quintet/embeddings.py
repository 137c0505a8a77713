"""Owns vectors of media and texts: making them with a recipe that puts both into one space, ranking, and the file.

The file is numpy's npz, without pickle: `audio` (files, dim) float32 with `files`, their names; `text` (texts, dim)
with `texts`.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quintet.codes import file_loader
from quintet.common import files
from quintet.common.logging import track
from quintet.errors import UnreadableItem, UsageError
from quintet.pipelines.base import Pipeline, as_embedder

TEXTS_AT_ONCE = 64


@dataclass
class Embedded:
    """Files and their vectors (files, dim), in the same order; and those that were left out, each with the reason."""

    files: list[str]
    vectors: Tensor
    skipped: dict[str, str]


@dataclass(frozen=True)
class Found:
    """A file, and how near it is to a text: 1 is the same direction, 0 has nothing to do with it."""

    file: str
    score: float


def embed_media(pipeline: Pipeline[Any], place: str | Path) -> Embedded:
    """Every readable file of a folder or of shards, or one file."""
    embedder = as_embedder(pipeline)
    if (
        "allow_missing_captions" in type(embedder.config.data).model_fields
    ):  # a sound to be found need not say what it is
        embedder = embedder.with_keys({"data.allow_missing_captions": True})
    with _as_folder(place) as folder:
        embedder = embedder.with_keys({"data.path": folder, "data.validation_path": folder})
        loader, left_out = file_loader(embedder)
        source, files, vectors = loader.source, [], []
        skipped = {name.removeprefix("validation: "): reason for name, reason in left_out.items()}
        with embedder.inference():
            for item in track(range(len(source)), "embedded"):
                try:
                    batch = loader.single(item).to(embedder.device, embedder.dtype)
                except UnreadableItem as problem:
                    skipped[source.name(item)] = str(problem)
                    continue
                vectors.append(embedder.embed_batch(batch).float().cpu())
                files.append(source.name(item))
    if not files:
        name, reason = next(iter(skipped.items()))
        raise UsageError(f"no file of {place} can be read, {name} for one ({reason})")
    return Embedded(files, torch.cat(vectors), skipped)


@contextmanager
def _as_folder(place: str | Path) -> Iterator[str]:
    """A folder, or a file in a folder of its own: what lies beside it is not looked at."""
    if not os.path.isfile(place):
        yield str(place)
        return
    with tempfile.TemporaryDirectory() as temporary:
        shutil.copyfile(place, Path(temporary) / Path(place).name)
        try:
            yield temporary
        except UsageError as error:
            raise UsageError(str(error).replace(temporary, str(place))) from None


def embed_texts(pipeline: Pipeline[Any], texts: Sequence[str]) -> Tensor:
    """Vectors (texts, dim)."""
    embedder = as_embedder(pipeline)
    if not all(text.strip() for text in texts):
        raise UsageError("--text is empty; say in words what to look for")
    embedder.move_to_device()
    parts = [list(texts[start : start + TEXTS_AT_ONCE]) for start in range(0, len(texts), TEXTS_AT_ONCE)]
    with embedder.inference():
        return torch.cat([embedder.embed_texts(part).float().cpu() for part in parts])


def rank(media: Embedded, text: Tensor, top: int) -> list[Found]:
    """The files that a text's vector (dim) is nearest to, best first; of equal ones in the order of their names."""
    scores = (media.vectors.double() @ text.double()).tolist()
    best = sorted(range(len(scores)), key=lambda item: (-scores[item], media.files[item]))[:top]
    return [Found(media.files[item], scores[item]) for item in best]


def refuse_existing(out: Path) -> None:
    files.refuse_existing(out, "choose another file with --out", folder=False)


def write_embeddings(out: Path, media: Embedded | None, texts: Sequence[str], text: Tensor | None) -> None:
    """All at once, or not at all. What was not asked for is an array of no rows."""
    dim = (media.vectors if media is not None else text if text is not None else torch.empty(0, 0)).shape[1]
    arrays: dict[str, Any] = {
        "audio": np.empty((0, dim), np.float32) if media is None else media.vectors.numpy(),
        "files": _words([] if media is None else media.files),
        "text": np.empty((0, dim), np.float32) if text is None else text.numpy(),
        "texts": _words(texts),
    }
    held = io.BytesIO()
    np.savez(held, **arrays)
    refuse_existing(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        files.replace_bytes(out, held.getbuffer())
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from None


def _words(texts: Sequence[str]) -> npt.NDArray[Any]:
    return np.array(list(texts), dtype=np.str_)
