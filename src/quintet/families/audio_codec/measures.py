"""Distances between waveforms: log-mel, STFT, relative mean squared error, and SI-SDR.

Every function takes decoded and original waveforms (batch, samples), zero behind the `lengths` of the clips, and
returns one number per clip (batch,), which does not depend on the lengths of the other clips.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quintet.media.mel import FLOOR, LogMel

STFT_WINDOWS = (2048, 1024, 512)
SILENCE_POWER = 1e-8
"""Mean square below which a clip counts as silent."""
MIN_RMS = 3e-3
"""Smallest root mean square that the waveform distance divides by."""


class MelDistance(nn.Module):
    """Mean absolute difference of log-mel spectrograms (natural logarithm: 1 is 4.34 dB), averaged over windows."""

    def __init__(self, rate: int, windows: Sequence[int], mels: int = 80, hop: int | None = None) -> None:
        super().__init__()
        # A short window resolves fewer mel bins.
        self.spectrograms = nn.ModuleList(
            LogMel(rate, n_fft=window, hop_length=hop or max(1, window // 4), n_mels=max(4, min(mels, window // 8)))
            for window in windows
        )

    def forward(self, decoded: Tensor, waves: Tensor, lengths: Tensor) -> Tensor:
        return torch.stack([_distance(each, decoded, waves, lengths) for each in self.spectrograms]).mean(0)


def _distance(spectrogram: nn.Module, decoded: Tensor, waves: Tensor, lengths: Tensor) -> Tensor:
    assert isinstance(spectrogram, LogMel)
    difference = (spectrogram(decoded) - spectrogram(waves)).abs().mean(1)
    return mean_in_time(difference, spectrogram.frames(lengths))


def mean_in_time(values: Tensor, steps: Tensor) -> Tensor:
    """The mean (batch,) of the first `steps` (batch,) values of each row (batch, time)."""
    valid = torch.arange(values.shape[1], device=values.device) < steps[:, None]
    return values.masked_fill(~valid, 0).sum(1) / valid.sum(1).clamp(min=1)


def eval_mel_distance(rate: int) -> MelDistance:
    """The metric `mel_distance` of `eval.json`, whatever the loss: 80 bins, windows of about 64 ms every 10 ms."""
    window = 2 ** max(6, round(torch.log2(torch.tensor(rate * 0.064)).item()))
    return MelDistance(rate, [window], hop=max(1, rate // 100))


def stft_distance(decoded: Tensor, waves: Tensor, lengths: Tensor) -> Tensor:
    """Mean absolute difference of log-magnitude spectrograms (natural logarithm), averaged over three windows."""
    distances = []
    for window in STFT_WINDOWS:
        ours, target = (_magnitudes(each, window).clamp(min=FLOOR**0.5).log() for each in (decoded, waves))
        distances.append(mean_in_time((ours - target).abs().mean(1), lengths // (window // 4) + 1))
    return torch.stack(distances).mean(0)


def _magnitudes(waves: Tensor, window: int) -> Tensor:
    """Magnitude spectrograms (batch, bins, frames)."""
    hann = torch.hann_window(window, device=waves.device, dtype=waves.dtype)
    spectrum = torch.stft(waves, window, window // 4, window=hann, pad_mode="constant", return_complex=True)
    return spectrum.abs()


def waveform_distance(decoded: Tensor, waves: Tensor, lengths: Tensor) -> Tensor:
    """Mean squared error relative to the power of the clip, so that quiet clips count as much as loud ones."""
    power = mean_in_time(waves.square(), lengths).clamp(min=MIN_RMS**2)
    return mean_in_time((decoded - waves).square(), lengths) / power


def si_sdr(decoded: Tensor, waves: Tensor) -> Tensor:
    """Scale-invariant signal-to-distortion ratio in dB (1811.02508)."""
    scale = (decoded * waves).sum(1) / waves.square().sum(1).clamp(min=SILENCE_POWER)
    signal = scale[:, None] * waves
    noise = decoded - signal
    ratio = (signal.square().sum(1) + SILENCE_POWER) / (noise.square().sum(1) + SILENCE_POWER)
    return 10 * ratio.log10()


def audible(waves: Tensor, lengths: Tensor) -> Tensor:
    """Mask (batch,) of the clips that are not silent."""
    return waves.square().sum(1) > SILENCE_POWER * lengths
