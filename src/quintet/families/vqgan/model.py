"""VQ-GAN tokenizer: convolutional encoder, quantizer, convolutional decoder.

The first and the last layer exchange pixels as 2 x 2 blocks, so the largest feature maps have half the resolution of
the image: channels at full resolution cost most and add least. 2 x 2 strided convolutions change the resolution;
residual blocks do the rest.

With `model.shortcut`, linear layers between the patch of a code and its vector bypass the convolutions.
`init_as_transform` sets them to the principal components of patches, so that training starts from a useful tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from quintet.common.statistics import Statistics
from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.vqgan.config import VQGanModelConfig
from quintet.nn.convolution import GROUP, ResidualBlock
from quintet.nn.principal import principal_components, set_linear
from quintet.nn.quantize import configured_quantizer


@dataclass
class Reconstruction:
    """Result of one forward pass. `features` is the input of the last layer, which the adaptive weight needs."""

    images: Tensor
    features: Tensor
    codes: Tensor
    loss: Tensor
    statistics: Statistics


class VQGanVAE(Pretrained, nn.Module):
    """Encodes images (batch, channels, height, width) in [0, 1] to codes (batch, rows, columns[, num_quantizers]) and
    decodes them.

    Keyword arguments are the keys of `model.*`; see `VQGanModelConfig`.
    """

    CONFIG = VQGanModelConfig

    def __init__(self, config: VQGanModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config or validate(VQGanModelConfig, keywords)
        widths = [self.config.dim * min(2**number, 8) for number in range(self.config.layers)]
        self.encoder = _encoder(self.config, widths)
        self.quantizer = configured_quantizer(self.config, widths[-1], self.config.num_quantizers)
        self.decoder = _decoder(self.config, widths)
        self.last_layer = nn.Conv2d(widths[0], self.config.channels * 4, 3, padding=1)
        self.patch_in = self.patch_out = None
        if self.config.shortcut:
            values = self.config.channels * self.patch_size**2
            self.patch_in, self.patch_out = nn.Linear(values, widths[-1]), nn.Linear(widths[-1], values)
            for layer in (self.encoder[-1], self.last_layer):
                _zero(layer)

    @property
    def patch_size(self) -> int:
        """Number of pixels per side of a code."""
        return 1 << self.config.layers

    @property
    def num_codes(self) -> int:
        """Vocabulary size of each quantizer."""
        return self.quantizer.num_codes

    @property
    def code_shape(self) -> tuple[int, ...]:
        """Shape of the codes of one image: rows, columns and, if there are several, quantizers."""
        levels = self.quantizer.levels
        return (*self.config.grid, levels) if levels > 1 else self.config.grid

    def forward(self, images: Tensor, return_candidates: bool = False) -> Reconstruction:
        """Encode and decode images (batch, channels, height, width) without changing state.

        `return_candidates` adds candidates for dead codes to the statistics.
        """
        latents = self.latent_map(images)
        quantized = self.quantizer(rearrange(latents, "b c h w -> b (h w) c"), return_candidates=return_candidates)
        features = self._features(quantized.vectors, latents.shape[-2:])
        reconstructed = self._pixels(features, quantized.vectors)
        return Reconstruction(reconstructed, features, quantized.codes, quantized.loss, quantized.statistics)

    def encode(self, images: Tensor) -> Tensor:
        """Codes (batch, rows, columns[, num_quantizers]) of images (batch, channels, height, width) in [0, 1]."""
        latents = self.latent_map(images)
        codes = self.quantizer.encode(rearrange(latents, "b c h w -> b (h w) c"))
        height, width = latents.shape[-2:]
        return codes.view(len(codes), height, width, *codes.shape[2:])

    def decode(self, codes: Tensor) -> Tensor:
        """Images (batch, channels, height, width), clamped to [0, 1], of codes."""
        levels = (self.quantizer.levels,) if self.quantizer.code_axes else ()
        if codes.ndim != 3 + len(levels) or not codes.numel() or tuple(codes.shape[3:]) != levels:
            expected = ", ".join(map(str, ("batch", "rows", "columns", *levels)))
            raise UsageError(f"codes have shape {tuple(codes.shape)}, but this tokenizer expects ({expected})")
        vectors = self.quantizer.codes_to_vectors(codes.flatten(1, 2))
        return self.decode_vectors(vectors, codes.shape[1:3]).clamp(0, 1)

    def decode_vectors(self, vectors: Tensor, grid: Any) -> Tensor:
        """Images (batch, channels, height, width), not clamped, of quantized vectors (batch, positions, dim)."""
        return self._pixels(self._features(vectors, grid), vectors)

    def latents(self, images: Tensor) -> Tensor:
        """Encoder outputs (batch x rows x columns, dim), from which a codebook can be initialized."""
        return rearrange(self.latent_map(images), "b c h w -> (b h w) c")

    def latent_map(self, images: Tensor) -> Tensor:
        """Encoder outputs (batch, dim, rows, columns), before quantization."""
        if images.ndim != 4 or images.shape[1] != self.config.channels or not images.numel():
            raise UsageError(
                f"images have shape {tuple(images.shape)}, but this tokenizer expects "
                f"(batch, {self.config.channels}, height, width)"
            )
        height, width = images.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise UsageError(
                f"image size {height} x {width} is not divisible by {self.patch_size}, the number of pixels per side "
                "of a code"
            )
        # Zero-centred, so that the first layer need not learn to subtract the mean.
        latents: Tensor = self.encoder(images * 2 - 1)
        if self.patch_in is not None:
            latents = latents + rearrange(self.patch_in(self.patches(images)), "b h w c -> b c h w")
        return latents

    def patches(self, images: Tensor) -> Tensor:
        """Zero-centred pixels of the patch of each code, (batch, rows, columns, values per patch)."""
        size = self.patch_size
        return rearrange(images * 2 - 1, "b c (h p) (w q) -> b h w (c p q)", p=size, q=size)

    def _features(self, vectors: Tensor, grid: Any) -> Tensor:
        features: Tensor = self.decoder(rearrange(vectors, "b (h w) c -> b c h w", h=grid[0], w=grid[1]))
        return features

    def _pixels(self, features: Tensor, vectors: Tensor) -> Tensor:
        centred = F.pixel_shuffle(self.last_layer(features), 2)
        if self.patch_out is not None:
            rows, size = centred.shape[-2] // self.patch_size, self.patch_size
            patches = self.patch_out(vectors)
            centred = centred + rearrange(patches, "b (h w) (c p q) -> b c (h p) (w q)", h=rows, p=size, q=size)
        return (centred + 1) / 2


@torch.no_grad()
def init_as_transform(model: VQGanVAE, statistics: Statistics) -> None:
    """Set the linear layers to the principal components of patches; the convolutions contribute nothing yet."""
    assert model.patch_in is not None
    assert model.patch_out is not None
    mean, directions = principal_components(statistics, model.patch_in.out_features)
    set_linear(model.patch_in, directions.T, -mean @ directions)
    set_linear(model.patch_out, directions, mean)


def _zero(layer: nn.Module) -> None:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)


def _encoder(config: VQGanModelConfig, widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.PixelUnshuffle(2), nn.Conv2d(config.channels * 4, widths[0], 3, padding=1)]
    layers += [ResidualBlock(widths[0]) for _ in range(config.blocks)]
    for before, after in pairwise(widths):
        layers.append(nn.Conv2d(before, after, 2, stride=2))
        layers += [ResidualBlock(after) for _ in range(config.blocks)]
    return nn.Sequential(
        *layers, nn.GroupNorm(widths[-1] // GROUP, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], widths[-1], 1)
    )


def _decoder(config: VQGanModelConfig, widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(widths[-1], widths[-1], 3, padding=1)]
    layers += [ResidualBlock(widths[-1]) for _ in range(config.blocks)]
    for before, after in pairwise(reversed(widths)):
        layers.append(nn.ConvTranspose2d(before, after, 2, stride=2))
        layers += [ResidualBlock(after) for _ in range(config.blocks)]
    return nn.Sequential(*layers, nn.GroupNorm(widths[0] // GROUP, widths[0]), nn.SiLU())
