"""Augmentation: hides a band and a stretch of each training clip, some of its patches, and words of its caption.

All of it is drawn for each clip by itself. SpecAugment (1904.08779) silences a band of frequencies and a stretch of
time: never more than half of either, so that there is always something to hear. Captions lose words, so that short
texts, as people search with, mean something too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.families.mulan.config import AudioTowerConfig

MASKS = 4
"""Numbers that a clip's masks take: width and place of the band, and of the stretch."""


def mask_noise(rng: ItemRNG) -> Tensor:
    """What `spec_augment` takes, `(batch, 4)`."""
    return rng.uniform("spectrogram masks", MASKS)


def spec_augment(spectrogram: Tensor, frames: Tensor, masks: Tensor, config: AudioTowerConfig) -> Tensor:
    """Spectrograms `(batch, bins, windows)`, of which so many windows are sound, with a band and a stretch at zero."""
    width, place = masks[:, 0] * config.frequency_mask, masks[:, 1]
    bins = torch.arange(spectrogram.shape[1], device=spectrogram.device)
    hidden = _span(bins, width, place, torch.full_like(width, spectrogram.shape[1]))[:, :, None]
    longest = (frames / 2).clamp(max=config.time_mask)
    windows = torch.arange(spectrogram.shape[2], device=spectrogram.device)
    hidden = hidden | _span(windows, masks[:, 2] * longest, masks[:, 3], frames)[:, None, :]
    return spectrogram.masked_fill(hidden, 0)


def _span(numbers: Tensor, width: Tensor, place: Tensor, length: Tensor) -> Tensor:
    """Which numbers are in a span of this width within the first `length`, in each row; whole numbers alone."""
    width = width.floor()
    start = (place * (length - width + 1)).floor()
    return (numbers >= start[:, None]) & (numbers < (start + width)[:, None])


def drop_words(texts: Sequence[str], rng: ItemRNG, share: float) -> list[str]:
    """Captions without some of their words: half of them whole, of the others up to `share`, never all."""
    most = 2 * rng.uniform("words left out") - 1
    words = [text.split() for text in texts]
    chances = rng.uniform("words", max(map(len, words), default=0))
    return [
        " ".join(_kept(own, row[: len(own)], share * float(rate))) if rate > 0 and own else text
        for text, own, row, rate in zip(texts, words, chances, most, strict=True)
    ]


def _kept(words: list[str], chances: Tensor, share: float) -> list[str]:
    kept = [word for word, chance in zip(words, chances.tolist(), strict=True) if chance >= share]
    return kept or [words[int(chances.argmax())]]


def drop_patches(present: Tensor, order: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """The numbers of the patches that stay, `(batch, kept)`, and which of them hold sound.

    `present` tells which patches hold sound, `order` is a random number for each. Every clip loses a share of its own
    patches, however long the others are.
    """
    counts = present.sum(1)
    staying = counts - (counts * dropout).long()
    longest = present.shape[1] - int(present.shape[1] * dropout)
    kept = torch.where(present, order, order + 1).argsort(dim=1)[:, :longest]
    return kept, torch.arange(longest, device=present.device) < staying[:, None]
