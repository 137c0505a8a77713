"""Distances between sounds: of mel spectra, of plain spectra (STFT), and of waves (SI-SDR).

Every function takes waves (batch, samples) with silence behind the `lengths` of the clips, and gives a number for each
clip that does not depend on how long the others are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quintet.media.mel import FLOOR, LogMel

STFT_WINDOWS = (2048, 1024, 512)
QUIETEST = 1e-8
"""Mean square of a clip that is silent."""
LOWEST_LEVEL = 3e-3
"""Root mean square of the clips below which the waveform is no longer compared with its own power."""


class MelDistance(nn.Module):
    """The mean absolute difference of natural logarithms of mel powers (4.34 dB is one), averaged over windows."""

    def __init__(self, rate: int, windows: Sequence[int], mels: int = 80, hop: int | None = None) -> None:
        super().__init__()
        # As many bins as a short window can tell apart.
        self.spectrograms = nn.ModuleList(
            LogMel(rate, n_fft=window, hop=hop or max(1, window // 4), mels=max(4, min(mels, window // 8)))
            for window in windows
        )

    def forward(self, made: Tensor, waves: Tensor, lengths: Tensor) -> Tensor:
        return torch.stack([_distance(each, made, waves, lengths) for each in self.spectrograms]).mean(0)


def _distance(spectrogram: nn.Module, made: Tensor, waves: Tensor, lengths: Tensor) -> Tensor:
    assert isinstance(spectrogram, LogMel)
    apart = (spectrogram(made) - spectrogram(waves)).abs().mean(1)
    return mean_in_time(apart, spectrogram.frames(lengths))


def mean_in_time(values: Tensor, steps: Tensor) -> Tensor:
    """The mean of each row (batch, time) over its first so many steps."""
    there = torch.arange(values.shape[1], device=values.device) < steps[:, None]
    return values.masked_fill(~there, 0).sum(1) / there.sum(1).clamp(min=1)


def eval_mel_distance(rate: int) -> MelDistance:
    """What `mel_distance` in `eval.json` means, whatever the loss is: 80 bins, windows of about 64 ms every 10 ms."""
    window = 2 ** max(6, round(torch.log2(torch.tensor(rate * 0.064)).item()))
    return MelDistance(rate, [window], hop=max(1, rate // 100))


def stft_distance(made: Tensor, waves: Tensor, lengths: Tensor) -> Tensor:
    """The mean absolute difference of natural logarithms of magnitudes, averaged over three windows."""
    distances = []
    for window in STFT_WINDOWS:
        found, wanted = (_magnitudes(each, window).clamp(min=FLOOR**0.5).log() for each in (made, waves))
        distances.append(mean_in_time((found - wanted).abs().mean(1), lengths // (window // 4) + 1))
    return torch.stack(distances).mean(0)


def _magnitudes(waves: Tensor, window: int) -> Tensor:
    """(batch, bins, frames)"""
    shape = torch.hann_window(window, device=waves.device, dtype=waves.dtype)
    spectrum = torch.stft(waves, window, window // 4, window=shape, pad_mode="constant", return_complex=True)
    return spectrum.abs()


def waveform_distance(made: Tensor, waves: Tensor, lengths: Tensor) -> Tensor:
    """The power of the difference as a share of the clip's own: quiet clips count as loud ones do."""
    power = mean_in_time(waves.square(), lengths).clamp(min=LOWEST_LEVEL**2)
    return mean_in_time((made - waves).square(), lengths) / power


def si_sdr(made: Tensor, waves: Tensor) -> Tensor:
    """The scale-invariant signal-to-distortion ratio in dB (1811.02508)."""
    scale = (made * waves).sum(1) / waves.square().sum(1).clamp(min=QUIETEST)
    signal = scale[:, None] * waves
    noise = made - signal
    ratio = (signal.square().sum(1) + QUIETEST) / (noise.square().sum(1) + QUIETEST)
    return 10 * ratio.log10()


def audible(waves: Tensor, lengths: Tensor) -> Tensor:
    """Which clips hold anything but silence."""
    return waves.square().sum(1) > QUIETEST * lengths
