"""Definitions shared by both sides of the Muse benchmark: sizes, codes, texts, and the validation loss.

Imported by workers in several environments, so it depends only on torch and safetensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

CODES = 1024
DIM, DEPTH, HEADS = 256, 4, 8
DROP_TEXT = 0.1
"""Fraction of texts dropped in training, on both sides."""

# One training step, and sampling
GRID = 16
STEP_BATCH = 4
SAMPLE_BATCH = 2
SAMPLE_STEPS = 18
GUIDANCE = 3.0
TEXT_SYMBOLS = 32
TEXTS = ("a large red circle, at the left", "a small blue star on the right", "two green squares above it all")
"""Truncated to 30 bytes: 32 symbols with start and end."""

# Training for a fixed time
TRAIN_BATCH = 16
WARMUP_STEPS = 100
BETAS = (0.9, 0.99)
LONGEST_TEXT = 112
RATIOS = (0.25, 0.5, 0.75, 1.0)
"""Fractions of masked tokens at which the loss is measured."""
HELD_OUT = 128
"""Number of images on which the loss is measured."""
MEASURED_TOGETHER = 32

Predict = Callable[[Tensor, Sequence[str], bool], Tensor]
"""From tokens (batch, positions), texts, and whether the texts are used, to logits (batch, positions, codes)."""


def texts(count: int) -> list[str]:
    """Texts of exactly `TEXT_SYMBOLS` symbols."""
    return [TEXTS[number % len(TEXTS)][: TEXT_SYMBOLS - 2] for number in range(count)]


@dataclass(frozen=True)
class Task:
    """Codes (items, positions) with texts, for training and validation."""

    grid: int
    train_codes: Tensor
    train_texts: list[str]
    codes: Tensor
    texts: list[str]
    masks: Tensor
    """(ratios, items, positions): codes that are masked in validation."""

    @property
    def digest(self) -> str:
        """Must be equal for all workers, otherwise their results are not comparable."""
        parts = [tensor.contiguous().numpy().tobytes() for tensor in (self.train_codes, self.codes, self.masks)]
        texts = json.dumps([self.train_texts, self.texts]).encode()
        return hashlib.sha256(b"".join([*parts, texts])).hexdigest()


def read_task(folder: Path) -> Task:
    """Codes written by `quintet encode`, with the texts and the split written by `muse.py`."""
    codes = load_file(folder / "codes.safetensors")["codes"].long()
    rows = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    train = [number for number, row in enumerate(rows) if row["split"] == "train"]
    held_out = [number for number, row in enumerate(rows) if row["split"] == "validation"][:HELD_OUT]
    grid, flat = codes.shape[1], codes.flatten(1)
    return Task(
        grid,
        flat[train],
        [rows[number]["text"] for number in train],
        flat[held_out],
        [rows[number]["text"] for number in held_out],
        _masks(len(held_out), flat.shape[1]),
    )


def _masks(items: int, positions: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    ranks = torch.rand(len(RATIOS), items, positions, generator=generator).argsort(-1).argsort(-1)
    return ranks < torch.tensor([round(ratio * positions) for ratio in RATIOS])[:, None, None]


@torch.no_grad()
def masked_loss(
    predict: Predict, task: Task, mask_id: int, texts_shown: tuple[bool, ...] = (True, False)
) -> dict[str, float]:
    """Cross-entropy of masked codes at each ratio and on average, with and without texts."""
    metrics: dict[str, float] = {}
    for shown in texts_shown:
        name = "loss" if shown else "loss without text"
        for ratio, masks in zip(RATIOS, task.masks, strict=True):
            metrics[f"{name}/{ratio}"] = _loss_at(predict, task, masks, mask_id, shown)
        metrics[name] = sum(metrics[f"{name}/{ratio}"] for ratio in RATIOS) / len(RATIOS)
    return metrics


def _loss_at(predict: Predict, task: Task, masks: Tensor, mask_id: int, shown: bool) -> float:
    total = 0.0
    for start in range(0, len(masks), MEASURED_TOGETHER):
        part = slice(start, start + MEASURED_TOGETHER)
        codes, hidden = task.codes[part], masks[part]
        logits = predict(codes.masked_fill(hidden, mask_id), task.texts[part], shown)
        total += F.cross_entropy(logits[hidden].float(), codes[hidden], reduction="sum").item()
    return total / int(masks.sum())


def warmed_up(rate: float, step: int) -> float:
    """Learning rate of a step: linear warm-up to `rate`, then constant, as in quintet."""
    return rate * min(1.0, (step + 1) / (WARMUP_STEPS + 1))
