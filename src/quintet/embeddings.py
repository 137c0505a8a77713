"""Embeddings of media and texts in a joint space: computing, ranking and writing them.

The output is a numpy npz file without pickle: `audio` (files, dim) float32 with `files`, their names; `text`
(texts, dim) with `texts`.
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

TEXT_BATCH_SIZE = 64


@dataclass
class MediaEmbeddings:
    """File names and their embeddings, `vectors` (files, dim), in the same order; skipped files with the reason."""

    files: list[str]
    vectors: Tensor
    skipped: dict[str, str]


@dataclass(frozen=True)
class SearchResult:
    """A file and its cosine similarity to a text."""

    file: str
    score: float


def embed_media(pipeline: Pipeline[Any], path: str | Path) -> MediaEmbeddings:
    """Embed every readable file of a folder or of shards, or a single file."""
    embedder = as_embedder(pipeline)
    # Files that are searched need no captions.
    if "allow_missing_captions" in type(embedder.config.data).model_fields:
        embedder = embedder.with_keys({"data.allow_missing_captions": True})
    with _as_folder(path) as folder:
        embedder = embedder.with_keys({"data.path": folder, "data.validation_path": folder})
        loader, unreadable = file_loader(embedder)
        dataset, files, vectors = loader.dataset, [], []
        skipped = {name.removeprefix("validation: "): reason for name, reason in unreadable.items()}
        with embedder.inference():
            for item in track(range(len(dataset)), "embedded"):
                try:
                    batch = loader.single(item).to(embedder.device, embedder.dtype)
                except UnreadableItem as problem:
                    skipped[dataset.name(item)] = str(problem)
                    continue
                vectors.append(embedder.embed_batch(batch).float().cpu())
                files.append(dataset.name(item))
    if not files:
        name, reason = next(iter(skipped.items()))
        raise UsageError(f"no file of {path} can be read, for example {name} ({reason})")
    return MediaEmbeddings(files, torch.cat(vectors), skipped)


@contextmanager
def _as_folder(path: str | Path) -> Iterator[str]:
    """The path of a folder, or of a temporary folder that contains only this file."""
    if not os.path.isfile(path):
        yield str(path)
        return
    with tempfile.TemporaryDirectory() as temporary:
        shutil.copyfile(path, Path(temporary) / Path(path).name)
        try:
            yield temporary
        except UsageError as error:
            raise UsageError(str(error).replace(temporary, str(path))) from None


def embed_texts(pipeline: Pipeline[Any], texts: Sequence[str]) -> Tensor:
    """Embed texts; returns vectors (texts, dim)."""
    embedder = as_embedder(pipeline)
    if not all(text.strip() for text in texts):
        raise UsageError("--text is empty; describe what to search for")
    embedder.move_to_device()
    parts = [list(texts[start : start + TEXT_BATCH_SIZE]) for start in range(0, len(texts), TEXT_BATCH_SIZE)]
    with embedder.inference():
        return torch.cat([embedder.embed_texts(part).float().cpu() for part in parts])


def rank(media: MediaEmbeddings, text: Tensor, top: int) -> list[SearchResult]:
    """The `top` files most similar to a text embedding (dim,), best first; ties are sorted by name."""
    scores = (media.vectors.double() @ text.double()).tolist()
    best = sorted(range(len(scores)), key=lambda item: (-scores[item], media.files[item]))[:top]
    return [SearchResult(media.files[item], scores[item]) for item in best]


def refuse_existing(out: Path) -> None:
    files.refuse_existing(out, "choose another file with --out", folder=False)


def write_embeddings(out: Path, media: MediaEmbeddings | None, texts: Sequence[str], text: Tensor | None) -> None:
    """Write the npz file atomically. Parts that were not computed are empty arrays."""
    dim = (media.vectors if media is not None else text if text is not None else torch.empty(0, 0)).shape[1]
    arrays: dict[str, Any] = {
        "audio": np.empty((0, dim), np.float32) if media is None else media.vectors.numpy(),
        "files": _strings([] if media is None else media.files),
        "text": np.empty((0, dim), np.float32) if text is None else text.numpy(),
        "texts": _strings(texts),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    refuse_existing(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        files.replace_bytes(out, buffer.getbuffer())
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from None


def _strings(texts: Sequence[str]) -> npt.NDArray[Any]:
    return np.array(list(texts), dtype=np.str_)
