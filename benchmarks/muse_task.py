"""Definitions shared by both sides of the Muse benchmark: sizes, texts and codes.

Imported by workers in several environments, so it depends only on torch and safetensors.
"""

from __future__ import annotations

from pathlib import Path

import loss_task

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
LONGEST_TEXT = 112


def texts(count: int) -> list[str]:
    """Texts of exactly `TEXT_SYMBOLS` symbols."""
    return [TEXTS[number % len(TEXTS)][: TEXT_SYMBOLS - 2] for number in range(count)]


def read_task(folder: Path) -> loss_task.CodeTask:
    """Codes (images, rows, columns) with their texts."""
    codes, rows = loss_task.read_rows(folder)
    return loss_task.split_codes(codes, rows, codes[0].numel())
