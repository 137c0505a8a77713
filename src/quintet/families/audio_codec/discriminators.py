"""Multi-resolution STFT and multi-period discriminators, and their losses.

Every discriminator takes the same waveforms and returns feature maps (batch, channels, time, frequency or phase), each
with its hop length in samples; the last map holds the logits. Padding behind a clip takes part in no loss. Every loss
is a mean over clips of means within a clip, so that it does not depend on how a batch is split into micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from quintet.common.precision import at_least_fp32
from quintet.families.audio_codec.config import AudioCodecLossConfig
from quintet.families.audio_codec.measures import mean_in_time

Kind = Literal["hinge", "least-squares"]
Maps = list[tuple[Tensor, int]]
"""Feature maps of one discriminator, one per layer, each with its hop length in samples."""
LEAKY_SLOPE = 0.1


class SpectrumDiscriminator(nn.Module):
    """STFT discriminator: 2D convolutions over the complex spectrogram (EnCodec, 2210.13438)."""

    window: Tensor

    def __init__(self, dim: int, window: int) -> None:
        super().__init__()
        self.hop = max(1, window // 4)
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        layers = [nn.Conv2d(2, dim, (3, 9), padding=(1, 4))]
        # The dilation in time grows, the resolution in frequency falls.
        layers += [
            nn.Conv2d(dim, dim, (3, 9), stride=(1, 2), dilation=(dilation, 1), padding=(dilation, 4))
            for dilation in (1, 2, 4)
        ]
        layers += [nn.Conv2d(dim, dim, (3, 3), padding=1), nn.Conv2d(dim, 1, (3, 3), padding=1)]
        self.layers = nn.ModuleList(weight_norm(layer) for layer in layers)

    def forward(self, waves: Tensor) -> Maps:
        with torch.autocast(waves.device.type, enabled=False):
            exact = at_least_fp32(waves)
            size, window = len(self.window), self.window.to(exact.dtype)
            spectrum = torch.stft(
                exact, size, self.hop, window=window, pad_mode="constant", normalized=True, return_complex=True
            )
        x = torch.stack([spectrum.real, spectrum.imag], dim=1).transpose(2, 3)
        maps = layer_outputs(self.layers, x)
        return [(each, self.hop) for each in maps]


class PeriodDiscriminator(nn.Module):
    """Multi-period discriminator: 2D convolutions over the waveform folded by its period (HiFi-GAN, 2010.05646)."""

    def __init__(self, dim: int, period: int) -> None:
        super().__init__()
        self.period = period
        widths = [1, dim, 2 * dim, 4 * dim]
        layers = [nn.Conv2d(before, after, (5, 1), stride=(3, 1), padding=(2, 0)) for before, after in pairwise(widths)]
        layers += [nn.Conv2d(4 * dim, 4 * dim, (5, 1), padding=(2, 0)), nn.Conv2d(4 * dim, 1, (3, 1), padding=(1, 0))]
        self.layers = nn.ModuleList(weight_norm(layer) for layer in layers)
        self.hops = [period * 3**number for number in (1, 2, 3, 3, 3)]

    def forward(self, waves: Tensor) -> Maps:
        padded = F.pad(waves, (0, -waves.shape[1] % self.period))
        rows = padded.reshape(len(waves), 1, -1, self.period)
        return list(zip(layer_outputs(self.layers, rows), self.hops, strict=True))


def layer_outputs(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    """The outputs of all layers, before their activations."""
    maps: list[Tensor] = []
    for layer in layers:
        x = layer(F.leaky_relu(x, LEAKY_SLOPE) if maps else x)
        maps.append(x)
    return maps


class CodecDiscriminator(nn.Module):
    """All discriminators: waveforms (batch, samples) to the feature maps of each."""

    def __init__(self, config: AudioCodecLossConfig) -> None:
        super().__init__()
        dim = config.discriminator_dim
        self.judges = nn.ModuleList(
            [SpectrumDiscriminator(dim, window) for window in config.stft_windows]
            + [PeriodDiscriminator(dim, period) for period in config.periods]
        )

    def forward(self, waves: Tensor) -> list[Maps]:
        return [judge(waves) for judge in self.judges]


# --- losses -----------------------------------------------------------------------------------------------------


def discriminator_loss(kind: Kind, real: Sequence[Maps], fake: Sequence[Maps], lengths: Tensor) -> Tensor:
    """Discriminator loss (batch,) of the feature maps of real and decoded audio."""
    if kind == "hinge":
        return (
            mean_over_logits(real, lengths, lambda x: F.relu(1 - x))
            + mean_over_logits(fake, lengths, lambda x: F.relu(1 + x))
        ) / 2
    return (
        mean_over_logits(real, lengths, lambda x: (1 - x).square()) + mean_over_logits(fake, lengths, torch.square)
    ) / 2


def generator_loss(kind: Kind, fake: Sequence[Maps], lengths: Tensor) -> Tensor:
    """Adversarial generator loss (batch,) of the feature maps of decoded audio."""
    return mean_over_logits(fake, lengths, torch.neg if kind == "hinge" else lambda x: (1 - x).square())


def mean_over_logits(discriminators: Sequence[Maps], lengths: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean (batch,) of a function of the logits over each clip and over the discriminators."""
    return torch.stack([mean_in_clip(loss(maps[-1][0]), maps[-1][1], lengths) for maps in discriminators]).mean(0)


def feature_distance(real: Sequence[Maps], fake: Sequence[Maps], lengths: Tensor) -> Tensor:
    """Feature-matching loss (batch,): L1 distance of the features, relative to the magnitude of the real ones."""
    distances = []
    for real_maps, fake_maps in zip(real, fake, strict=True):
        for (target, hop), (features, _) in zip(real_maps[:-1], fake_maps[:-1], strict=True):
            magnitude = mean_in_clip(target.abs(), hop, lengths).detach()
            distance = mean_in_clip((features - target.detach()).abs(), hop, lengths)
            distances.append(distance / magnitude.clamp(min=1e-5))
    return torch.stack(distances).mean(0)


def mean_in_clip(values: Tensor, hop: int, lengths: Tensor) -> Tensor:
    """The mean (batch,) of maps (batch, channels, time, …) over the time steps within each clip."""
    exact = at_least_fp32(values)
    return mean_in_time(exact.mean((1, 3)), (lengths + hop - 1) // hop)
