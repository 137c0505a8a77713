"""Definitions shared by both sides of the SoundStorm benchmarks: sizes, codes, semantic tokens, validation loss.

Imported by workers in several environments, so it depends only on torch and safetensors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import loss_task

DIM, DEPTH, HEADS, HEAD_DIM = 256, 4, 4, 64
MULTIPLIER = 4
"""Feed-forward expansion factor."""
KERNEL, EXPANSION = 31, 2
"""Kernel size and expansion of the peer's convolution."""
LEVELS, CODES = 8, 1024
SEMANTIC_CODES = 500
FRAMES = 250
RATE, FRAME_SAMPLES, SEMANTIC_SAMPLES = 16_000, 320, 640
"""50 frames and 25 semantic tokens per second, as in the paper."""
SECONDS = FRAMES * FRAME_SAMPLES / RATE
BETAS = (0.9, 0.99)
CLIP = 0.5

# One training step
STEP_BATCH = 4
STEP_RATE = 3e-4

# Generation
STEPS = 16
"""Decoding steps of the first quantizer; each other quantizer has one, 23 passes in total."""
PASSES = STEPS + LEVELS - 1
TOP_FRACTION = 0.3

# Training for a fixed time
CLIP_FRAMES = 50
"""Frames of a clip, from its start: 2 s with the codec's preset `small`. Shorter clips are left out."""
CLIP_LEVELS = 4
"""Number of quantizers, the first ones of the codec, as in the preset `small`."""

Predict = Callable[[Tensor, int], Tensor]
"""From tokens (batch, frames, levels) and a level to the logits of that level (batch, frames, codes)."""


def codes(count: int) -> Tensor:
    return torch.randint(0, CODES, (count, FRAMES, LEVELS), generator=torch.Generator().manual_seed(0))


def semantic(count: int) -> Tensor:
    tokens = FRAMES * FRAME_SAMPLES // SEMANTIC_SAMPLES
    return torch.randint(0, SEMANTIC_CODES, (count, tokens), generator=torch.Generator().manual_seed(1))


# --- training for a fixed time --------------------------------------------------------------------------------------


def read_task(folder: Path) -> loss_task.CodeTask:
    """Codes (clips, frames, levels) of the beginnings of clips, with masks over frames."""
    codes, rows = loss_task.read_rows(folder)
    if codes.dim() != 3 or codes.shape[2] < CLIP_LEVELS or int(codes.max()) >= CODES:
        raise SystemExit(f"`loss` needs a codec with at least {CLIP_LEVELS} quantizers of {CODES} codes")
    long = [number for number, clip in enumerate(codes) if (clip[:, 0] >= 0).sum() >= CLIP_FRAMES]
    beginnings = codes[long, :CLIP_FRAMES, :CLIP_LEVELS].contiguous()
    return loss_task.split_codes(beginnings, [rows[number] for number in long], CLIP_FRAMES)


@torch.no_grad()
def masked_loss(predict: Predict, task: loss_task.CodeTask, mask_id: int) -> dict[str, float]:
    """Cross-entropy of masked codes of each level and on average; finer levels are masked, coarser ones are not."""
    metrics: dict[str, float] = {}
    for level in range(CLIP_LEVELS):
        each = [_loss_at(predict, task, masks, mask_id, level) for masks in task.masks]
        metrics[f"loss/level {level + 1}"] = sum(each) / len(each)
    metrics["loss"] = sum(metrics.values()) / len(metrics)
    return metrics


def _loss_at(predict: Predict, task: loss_task.CodeTask, masks: Tensor, mask_id: int, level: int) -> float:
    total = 0.0
    for codes, hidden in zip(
        torch.split(task.codes, loss_task.MEASURED_TOGETHER),
        torch.split(masks, loss_task.MEASURED_TOGETHER),
        strict=True,
    ):
        tokens = codes.clone()
        tokens[..., level].masked_fill_(hidden, mask_id)
        tokens[..., level + 1 :] = mask_id
        logits = predict(tokens, level)[hidden].float()
        total += F.cross_entropy(logits, codes[..., level][hidden], reduction="sum").item()
    return total / int(masks.sum())
