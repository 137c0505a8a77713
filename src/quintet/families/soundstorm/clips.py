"""Generated clips: their samples, which of a long clip are decoded when they are needed, and their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.families.soundstorm import windows
from quintet.media.audio import write_audio, write_chunks
from quintet.media.chart import spectrogram
from quintet.media.image_decoding import Pixels

SPECTROGRAM_WIDTH = 320
"""Pixels of the time axis."""


@dataclass(frozen=True)
class Clip:
    """One generated clip of whole frames; without `wave`, its codes are decoded chunk by chunk when it is read."""

    codec: Any
    codes: Tensor
    """(frames, quantizers)"""
    inference: Callable[[], AbstractContextManager[None]]
    """The context of a forward pass."""
    wave: Tensor | None = None
    """(samples,) or (2, samples), on the CPU"""

    def chunks(self) -> Iterator[Tensor]:
        """Its samples, a chunk at a time."""
        if self.wave is not None:
            return iter((self.wave,))
        return windows.decoded_chunks(self.codec, self.codes, self.inference)

    def samples(self) -> Tensor:
        """All of its samples, (samples,) or (2, samples)."""
        return torch.cat([*self.chunks()], dim=-1)

    def write(self, path: Path) -> None:
        """Write a WAV file; of a long clip only a chunk is in memory."""
        if self.wave is not None:
            write_audio(self.wave, path, self.codec.sample_rate)
        else:
            write_chunks(self.chunks(), path, self.codec.sample_rate)

    def spectrogram(self) -> Pixels:
        """Its spectrogram; that of a long clip, which covers all of it, is made of those of its chunks."""
        rate = self.codec.sample_rate
        if self.wave is not None:
            return spectrogram(self.wave, rate, width=SPECTROGRAM_WIDTH)
        total = len(self.codes) * self.codec.hop
        parts = [
            spectrogram(chunk, rate, width=max(1, SPECTROGRAM_WIDTH * chunk.shape[-1] // total))
            for chunk in self.chunks()
        ]
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True)
class GeneratedAudio:
    """Generated clips; with target embeddings also their MuLaN embeddings and scores."""

    clips: list[Clip]
    vectors: Tensor | None = None
    """(clips, dim)"""
    scores: Tensor | None = None
    """(clips,): cosine similarity to the target embeddings."""

    @property
    def waves(self) -> list[Tensor]:
        """Clips (samples,) or (2, samples), on the CPU."""
        return [clip.samples() for clip in self.clips]

    @property
    def mono(self) -> list[Tensor]:
        """Clips (samples,), mixed to mono."""
        return [to_mono(wave) for wave in self.waves]


def to_mono(wave: Tensor) -> Tensor:
    """Samples (samples,) of (samples,) or (2, samples)."""
    return wave if wave.ndim == 1 else wave.mean(0)


def better_of(best: GeneratedAudio, candidate: GeneratedAudio) -> GeneratedAudio:
    """Of each clip the one with the higher score; of equal scores the earlier one."""
    assert best.scores is not None
    assert best.vectors is not None
    assert candidate.scores is not None
    assert candidate.vectors is not None
    higher = candidate.scores > best.scores
    clips = [
        new if better else old for old, new, better in zip(best.clips, candidate.clips, higher.tolist(), strict=True)
    ]
    vectors = torch.where(higher[:, None], candidate.vectors, best.vectors)
    return GeneratedAudio(clips, vectors, torch.maximum(best.scores, candidate.scores))
