"""C-ViViT tokenizer: encodes patches of the first frame and tubes of the later frames to codes and decodes them.

A latent frame is the first frame, or `temporal_patch_size` later frames. The encoder attends over space within each
latent frame, then causally over time at each position; the decoder does both in the opposite order. Because time is
causal, the codes of a video start with the codes of its beginning: an image is a video of one frame, and a video can be
continued.
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
from quintet.families.cvivit.prediction import TemporalPrediction
from quintet.nn.convolution import ResidualBlock
from quintet.nn.positions import LearnedPositions, Rotary
from quintet.nn.quantize import configured_quantizer
from quintet.nn.transformer import Transformer

BLOCK = 2
"""A `FrameFilter` works on 2 x 2 blocks of pixels: channels at full resolution cost most and add least."""


@dataclass
class Reconstruction:
    """Result of one forward pass."""

    videos: Tensor
    codes: Tensor
    loss: Tensor
    statistics: Statistics


class CViViT(Pretrained, nn.Module):
    """Encodes videos (batch, 3, frames, height, width) in [0, 1] to codes (batch, latent frames, rows, columns[,
    num_quantizers]) and decodes them.

    Images (batch, 3, height, width) are videos of one frame. For videos of different lengths in one batch, pass a mask
    (batch, frames) that is true for real frames; codes of padding are -1. Keyword arguments are the keys of `model.*`;
    see `CViViTModelConfig`.
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
        if self.config.temporal_prediction:
            self.prediction = TemporalPrediction(self.config.dim)
        self.decode_time, self.decode_space = _time(self.config), _space(self.config)
        self.first_out = nn.Linear(self.config.dim, pixels)
        self.tubes_out = nn.Linear(self.config.dim, pixels * self.config.temporal_patch_size)
        if self.config.shortcut:
            self.improve_in, self.improve_out = _zero_linear(self.config.dim), _zero_linear(self.config.dim)
        self.filter_in, self.filter_out = _filter(self.config), _filter(self.config)

    @property
    def num_codes(self) -> int:
        """Vocabulary size of each quantizer."""
        return self.quantizer.num_codes

    def forward(self, videos: Tensor, mask: Tensor | None = None, return_candidates: bool = False) -> Reconstruction:
        """Encode and decode videos (batch, 3, frames, height, width) without changing state.

        `return_candidates` adds candidates for dead codes to the statistics.
        """
        latents = self.latents(videos)
        predicted = self._predicted(latents)
        residuals = latents if predicted is None else latents - predicted
        quantized = self.quantizer(residuals.flatten(1, 2), self._code_mask(mask), return_candidates)
        vectors = quantized.vectors.view_as(latents)
        reconstructed = self.decode_vectors(vectors if predicted is None else predicted + vectors)
        codes = self._on_grid(quantized.codes, latents.shape[1])
        return Reconstruction(reconstructed, codes, quantized.loss, quantized.statistics)

    def encode(self, videos: Tensor, mask: Tensor | None = None) -> Tensor:
        """Codes (batch, latent frames, rows, columns[, num_quantizers]) of videos; -1 where `mask` has no frame."""
        latents = self.residuals(videos)
        codes = self.quantizer.encode(latents.flatten(1, 2), self._code_mask(mask))
        return self._on_grid(codes, latents.shape[1])

    def decode(self, codes: Tensor) -> Tensor:
        """Videos (batch, 3, frames, height, width) of codes, clamped to [0, 1]; frames of codes -1 are meaningless."""
        levels = (self.quantizer.levels,) if self.quantizer.levels > 1 else ()
        if codes.ndim < 2 or not codes.shape[1] or tuple(codes.shape[2:]) != (*self.config.grid, *levels):
            expected = ", ".join(map(str, ("batch", "latent frames", *self.config.grid, *levels)))
            raise UsageError(f"codes have shape {tuple(codes.shape)}, but this tokenizer expects ({expected})")
        vectors = self.quantizer.codes_to_vectors(codes.flatten(1, 3))
        latents = self.accumulated(rearrange(vectors, "b (k n) d -> b k n d", k=codes.shape[1]))
        return self.decode_vectors(latents).clamp(0, 1)

    def accumulated(self, vectors: Tensor) -> Tensor:
        """The decoder's inputs (batch, latent frames, positions, dim), from the vectors of the codes."""
        return self.prediction.accumulated(vectors) if self.config.temporal_prediction else vectors

    def residuals(self, videos: Tensor) -> Tensor:
        """The quantizer's inputs (batch, latent frames, positions, dim): the latents without what is predicted."""
        latents = self.latents(videos)
        predicted = self._predicted(latents)
        return latents if predicted is None else latents - predicted

    def _predicted(self, latents: Tensor) -> Tensor | None:
        return self.prediction.closed_loop(latents, self.quantizer) if self.config.temporal_prediction else None

    def latents(self, videos: Tensor) -> Tensor:
        """Encoder outputs (batch, latent frames, positions, dim)."""
        tokens = self._tokens(videos)
        latents = _along_time(self.encode_time, _over_space(self.encode_space, tokens))
        return tokens + self.improve_in(latents) if self.config.shortcut else latents

    def patches(self, videos: Tensor) -> tuple[Tensor, Tensor]:
        """Zero-centred pixels of the first frame, (batch, 1, positions, values per patch), and of the later frames,
        (batch, latent frames - 1, positions, values per tube)."""
        patch, step = self.config.patch_size, self.config.temporal_patch_size
        centred = self.filter_in(self._checked(videos) * 2 - 1)
        first = rearrange(centred[:, :, :1], "b c f (h p) (w q) -> b f (h w) (c p q)", p=patch, q=patch)
        tubes = rearrange(centred[:, :, 1:], "b c (k t) (h p) (w q) -> b k (h w) (c t p q)", t=step, p=patch, q=patch)
        return first, tubes

    def latent_frame_mask(self, mask: Tensor) -> Tensor:
        """Mask of latent frames (batch, latent frames) of a mask of frames (batch, frames)."""
        return torch.cat([mask[:, :1], mask[:, 1 :: self.config.temporal_patch_size]], dim=1)

    def _checked(self, videos: Tensor) -> Tensor:
        videos = videos[:, :, None] if videos.ndim == 4 else videos
        if videos.ndim != 5 or videos.shape[1] != CHANNELS or tuple(videos.shape[-2:]) != self.config.size:
            raise UsageError(
                f"videos have shape {tuple(videos.shape)}, but this tokenizer expects "
                f"(batch, 3, frames, {self.config.size[0]}, {self.config.size[1]})"
            )
        frames = videos.shape[2]
        if (frames - 1) % self.config.temporal_patch_size:
            raise UsageError(f"{frames} frames are not 1 plus a multiple of {self.config.temporal_patch_size}")
        if frames > self.config.max_frames:
            raise UsageError(f"{frames} frames exceed model.max_frames={self.config.max_frames}")
        return videos

    def _tokens(self, videos: Tensor) -> Tensor:
        """Tokens (batch, latent frames, positions, dim) of videos."""
        first, tubes = self.patches(videos)
        return torch.cat([self.first_in(first), self.tubes_in(tubes)], dim=1)

    def decode_vectors(self, vectors: Tensor) -> Tensor:
        """Videos, not clamped, of quantized vectors (batch, latent frames, positions, dim)."""
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
        filtered: Tensor = self.filter_out(torch.cat([first, tubes], dim=2))
        return (filtered + 1) / 2

    def _code_mask(self, mask: Tensor | None) -> Tensor | None:
        """Mask of codes (batch, latent frames x positions) of a mask of frames; None if there is no mask."""
        if mask is None:
            return None
        return repeat(self.latent_frame_mask(mask), "b k -> b (k n)", n=self.config.grid[0] * self.config.grid[1])

    def _on_grid(self, codes: Tensor, latent_frames: int) -> Tensor:
        return codes.view(len(codes), latent_frames, *self.config.grid, *codes.shape[2:])


