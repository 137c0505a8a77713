"""Retrieval metrics: the rank of the right answer when all are ordered by similarity."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.nn.contrastive import similarities

RECALLS = (1, 5, 10)
_ROWS = 1024
"""Questions that are answered at a time: all at once would fill the memory of a large data set."""


def retrieval_metrics(audio: Tensor, text: Tensor, captions: Tensor) -> dict[str, float]:
    """Recall, median rank and mean reciprocal rank, both ways. Any clip of the same caption is a right answer."""
    figures: dict[str, float] = {}
    for name, asked, answers in (("text_to_audio", text, audio), ("audio_to_text", audio, text)):
        ranks = best_ranks(asked, answers, captions)
        figures.update({f"{name}_r{most}": float((ranks <= most).double().mean()) for most in RECALLS})
        figures[f"{name}_median_rank"] = float(ranks.double().median())
        figures[f"{name}_mrr"] = float((1 / ranks.double()).mean())
    return figures


def best_ranks(asked: Tensor, answers: Tensor, groups: Tensor) -> Tensor:
    """The place of the best right answer to each question, 1 being the first.

    An answer is right that is of the same group. Of equal scores the right one stands last, so that a model that
    tells nothing apart finds nothing.
    """
    ranks = []
    for start in range(0, len(asked), _ROWS):
        scores = similarities(asked[start : start + _ROWS], answers)
        right = groups[start : start + _ROWS, None] == groups[None]
        best = scores.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
        ranks.append(1 + (~right & (scores >= best)).sum(1))
    return torch.cat(ranks)


def first_per_group(groups: Tensor, most: int) -> Tensor:
    """The places of the first row of each group, at most so many."""
    seen: dict[int, int] = {}
    for place, group in enumerate(groups.tolist()):
        seen.setdefault(group, place)
    return torch.tensor(list(seen.values())[:most], device=groups.device)


def caption_number(text: str) -> int:
    """A number that stands for a caption: equal captions have equal numbers."""
    words = " ".join(re.findall(r"\w+", text.lower()))
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big", signed=True)


def label_in(text: str, labels: Sequence[str]) -> int | None:
    """Which label a caption names: of several the longest, as of 'drum' and 'snare drum'; None if none."""
    found = [label for label in labels if re.search(rf"\b{re.escape(label.lower())}\b", text.lower())]
    return labels.index(max(found, key=len)) if found else None
