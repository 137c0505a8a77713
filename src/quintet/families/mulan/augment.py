"""Augmentation of training pairs: SpecAugment masks and patch dropout for audio, word dropout and swaps for captions.

The random numbers are drawn per clip. SpecAugment (1904.08779) masks a frequency band and a time span, never more than
half of either. Word dropout trains on short texts too, as people use them to search. A swap makes a hard negative: a
caption with a part of another one (TextSwap of 2409.11498, with the captions of the batch in the place of a list of
tags).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.families.mulan.config import AudioTowerConfig

_SEPARATOR = re.compile("[,;]")
"""Between the parts of a caption."""
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


def swap_parts(texts: Sequence[str], rng: ItemRNG, probability: float) -> list[str]:
    """Captions in which one part is that of another caption, in the same position; "" where none is made.

    Parts are what commas and semicolons separate, or else words. The caption of each item is chosen with `probability`,
    and one is made if any other caption has a part there that it has not.
    """
    chosen = rng.uniform("text swap") < probability
    first, position = rng.uniform("text swap donor"), rng.uniform("text swap part")
    others = len(texts) - 1
    swapped = []
    for row, text in enumerate(texts):
        offsets = [(int(float(first[row]) * others) + step) % others for step in range(others)] if chosen[row] else []
        found = (_swapped(text, texts[(row + 1 + offset) % len(texts)], float(position[row])) for offset in offsets)
        swapped.append(next(filter(None, found), ""))
    return swapped


def _swapped(text: str, donor: str, position: float) -> str:
    """A text with one part of the donor, or "" if no part differs; `position` in [0, 1) chooses among those that do.

    A text in parts is not mixed with one that has only words.
    """
    in_parts = [len(_SEPARATOR.split(each)) > 1 for each in (text, donor)]
    if in_parts[0] != in_parts[1]:
        return ""
    own, other = (
        [part.strip() for part in _SEPARATOR.split(each)] if in_parts[0] else each.split() for each in (text, donor)
    )
    known, foreign = ({part.casefold() for part in parts} for parts in (own, other))
    places = [
        place
        for place, (mine, yours) in enumerate(zip(own, other, strict=False))
        if mine and yours and mine.casefold() not in foreign and yours.casefold() not in known
    ]
    if not places:
        return ""
    place = places[int(position * len(places))]
    return (", " if in_parts[0] else " ").join([*own[:place], other[place], *own[place + 1 :]])


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
