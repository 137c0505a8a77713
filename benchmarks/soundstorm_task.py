"""Definitions shared by both sides of the SoundStorm benchmarks: sizes, codes, semantic tokens.

Imported by workers in several environments, so it depends only on torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

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


def codes(count: int) -> Tensor:
    return torch.randint(0, CODES, (count, FRAMES, LEVELS), generator=torch.Generator().manual_seed(0))


def semantic(count: int) -> Tensor:
    tokens = FRAMES * FRAME_SAMPLES // SEMANTIC_SAMPLES
    return torch.randint(0, SEMANTIC_CODES, (count, tokens), generator=torch.Generator().manual_seed(1))
