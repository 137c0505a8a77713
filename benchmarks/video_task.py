"""What both sides of the video benchmarks must agree on: sizes, and how much text there is.

Imported by workers in several environments, so it needs nothing but torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

CODES = 1024
FRAMES, SIDE = 9, 64
PATCH, TUBE = 8, 2
"""Pixels a side and frames that one code stands for."""

# The tokenizer
TOKENIZER = {"dim": 256, "spatial_depth": 2, "temporal_depth": 2, "heads": 4}
HEAD_DIM = 64
TOKENIZER_BATCH = 2

# The generator
DIM, DEPTH, HEADS = 256, 4, 4
MOMENTS, PLACES = 1 + (FRAMES - 1) // TUBE, SIDE // PATCH
STEP_BATCH, SAMPLE_BATCH = 4, 2
SAMPLE_STEPS, GUIDANCE, TEMPERATURE = 18, 3.0, 0.9
BETAS = (0.9, 0.99)
TEXT_SYMBOLS = 32
TEXTS = ("a large red circle, at the left", "a small blue star on the right", "two green squares above it all")
"""Of 30 bytes once they are cut, so of 32 symbols between a start and an end."""
TEXT_WIDTH = 512
"""Of T5-small's embeddings."""


def texts(count: int) -> list[str]:
    """Texts that fill all of `TEXT_SYMBOLS`."""
    return [TEXTS[number % len(TEXTS)][: TEXT_SYMBOLS - 2] for number in range(count)]


def embeddings(count: int) -> Tensor:
    """What stands for texts where somebody else has read them."""
    return torch.randn(count, TEXT_SYMBOLS, TEXT_WIDTH, generator=torch.Generator().manual_seed(0))


def videos(count: int) -> Tensor:
    """In [0, 1]."""
    return torch.rand(count, 3, FRAMES, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def codes(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, CODES, (count, MOMENTS, PLACES, PLACES), generator=generator)
