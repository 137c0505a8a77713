"""What both sides of the SoundStorm benchmarks must agree on: sizes, codes, semantic tokens.

Imported by workers in several environments, so it needs nothing but torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

DIM, DEPTH, HEADS, HEAD_DIM = 256, 4, 4, 64
MULTIPLIER = 4
"""Width of a feed-forward layer, in widths of the conformer."""
KERNEL, EXPANSION = 31, 2
"""Of the convolution, as the peer has them."""
LEVELS, CODES = 8, 1024
SEMANTIC_CODES = 500
FRAMES = 250
RATE, FRAME_SAMPLES, SEMANTIC_SAMPLES = 16_000, 320, 640
"""50 frames and 25 semantic tokens a second, as in the paper."""
SECONDS = FRAMES * FRAME_SAMPLES / RATE
BETAS = (0.9, 0.99)
CLIP = 0.5

# One training step
STEP_BATCH = 4
STEP_RATE = 3e-4

# Generation
STEPS = 16
"""At the first level; each other one has one, which makes 23 passes."""
PASSES = STEPS + LEVELS - 1
TOP_SHARE = 0.3


def codes(count: int) -> Tensor:
    return torch.randint(0, CODES, (count, FRAMES, LEVELS), generator=torch.Generator().manual_seed(0))


def semantic(count: int) -> Tensor:
    tokens = FRAMES * FRAME_SAMPLES // SEMANTIC_SAMPLES
    return torch.randint(0, SEMANTIC_CODES, (count, tokens), generator=torch.Generator().manual_seed(1))
