"""Stereo as two signals of a mono codec: the mean of left and right (mid), and half of their difference (side).

The layers see both signals of a clip as two rows of a batch, and the quantizer sees their latents side by side, so that
each signal has codebooks of its own. A clip of two equal channels is its mono clip, and a side of zeros.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor


def to_signals(waves: Tensor) -> Tensor:
    """Mid and side (2 * batch, samples) of stereo waveforms (batch, 2, samples); mono (batch, samples) as it is."""
    if waves.ndim == 2:
        return waves
    left, right = waves.unbind(1)
    return torch.stack([(left + right) / 2, (left - right) / 2], dim=1).flatten(0, 1)


def from_signals(signals: Tensor, channels: int) -> Tensor:
    """The inverse: waveforms (batch, 2, samples) of mid and side (2 * batch, samples); mono as it is."""
    if channels == 1:
        return signals
    mid, side = signals[0::channels], signals[1::channels]
    return torch.stack([mid + side, mid - side], dim=1)


def per_signal(values: Tensor, channels: int) -> Tensor:
    """Values of clips (batch, ...) repeated for each of their signals: (channels * batch, ...)."""
    return values if channels == 1 else values.repeat_interleave(channels, dim=0)


def joined(latents: Tensor, channels: int, parts: int) -> Tensor:
    """Latents (channels * batch, dim, frames) of signals as vectors of clips, (batch, frames, channels * dim).

    `parts` are the parts of a latent vector with quantizers of their own; the first part of all signals comes first.
    """
    if channels == 1:
        return latents.transpose(1, 2)
    return rearrange(latents, "(b c) (p d) t -> b t (p c d)", c=channels, p=parts)


def separated(vectors: Tensor, channels: int, parts: int) -> Tensor:
    """The inverse: vectors (batch, frames, channels * dim) as latents (channels * batch, dim, frames) of signals."""
    if channels == 1:
        return vectors.transpose(1, 2)
    return rearrange(vectors, "b t (p c d) -> (b c) (p d) t", c=channels, p=parts)
