"""Augmentation of training pairs: SpecAugment masks and patch dropout for audio, word dropout for captions.

The random numbers are drawn per clip. SpecAugment (1904.08779) masks a frequency band and a time span, never more than
half of either. Word dropout trains on short texts too, as people use them to search.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.families.mulan.config import AudioTowerConfig

MASK_NUMBERS = 4
"""Random numbers per clip: width and position of the frequency band, and of the time span."""


def mask_noise(rng: ItemRNG) -> Tensor:
    """Random numbers (batch, 4) in [0, 1) for `spec_augment`."""
    return rng.uniform("spectrogram masks", MASK_NUMBERS)


def spec_augment(spectrogram: Tensor, frames: Tensor, noise: Tensor, config: AudioTowerConfig) -> Tensor:
    """Spectrograms (batch, bins, frames) with a frequency band and a time span set to zero.

    `frames` (batch,) are the valid frames of each clip, `noise` (batch, 4) is that of `mask_noise`.
    """
    width, position = noise[:, 0] * config.frequency_mask, noise[:, 1]
    bins = torch.arange(spectrogram.shape[1], device=spectrogram.device)
    masked = _span(bins, width, position, torch.full_like(width, spectrogram.shape[1]))[:, :, None]
    longest = (frames / 2).clamp(max=config.time_mask)
    steps = torch.arange(spectrogram.shape[2], device=spectrogram.device)
    masked = masked | _span(steps, noise[:, 2] * longest, noise[:, 3], frames)[:, None, :]
    return spectrogram.masked_fill(masked, 0)


def _span(indices: Tensor, width: Tensor, position: Tensor, length: Tensor) -> Tensor:
    """Mask (batch, indices) of a span of `width` (batch,) at the relative `position` within the first `length`."""
    width = width.floor()
    start = (position * (length - width + 1)).floor()
    return (indices >= start[:, None]) & (indices < (start + width)[:, None])


def drop_words(texts: Sequence[str], rng: ItemRNG, word_dropout: float) -> list[str]:
    """Captions without some of their words: half of them unchanged, the others lose up to this fraction, never all."""
    rates = 2 * rng.uniform("words left out") - 1
    words = [text.split() for text in texts]
    noise = rng.uniform("words", max(map(len, words), default=0))
    return [
        " ".join(_retained(own, row[: len(own)], word_dropout * float(rate))) if rate > 0 and own else text
        for text, own, row, rate in zip(texts, words, noise, rates, strict=True)
    ]


def _retained(words: list[str], noise: Tensor, fraction: float) -> list[str]:
    retained = [word for word, number in zip(words, noise.tolist(), strict=True) if number >= fraction]
    return retained or [words[int(noise.argmax())]]


def drop_patches(valid_mask: Tensor, noise: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """Patch dropout: the indices (batch, retained) of the retained patches, and the mask of the valid ones among them.

    `valid_mask` (batch, patches) marks patches within the clip; `noise` (batch, patches) is random in [0, 1). Each clip
    loses the same fraction of its own patches, whatever the lengths of the others.
    """
    counts = valid_mask.sum(1)
    retained_counts = counts - (counts * dropout).long()
    longest = valid_mask.shape[1] - int(valid_mask.shape[1] * dropout)
    retained = torch.where(valid_mask, noise, noise + 1).argsort(dim=1)[:, :longest]
    return retained, torch.arange(longest, device=valid_mask.device) < retained_counts[:, None]
