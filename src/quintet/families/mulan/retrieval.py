"""Retrieval metrics: the rank of the correct candidate when all are sorted by similarity."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.nn.contrastive import similarities

RECALLS = (1, 5, 10)
_ROWS = 1024
"""Queries per batch: a large dataset would not fit into memory at once."""


def retrieval_metrics(audio: Tensor, text: Tensor, captions: Tensor) -> dict[str, float]:
    """Recall@K, median rank and mean reciprocal rank, text to audio and audio to text.

    `audio` and `text` are embeddings (clips, dim), `captions` (clips,) the ids of the captions. Any clip with the same
    caption is a correct answer.
    """
    metrics: dict[str, float] = {}
    for name, queries, candidates in (("text_to_audio", text, audio), ("audio_to_text", audio, text)):
        ranks = best_ranks(queries, candidates, captions).cpu()
        metrics.update({f"{name}_r{k}": float((ranks <= k).double().mean()) for k in RECALLS})
        metrics[f"{name}_median_rank"] = float(ranks.double().median())
        metrics[f"{name}_mrr"] = float((1 / ranks.double()).mean())
    return metrics


def best_ranks(queries: Tensor, candidates: Tensor, groups: Tensor) -> Tensor:
    """The rank (queries,) of the best correct candidate of each query, 1 being the first.

    A candidate is correct if it is in the same group. Among equal scores the correct one ranks last, so that a model
    with constant embeddings has the worst metrics.
    """
    ranks = []
    for start in range(0, len(queries), _ROWS):
        scores = similarities(queries[start : start + _ROWS], candidates)
        correct = groups[start : start + _ROWS, None] == groups[None]
        best = scores.masked_fill(~correct, -torch.inf).amax(1, keepdim=True)
        ranks.append(1 + (~correct & (scores >= best)).sum(1))
    return torch.cat(ranks)


def first_per_group(groups: Tensor, limit: int) -> Tensor:
    """The indices of the first row of each group, at most `limit`."""
    first: dict[int, int] = {}
    for index, group in enumerate(groups.tolist()):
        first.setdefault(group, index)
    return torch.tensor(list(first.values())[:limit], device=groups.device)


def caption_number(text: str) -> int:
    """A hash of the words of a caption, without case and punctuation."""
    words = " ".join(re.findall(r"\w+", text.lower()))
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big", signed=True)


def label_in(text: str, labels: Sequence[str]) -> int | None:
    """The index of the label that a caption contains; the longest of several, as of 'drum' and 'snare drum'."""
    found = [label for label in labels if re.search(rf"\b{re.escape(label.lower())}\b", text.lower())]
    return labels.index(max(found, key=len)) if found else None
