"""Owns the C-ViViT tokenizer: patches of a first frame and tubes of the frames after it, to codes and back.

At each moment (the first frame, then every few frames) tokens look at each other in space; then each place looks back
in time. The decoder does the same in the other order. Nothing ever looks ahead, so that the codes of a video are those
of its beginning and more: a picture is a video of one frame, and a longer video goes on from a shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from quintet.common.statistics import Statistics
from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.cvivit.config import CHANNELS, CViViTModelConfig
from quintet.nn.convolution import ResidualBlock
from quintet.nn.positions import LearnedPositions, Rotary
from quintet.nn.quantize import configured_quantizer
from quintet.nn.transformer import Transformer

BLOCK = 2
"""Pixels enter and leave a `FrameFilter` as blocks of 2 x 2: width at full resolution costs most and says least."""


@dataclass
class Reconstruction:
    """One pass through the tokenizer."""

    videos: Tensor
    codes: Tensor
    loss: Tensor
    statistics: Statistics


class CViViT(Pretrained, nn.Module):
    """Videos in [0, 1], (batch, 3, frames, height, width), to codes (batch, moments, rows, columns[, levels]) and back.

    Pictures, (batch, 3, height, width), are videos of one frame. Videos of different lengths in one batch come with a
    mask (batch, frames), true where there is a frame; codes of moments that are not there are -1. Keyword arguments
    are the keys of `model.*`; see `CViViTModelConfig`.
    """

    CONFIG = CViViTModelConfig

    def __init__(self, config: CViViTModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config or validate(CViViTModelConfig, keywords)
        pixels = CHANNELS * self.config.patch_size**2
        self.first_in = nn.Linear(pixels, self.config.dim)
        self.tubes_in = nn.Linear(pixels * self.config.temporal_patch_size, self.config.dim)
        self.encode_space, self.encode_time = _space(self.config), _time(self.config)
        self.quantizer = configured_quantizer(self.config, self.config.dim, self.config.num_quantizers)
        self.decode_time, self.decode_space = _time(self.config), _space(self.config)
        self.first_out = nn.Linear(self.config.dim, pixels)
        self.tubes_out = nn.Linear(self.config.dim, pixels * self.config.temporal_patch_size)
        if self.config.shortcut:
            self.improve_in, self.improve_out = _nothing(self.config.dim), _nothing(self.config.dim)
        self.filter_in, self.filter_out = _filter(self.config), _filter(self.config)

    @property
    def num_codes(self) -> int:
        """The vocabulary of each level."""
        return self.quantizer.num_codes

    def forward(self, videos: Tensor, mask: Tensor | None = None, return_candidates: bool = False) -> Reconstruction:
        """Encode and decode. Changes no state; `return_candidates` adds candidates for dead codes to the statistics."""
        latents = self.latents(videos)
        quantized = self.quantizer(latents.flatten(1, 2), self._of_positions(mask), return_candidates)
        made = self._pixels(quantized.vectors.view_as(latents))
        codes = self._on_grid(quantized.codes, latents.shape[1])
        return Reconstruction(made, codes, quantized.loss, quantized.statistics)

    def encode(self, videos: Tensor, mask: Tensor | None = None) -> Tensor:
        """Videos to codes."""
        latents = self.latents(videos)
        codes = self.quantizer.encode(latents.flatten(1, 2), self._of_positions(mask))
        return self._on_grid(codes, latents.shape[1])

    def decode(self, codes: Tensor) -> Tensor:
        """Codes to videos, clamped to [0, 1]; where there is no code (-1) the frames have no meaning."""
        levels = (self.quantizer.levels,) if self.quantizer.levels > 1 else ()
        if codes.ndim < 2 or not codes.shape[1] or tuple(codes.shape[2:]) != (*self.config.grid, *levels):
            expected = ", ".join(map(str, ("batch", "moments", *self.config.grid, *levels)))
            raise UsageError(f"codes of shape {tuple(codes.shape)} are none of this tokenizer, whose are ({expected})")
        vectors = self.quantizer.codes_to_vectors(codes.flatten(1, 3))
        return self._pixels(rearrange(vectors, "b (k n) d -> b k n d", k=codes.shape[1])).clamp(0, 1)

    def latents(self, videos: Tensor) -> Tensor:
        """The encoder's vectors, (batch, moments, places, dim)."""
        tokens = self._tokens(videos)
        seen = _along_time(self.encode_time, _over_space(self.encode_space, tokens))
        return tokens + self.improve_in(seen) if self.config.shortcut else seen

    def patches(self, videos: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels around 0: (batch, 1, places, numbers of a patch) of the first frame, (batch, moments - 1, places,
        numbers of a tube) of the others."""
        patch, step = self.config.patch_size, self.config.temporal_patch_size
        centred = self.filter_in(self._checked(videos) * 2 - 1)
        first = rearrange(centred[:, :, :1], "b c f (h p) (w q) -> b f (h w) (c p q)", p=patch, q=patch)
        tubes = rearrange(centred[:, :, 1:], "b c (k t) (h p) (w q) -> b k (h w) (c t p q)", t=step, p=patch, q=patch)
        return first, tubes

    def moments_there(self, mask: Tensor) -> Tensor:
        """Which moments of a batch there are, (batch, moments), from which frames there are."""
        return torch.cat([mask[:, :1], mask[:, 1 :: self.config.temporal_patch_size]], dim=1)

    def _checked(self, videos: Tensor) -> Tensor:
        videos = videos[:, :, None] if videos.ndim == 4 else videos
        if videos.ndim != 5 or videos.shape[1] != CHANNELS or tuple(videos.shape[-2:]) != self.config.size:
            raise UsageError(
                f"this tokenizer takes videos of (batch, 3, frames, {self.config.size[0]}, {self.config.size[1]}), "
                f"not {tuple(videos.shape)}"
            )
        frames = videos.shape[2]
        if (frames - 1) % self.config.temporal_patch_size:
            raise UsageError(f"{frames} frames are not 1 and a multiple of {self.config.temporal_patch_size}")
        if frames > self.config.max_frames:
            raise UsageError(f"{frames} frames are more than model.max_frames={self.config.max_frames}")
        return videos

    def _tokens(self, videos: Tensor) -> Tensor:
        """(batch, moments, places, dim)"""
        first, tubes = self.patches(videos)
        return torch.cat([self.first_in(first), self.tubes_in(tubes)], dim=1)

    def _pixels(self, vectors: Tensor) -> Tensor:
        """(batch, moments, places, dim) to videos."""
        tokens = _over_space(self.decode_space, _along_time(self.decode_time, vectors))
        if self.config.shortcut:
            tokens = vectors + self.improve_out(tokens)
        patch, step, rows = self.config.patch_size, self.config.temporal_patch_size, self.config.grid[0]
        first = rearrange(
            self.first_out(tokens[:, :1]), "b f (h w) (c p q) -> b c f (h p) (w q)", h=rows, p=patch, q=patch
        )
        tubes = rearrange(
            self.tubes_out(tokens[:, 1:]),
            "b k (h w) (c t p q) -> b c (k t) (h p) (w q)",
            h=rows,
            t=step,
            p=patch,
            q=patch,
        )
        smooth: Tensor = self.filter_out(torch.cat([first, tubes], dim=2))
        return (smooth + 1) / 2

    def _of_positions(self, mask: Tensor | None) -> Tensor | None:
        """A mask of frames as one of codes, (batch, moments x places); none where all of them are there."""
        if mask is None:
            return None
        return repeat(self.moments_there(mask), "b k -> b (k n)", n=self.config.grid[0] * self.config.grid[1])

    def _on_grid(self, codes: Tensor, moments: int) -> Tensor:
        return codes.view(len(codes), moments, *self.config.grid, *codes.shape[2:])


def _over_space(transformer: Transformer, tokens: Tensor) -> Tensor:
    """Each moment by itself."""
    seen: Tensor = transformer(tokens.flatten(0, 1))
    return seen.view_as(tokens)


def _along_time(transformer: Transformer, tokens: Tensor) -> Tensor:
    """Each place by itself."""
    batch = len(tokens)
    seen: Tensor = transformer(rearrange(tokens, "b k n d -> (b n) k d"))
    return rearrange(seen, "(b n) k d -> b k n d", b=batch)


def _space(config: CViViTModelConfig) -> Transformer:
    return Transformer(
        config.dim,
        config.spatial_depth,
        config.heads,
        config.head_dim,
        positions=LearnedPositions(config.grid, config.dim),
        rotary=Rotary(config.grid, config.head_dim),
    )


def _time(config: CViViTModelConfig) -> Transformer:
    positions = Rotary((config.moments(config.max_frames),), config.head_dim)
    return Transformer(
        config.dim, config.temporal_depth, config.heads, config.head_dim, causal=True, positions=positions
    )


def _nothing(dim: int) -> nn.Linear:
    """A map that begins as zero."""
    layer = nn.Linear(dim, dim, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def _filter(config: CViViTModelConfig) -> nn.Module:
    return nn.Identity() if config.filter_dim is None else FrameFilter(config.filter_dim, config.filter_blocks)


class FrameFilter(nn.Module):
    """Videos (batch, 3, frames, height, width) to videos like them, by convolutions over whole pictures, where patches
    know only themselves.

    Before the encoder it lets a patch see what lies around it; behind the decoder it takes away the edges of patches,
    in space and, since a frame sees the one before, where one tube ends and the next begins. It begins as doing
    nothing, and never looks ahead.
    """

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