def _over_space(transformer: Transformer, tokens: Tensor) -> Tensor:
    """Attention over positions, separately in each latent frame."""
    output: Tensor = transformer(tokens.flatten(0, 1))
    return output.view_as(tokens)


def _along_time(transformer: Transformer, tokens: Tensor) -> Tensor:
    """Attention over time, separately at each position."""
    batch = len(tokens)
    output: Tensor = transformer(rearrange(tokens, "b k n d -> (b n) k d"))
    return rearrange(output, "(b n) k d -> b k n d", b=batch)


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
    positions = Rotary((config.latent_frames(config.max_frames),), config.head_dim)
    return Transformer(
        config.dim, config.temporal_depth, config.heads, config.head_dim, causal=True, positions=positions
    )


def _zero_linear(dim: int) -> nn.Linear:
    """A linear layer without bias, initialized to zero."""
    layer = nn.Linear(dim, dim, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def _filter(config: CViViTModelConfig) -> nn.Module:
    return nn.Identity() if config.filter_dim is None else FrameFilter(config.filter_dim, config.filter_blocks)


class FrameFilter(nn.Module):
    """Residual convolutions over full frames: videos (batch, 3, frames, height, width) to videos of the same shape.

    Before the encoder, it gives a patch information about its surroundings. After the decoder, it removes the edges of
    patches in space and, because each frame also sees the previous one, the edges of tubes in time. It starts as the
    identity and is causal.
    """

    def __init__(self, dim: int, blocks: int) -> None:
        super().__init__()
        channels = CHANNELS * BLOCK**2
        self.enter = nn.Conv2d(2 * channels, dim, 3, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(dim) for _ in range(blocks)))
        self.leave = nn.Conv2d(dim, channels, 3, padding=1)
        for parameter in self.leave.parameters():
            nn.init.zeros_(parameter)

    def forward(self, videos: Tensor) -> Tensor:
        blocks = F.pixel_unshuffle(rearrange(videos, "b c f h w -> b f c h w"), BLOCK)
        previous = torch.cat([blocks[:, :1], blocks[:, :-1]], dim=1)
        both = rearrange(torch.cat([blocks, previous], dim=2), "b f c h w -> (b f) c h w")
        residual = F.pixel_shuffle(self.leave(F.silu(self.blocks(self.enter(both)))), BLOCK)
        return videos + rearrange(residual, "(b f) c h w -> b c f h w", b=len(videos))
