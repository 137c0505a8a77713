"""Definitions shared by both sides of the video benchmarks: sizes, texts, and codes of clips.

Imported by workers in several environments, so it depends only on torch and safetensors.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import loss_task

CODES = 1024
FRAMES, SIDE = 9, 64
PATCH, TUBE = 8, 2
"""Pixels per side and frames that one code covers."""

# The tokenizer
TOKENIZER = {"dim": 256, "spatial_depth": 2, "temporal_depth": 2, "heads": 4}
HEAD_DIM = 64
TOKENIZER_BATCH = 2

# The generator
DIM, DEPTH, HEADS = 256, 4, 4
LATENT_FRAMES, SIDE_CODES = 1 + (FRAMES - 1) // TUBE, SIDE // PATCH
STEP_BATCH, SAMPLE_BATCH = 4, 2
SAMPLE_STEPS, GUIDANCE, TEMPERATURE = 18, 3.0, 0.9
BETAS = (0.9, 0.99)
TEXT_SYMBOLS = 32
TEXTS = ("a large red circle, at the left", "a small blue star on the right", "two green squares above it all")
"""Truncated to 30 bytes: 32 symbols with start and end."""
TEXT_DIM = 512
"""Dimension of the embeddings of T5-small."""

# Training for a fixed time
LONGEST_TEXT = 96


def texts(count: int) -> list[str]:
    """Texts of exactly `TEXT_SYMBOLS` symbols."""
    return [TEXTS[number % len(TEXTS)][: TEXT_SYMBOLS - 2] for number in range(count)]


def embeddings(count: int) -> Tensor:
    """Random text embeddings (count, symbols, dim)."""
    return torch.randn(count, TEXT_SYMBOLS, TEXT_DIM, generator=torch.Generator().manual_seed(0))


def videos(count: int) -> Tensor:
    """Random videos (count, 3, frames, height, width) in [0, 1]."""
    return torch.rand(count, 3, FRAMES, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def codes(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, CODES, (count, LATENT_FRAMES, SIDE_CODES, SIDE_CODES), generator=generator)


def read_task(folder: Path) -> loss_task.CodeTask:
    """Codes (clips, latent frames, rows, columns) of clips of equal length, with their texts."""
    codes, rows = loss_task.read_rows(folder)
    if codes.dim() != 4 or not 0 <= int(codes.min()) <= int(codes.max()) < CODES:
        raise SystemExit(f"`loss` needs a tokenizer with one quantizer of {CODES} codes, and clips of equal length")
    return loss_task.split_codes(codes, rows, codes[0].numel())
