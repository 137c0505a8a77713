"""Owns pictures of sound: the log-mel spectrogram in colours, low tones below, time to the right."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quintet.media.audio_formats import Samples
from quintet.media.image import Pixels
from quintet.media.mel import LogMel

RANGE_DECIBEL = 80.0
"""What lies further below the loudest is black."""
_COLOURS = np.array(
    [(0, 0, 4), (48, 18, 96), (126, 32, 120), (206, 62, 88), (250, 142, 72), (254, 220, 150), (252, 253, 240)], float
)


def spectrogram(samples: Samples | Tensor, rate: int, *, mels: int = 96, width: int | None = None) -> Pixels:
    """A picture (mels x time x 3) of (samples) or (channels, samples), averaged over channels; a pixel is 10 ms, or
    what `width` makes of it. What is no number is silence."""
    waves = torch.nan_to_num(torch.as_tensor(samples).detach().float().cpu(), posinf=0.0, neginf=0.0)
    wave = waves.mean(dim=0) if waves.ndim == 2 else waves
    hop = max(1, rate // 100) if width is None else max(1, wave.shape[-1] // width)
    n_fft = 2 ** max(6, round(np.log2(rate * 0.064)))
    powers = LogMel(rate, n_fft=n_fft, hop=hop, mels=mels).power(wave).numpy()[:, :width]
    decibel = 10 * np.log10(np.maximum(powers, 1e-10))
    shade = np.clip((decibel - decibel.max()) / RANGE_DECIBEL + 1, 0, 1) if powers.max() > 1e-8 else 0 * decibel
    place = shade[::-1] * (len(_COLOURS) - 1)
    below = np.minimum(place.astype(np.int64), len(_COLOURS) - 2)
    mixed = _COLOURS[below] + (place - below)[..., None] * (_COLOURS[below + 1] - _COLOURS[below])
    pixels: Pixels = np.rint(mixed).astype(np.uint8)
    return pixels
