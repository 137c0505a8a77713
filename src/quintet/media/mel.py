"""Log-mel spectrogram in torch, with Slaney's mel scale and area normalisation, as in librosa.

Frame t is centred on sample t * hop_length, with zeros beyond the ends: n samples have n // hop_length + 1 frames.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from quintet.common.precision import at_least_fp32

FLOOR = 1e-5
"""Smallest power before the logarithm."""

_LINEAR_STEP = 200 / 3  # Hz per mel, up to the break
_BREAK = 1000.0
_LOG_STEP = math.log(6.4) / 27  # per mel, above it


def hertz_to_mel(hertz: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Slaney's scale: linear up to 1 kHz, logarithmic above."""
    values = np.asarray(hertz, np.float64)
    above = _BREAK / _LINEAR_STEP + np.log(np.maximum(values, _BREAK) / _BREAK) / _LOG_STEP
    return np.where(values < _BREAK, values / _LINEAR_STEP, above)


def mel_to_hertz(mels: npt.ArrayLike) -> npt.NDArray[np.float64]:
    values = np.asarray(mels, np.float64)
    knee = _BREAK / _LINEAR_STEP
    above = _BREAK * np.exp(_LOG_STEP * np.maximum(values - knee, 0.0))
    return np.where(values < knee, values * _LINEAR_STEP, above)


def mel_filters(rate: int, n_fft: int, n_mels: int, low: float = 0.0, high: float | None = None) -> Tensor:
    """Triangular filters of area one (n_mels, n_fft // 2 + 1), each from the centre of the last to that of the next."""
    edges = mel_to_hertz(np.linspace(hertz_to_mel(low), hertz_to_mel(rate / 2 if high is None else high), n_mels + 2))
    bins = np.arange(n_fft // 2 + 1) * (rate / n_fft)
    widths = np.diff(edges)
    rising = (bins - edges[:-2, None]) / widths[:-1, None]
    falling = (edges[2:, None] - bins) / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return torch.from_numpy((triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32))


class LogMel(nn.Module):
    """Waveforms (..., samples) to the natural logarithm of mel powers (..., n_mels, frames); no parameters."""

    window: Tensor
    filters: Tensor

    def __init__(
        self,
        rate: int,
        *,
        n_fft: int = 1024,
        hop_length: int = 160,
        n_mels: int = 64,
        low: float = 0.0,
        high: float | None = None,
    ) -> None:
        super().__init__()
        self.n_fft = n_fft
        self.hop_length = hop_length
        # They follow from the arguments, so checkpoints do not store them.
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        self.register_buffer("filters", mel_filters(rate, n_fft, n_mels, low, high), persistent=False)

    def frames(self, samples: Tensor) -> Tensor:
        """Number of frames of clips, from their numbers of samples."""
        return samples // self.hop_length + 1

    def power(self, waves: Tensor) -> Tensor:
        """Mel powers (..., n_mels, frames), at least in float32: half precision cannot represent quiet audio."""
        with torch.autocast(waves.device.type, enabled=False):
            exact = at_least_fp32(waves)
            flat, window = exact.reshape(-1, waves.shape[-1]), self.window.to(exact.dtype)
            spectrum = torch.stft(
                flat, self.n_fft, self.hop_length, window=window, pad_mode="constant", return_complex=True
            )
            powers = self.filters.to(exact.dtype) @ (spectrum.real.square() + spectrum.imag.square())
        return powers.reshape(*waves.shape[:-1], *powers.shape[-2:])

    def forward(self, waves: Tensor) -> Tensor:
        return self.power(waves).clamp(min=FLOOR).log()
