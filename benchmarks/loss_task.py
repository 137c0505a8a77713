"""Definitions shared by all comparisons of held-out loss after equal CPU time: codes, masks, the loss, the warm-up.

Imported by workers in several environments, so it depends only on torch and safetensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

TRAIN_BATCH = 16
WARMUP_STEPS = 100
BETAS = (0.9, 0.99)
RATIOS = (0.25, 0.5, 0.75, 1.0)
"""Fractions of masked codes at which the loss is measured."""
HELD_OUT = 128
"""Number of items on which the loss is measured."""
MEASURED_TOGETHER = 32

BatchT = TypeVar("BatchT")
Predict = Callable[[Tensor, Sequence[str], bool], Tensor]
"""From tokens (batch, positions), texts, and whether the texts are used, to logits (batch, positions, codes)."""


@dataclass(frozen=True)
class CodeTask:
    """Codes (items, ...) with texts, for training and validation."""

    train_codes: Tensor
    train_texts: list[str]
    codes: Tensor
    texts: list[str]
    masks: Tensor
    """(ratios, items, positions): codes that are masked in validation."""

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(self.codes.shape[1:])

    @property
    def digest(self) -> str:
        """Must be equal for all workers, otherwise their results are not comparable."""
        return digest_of([self.train_codes, self.codes, self.masks], [self.train_texts, self.texts])

    def batches(self) -> Iterator[tuple[Tensor, list[str]]]:
        """Endless batches of training codes and texts, in a random order."""
        generator = torch.Generator().manual_seed(0)
        while True:
            for items in torch.split(torch.randperm(len(self.train_codes), generator=generator), TRAIN_BATCH):
                if len(items) == TRAIN_BATCH:
                    yield self.train_codes[items], [self.train_texts[item] for item in items.tolist()]


def digest_of(tensors: Sequence[Tensor], texts: Any) -> str:
    """SHA-256 of tensors and texts."""
    parts = [tensor.contiguous().numpy().tobytes() for tensor in tensors]
    return hashlib.sha256(b"".join([*parts, json.dumps(texts).encode()])).hexdigest()


def read_rows(folder: Path) -> tuple[Tensor, list[dict[str, str]]]:
    """Codes written by `quintet encode`, with the texts and the split written by `equal_time.encode`."""
    codes = load_file(folder / "codes.safetensors")["codes"].long()
    rows: list[dict[str, str]] = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    return codes, rows


def split_codes(codes: Tensor, rows: Sequence[dict[str, str]], positions: int) -> CodeTask:
    """The training items, and the first held-out items with masks over `positions`."""
    train = [number for number, row in enumerate(rows) if row["split"] == "train"]
    held_out = [number for number, row in enumerate(rows) if row["split"] == "validation"][:HELD_OUT]
    return CodeTask(
        codes[train],
        [rows[number]["text"] for number in train],
        codes[held_out],
        [rows[number]["text"] for number in held_out],
        _masks(len(held_out), positions),
    )


def _masks(items: int, positions: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    ranks = torch.rand(len(RATIOS), items, positions, generator=generator).argsort(-1).argsort(-1)
    return ranks < torch.tensor([round(ratio * positions) for ratio in RATIOS])[:, None, None]


@torch.no_grad()
def masked_loss(
    predict: Predict, task: CodeTask, mask_id: int, texts_shown: tuple[bool, ...] = (True,)
) -> dict[str, float]:
    """Cross-entropy of masked codes at each ratio and on average, with texts and, if `texts_shown` says so, without."""
    metrics: dict[str, float] = {}
    for shown in texts_shown:
        name = "loss" if shown else "loss without text"
        for ratio, masks in zip(RATIOS, task.masks, strict=True):
            metrics[f"{name}/{ratio}"] = _loss_at(predict, task, masks, mask_id, shown)
        metrics[name] = sum(metrics[f"{name}/{ratio}"] for ratio in RATIOS) / len(RATIOS)
    return metrics


def _loss_at(predict: Predict, task: CodeTask, masks: Tensor, mask_id: int, shown: bool) -> float:
    total = 0.0
    for start in range(0, len(masks), MEASURED_TOGETHER):
        part = slice(start, start + MEASURED_TOGETHER)
        codes, hidden = task.codes[part].flatten(1), masks[part]
        logits = predict(codes.masked_fill(hidden, mask_id), task.texts[part], shown)
        total += F.cross_entropy(logits[hidden].float(), codes[hidden], reduction="sum").item()
    return total / int(masks.sum())


def warmed_up(rate: float, step: int, warmup_steps: int = WARMUP_STEPS) -> float:
    """Learning rate of a step: linear warm-up to `rate`, then constant, as in quintet."""
    return rate * min(1.0, (step + 1) / (warmup_steps + 1))


def with_warmup(
    train: Callable[[BatchT], None],
    optimizer: torch.optim.Optimizer,
    rate: float,
    warmup_steps: int = WARMUP_STEPS,
) -> Callable[[BatchT], None]:
    """The training step `train`, after the learning rate of its step was set."""
    number = 0

    def step(batch: BatchT) -> None:
        nonlocal number
        for group in optimizer.param_groups:
            group["lr"] = warmed_up(rate, number, warmup_steps)
        train(batch)
        number += 1

    return step
