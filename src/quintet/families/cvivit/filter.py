"""Owns the filter of frames: convolutions over whole pictures, where patches know only themselves.

Before the encoder it lets a patch see what lies around it; behind the decoder it takes away the edges of patches, in
space and, since a frame sees the one before, where one tube ends and the next begins. It begins as doing nothing, and
never looks ahead.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from quintet.families.cvivit.config import CHANNELS
from quintet.nn.convolution import ResidualBlock

BLOCK = 2
"""Pixels enter and leave as blocks of 2 x 2: width at full resolution costs most and says least."""


class FrameFilter(nn.Module):
    """Videos (batch, 3, frames, height, width) to videos like them."""

    def __init__(self, dim: int, blocks: int) -> None:
        super().__init__()
        numbers = CHANNELS * BLOCK**2
        self.enter = nn.Conv2d(2 * numbers, dim, 3, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(dim) for _ in range(blocks)))
        self.leave = nn.Conv2d(dim, numbers, 3, padding=1)
        for parameter in self.leave.parameters():
            nn.init.zeros_(parameter)

    def forward(self, videos: Tensor) -> Tensor:
        small = F.pixel_unshuffle(rearrange(videos, "b c f h w -> b f c h w"), BLOCK)
        before = torch.cat([small[:, :1], small[:, :-1]], dim=1)
        both = rearrange(torch.cat([small, before], dim=2), "b f c h w -> (b f) c h w")
        change = F.pixel_shuffle(self.leave(F.silu(self.blocks(self.enter(both)))), BLOCK)
        return videos + rearrange(change, "(b f) c h w -> b c f h w", b=len(videos))
