"""Owns how a moment's pixels become tokens and back through convolutions, instead of one linear map each way.

The frames of a tube are channels of one picture, so that a moment costs as much as a picture and nothing looks beyond
it. As in the tokenizer of pictures, pixels enter and leave as 2 x 2 blocks.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from einops import rearrange
from torch import Tensor, nn

from quintet.families.cvivit.config import CHANNELS, CViViTModelConfig
from quintet.nn.convolution import GROUP, ResidualBlock

BLOCK = 2
"""Pixels a side that enter and leave together."""


class PixelsIn(nn.Module):
    """Videos in [-1, 1], (batch, 3, frames, height, width), to tokens (batch, moments, places, dim)."""

    def __init__(self, config: CViViTModelConfig) -> None:
        super().__init__()
        self.step = config.temporal_patch
        widths = _widths(config)
        self.first = nn.Conv2d(CHANNELS * BLOCK**2, widths[0], 3, padding=1)
        self.tubes = nn.Conv2d(CHANNELS * BLOCK**2 * self.step, widths[0], 3, padding=1)
        layers: list[nn.Module] = [ResidualBlock(widths[0])]
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, 2, stride=2), ResidualBlock(after)]
        self.layers = nn.Sequential(
            *layers, nn.GroupNorm(widths[-1] // GROUP, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], config.dim, 1)
        )

    def forward(self, videos: Tensor) -> Tensor:
        tubes = videos.shape[2] // self.step
        first = self.first(_blocks(videos[:, :, :1], 1))
        others = self.tubes(_blocks(videos[:, :, 1:], self.step))
        moments = torch.cat([first[:, None], others.unflatten(0, (len(videos), tubes))], dim=1)
        return rearrange(self.layers(moments.flatten(0, 1)), "(b k) d h w -> b k (h w) d", b=len(videos))


class PixelsOut(nn.Module):
    """Tokens (batch, moments, places, dim) to videos around [-1, 1]."""

    def __init__(self, config: CViViTModelConfig) -> None:
        super().__init__()
        self.step, self.rows = config.temporal_patch, config.grid[0]
        widths = _widths(config)
        layers: list[nn.Module] = [nn.Conv2d(config.dim, widths[-1], 1), ResidualBlock(widths[-1])]
        for before, after in pairwise(reversed(widths)):
            layers += [nn.ConvTranspose2d(before, after, 2, stride=2), ResidualBlock(after)]
        self.layers = nn.Sequential(*layers, nn.GroupNorm(widths[0] // GROUP, widths[0]), nn.SiLU())
        self.first = nn.Conv2d(widths[0], CHANNELS * BLOCK**2, 3, padding=1)
        self.tubes = nn.Conv2d(widths[0], CHANNELS * BLOCK**2 * self.step, 3, padding=1)

    def forward(self, tokens: Tensor) -> Tensor:
        pictures = self.layers(rearrange(tokens, "b k (h w) d -> (b k) d h w", h=self.rows))
        moments = pictures.unflatten(0, tokens.shape[:2])
        first = _frames(self.first(moments[:, 0]), len(tokens), 1)
        others = _frames(self.tubes(moments[:, 1:].flatten(0, 1)), len(tokens), self.step)
        return torch.cat([first, others], dim=2)


def _blocks(frames: Tensor, step: int) -> Tensor:
    """Tubes of `step` frames, (batch x tubes, numbers, rows, columns), with the numbers of a block together."""
    # Not by `pixel_unshuffle`, which leaves an empty batch as it is: a picture has no tubes.
    return rearrange(frames, "b c (k t) (h p) (w q) -> (b k) (c t p q) h w", t=step, p=BLOCK, q=BLOCK)


def _frames(blocks: Tensor, batch: int, step: int) -> Tensor:
    """The way back."""
    return rearrange(
        blocks, "(b k) (c t p q) h w -> b c (k t) (h p) (w q)", b=batch, c=CHANNELS, t=step, p=BLOCK, q=BLOCK
    )


def _widths(config: CViViTModelConfig) -> list[int]:
    """From the finest resolution, blocks of pixels, to that of the codes; no wider than the tokens."""
    halvings = config.patch.bit_length() - BLOCK.bit_length()
    return [min(config.convolutions * 2**number, config.dim) for number in range(halvings + 1)]
