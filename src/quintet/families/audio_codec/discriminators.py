"""Multi-resolution STFT and multi-period discriminators, and their losses.

All see the same waves and put out maps (batch, channels, time, place), each with the samples of one of its steps in
time; the last map of each holds its logits. What lies beyond the end of a clip takes no part in any loss, and every
loss is a mean over clips of means within a clip, so that it does not depend on how a batch is cut.
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
"""What one discriminator sees in the waves, layer by layer, each with the samples of a step in time."""
SLOPE = 0.1


class SpectrumDiscriminator(nn.Module):
    """Convolutions over the complex spectrum, time by frequency (EnCodec, 2210.13438)."""

    window: Tensor

    def __init__(self, dim: int, window: int) -> None:
        super().__init__()
        self.hop = max(1, window // 4)
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        layers = [nn.Conv2d(2, dim, (3, 9), padding=(1, 4))]
        # Further and further in time, coarser and coarser in frequency.
        layers += [
            nn.Conv2d(dim, dim, (3, 9), stride=(1, 2), dilation=(dilation, 1), padding=(dilation, 4))
            for dilation in (1, 2, 4)
        ]
        layers += [nn.Conv2d(dim, dim, (3, 3), padding=1), nn.Conv2d(dim, 1, (3, 3), padding=1)]
        self.layers = nn.ModuleList(weight_norm(layer) for layer in layers)

    def forward(self, waves: Tensor) -> Maps:
        with torch.autocast(waves.device.type, enabled=False):
            exact = at_least_fp32(waves)
            size, shape = len(self.window), self.window.to(exact.dtype)
            spectrum = torch.stft(
                exact, size, self.hop, window=shape, pad_mode="constant", normalized=True, return_complex=True
            )
        x = torch.stack([spectrum.real, spectrum.imag], dim=1).transpose(2, 3)
        maps = through(self.layers, x)
        return [(each, self.hop) for each in maps]


class PeriodDiscriminator(nn.Module):
    """Convolutions over every n-th sample, so that what repeats stands side by side (HiFi-GAN, 2010.05646)."""

    def __init__(self, dim: int, period: int) -> None:
        super().__init__()
        self.period = period
        widths = [1, dim, 2 * dim, 4 * dim]
        layers = [nn.Conv2d(before, after, (5, 1), stride=(3, 1), padding=(2, 0)) for before, after in pairwise(widths)]
        layers += [nn.Conv2d(4 * dim, 4 * dim, (5, 1), padding=(2, 0)), nn.Conv2d(4 * dim, 1, (3, 1), padding=(1, 0))]
        self.layers = nn.ModuleList(weight_norm(layer) for layer in layers)
        self.steps = [period * 3**number for number in (1, 2, 3, 3, 3)]

    def forward(self, waves: Tensor) -> Maps:
        whole = F.pad(waves, (0, -waves.shape[1] % self.period))
        rows = whole.reshape(len(waves), 1, -1, self.period)
        return list(zip(through(self.layers, rows), self.steps, strict=True))


def through(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    """What every layer puts out; the last one without activation."""
    maps: list[Tensor] = []
    for layer in layers:
        x = layer(F.leaky_relu(x, SLOPE) if maps else x)
        maps.append(x)
    return maps


class CodecDiscriminator(nn.Module):
    """All of them: waves (batch, samples) to the maps of each."""

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
    """Real logits should be large (hinge) or one (least squares), those of what was made small or zero; (batch,)."""
    if kind == "hinge":
        return (judged(real, lengths, lambda x: F.relu(1 - x)) + judged(fake, lengths, lambda x: F.relu(1 + x))) / 2
    return (judged(real, lengths, lambda x: (1 - x).square()) + judged(fake, lengths, torch.square)) / 2


def generator_loss(kind: Kind, fake: Sequence[Maps], lengths: Tensor) -> Tensor:
    """What was made should pass for real, (batch,)."""
    return judged(fake, lengths, torch.neg if kind == "hinge" else lambda x: (1 - x).square())


def judged(judges: Sequence[Maps], lengths: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean of a loss of the logits over the sound of each clip and over discriminators, (batch,)."""
    return torch.stack([mean_in_clip(loss(maps[-1][0]), maps[-1][1], lengths) for maps in judges]).mean(0)


def feature_distance(real: Sequence[Maps], fake: Sequence[Maps], lengths: Tensor) -> Tensor:
    """How far the features of what was made are from those of the real sound, as a share of their size, (batch,)."""
    distances = []
    for ours, theirs in zip(real, fake, strict=True):
        for (wanted, step), (found, _) in zip(ours[:-1], theirs[:-1], strict=True):
            size = mean_in_clip(wanted.abs(), step, lengths).detach()
            apart = mean_in_clip((found - wanted.detach()).abs(), step, lengths)
            distances.append(apart / size.clamp(min=1e-5))
    return torch.stack(distances).mean(0)


def mean_in_clip(values: Tensor, step: int, lengths: Tensor) -> Tensor:
    """The mean of each clip's map over the steps in which there is sound, (batch,)."""
    exact = at_least_fp32(values)
    return mean_in_time(exact.mean((1, 3)), (lengths + step - 1) // step)
