"""Owns the way to sound: codes by SoundStorm, waves by the codec, and of several candidates the one a MuLaN prefers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG, seed_from
from quintet.families.soundstorm.conditioning import Told
from quintet.families.soundstorm.config import SoundStormSampleConfig
from quintet.families.soundstorm.decoding import canvas, for_levels
from quintet.families.soundstorm.listening import Listener
from quintet.families.soundstorm.model import SoundStorm
from quintet.sampling import masked


@dataclass(frozen=True)
class Heard:
    """What a MuLaN hears in clips: their vectors, and how near each is to what was wanted."""

    vectors: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Made:
    """Clips (samples) of whole frames, without padding, on the CPU."""

    waves: list[Tensor]
    heard: Heard | None = None


@dataclass(frozen=True)
class Studio:
    """A model with the codec whose codes it fills in, and the MuLaN that tells it what to make, if there is one."""

    model: SoundStorm
    codec: Any
    listener: Listener | None
    settings: Sequence[masked.Sampling]
    """Of each level."""
    best_of: int = 1
    """Candidates for each clip of which it is known what it should be."""

    def make_from_texts(self, texts: Sequence[str], draw: ItemRNG, frames: int, prompt: Tensor | None = None) -> Made:
        """Clips of so many frames; an empty text is none. The prompt (1, frames of it, levels) begins all of them."""
        device = self.model.head_weights.device
        there = torch.ones(len(texts), frames, dtype=torch.bool, device=device)
        wanted = clip = keep = None
        if self.listener is not None:
            wanted = self.listener.read(texts)
            clip, keep = self.listener.told(wanted), torch.tensor([bool(text) for text in texts])
        told = self.model.tell(there, clip=clip, keep=keep)
        return self.make(told, draw, wanted, None if prompt is None else prompt.to(device).expand(len(texts), -1, -1))

    def make(self, told: Told, draw: ItemRNG, wanted: Tensor | None = None, prompt: Tensor | None = None) -> Made:
        """Clips of which this is told. `wanted` are the vectors (clips, dim) that they should come near to."""
        given = canvas(told["frames"], self.model.levels, prompt)
        best: Made | None = None
        for candidate in range(self.best_of if wanted is not None else 1):
            own = ItemRNG(seed_from(draw.seed, candidate), draw.epochs, draw.items) if candidate else draw
            waves = self.waves(self.model.generate(given, told, own, self.settings), told["frames"])
            if self.listener is None or wanted is None:
                return Made(waves)
            vectors = self.listener.hear(waves, self.codec.rate)
            heard = Heard(vectors, (vectors * wanted.to(vectors)).sum(1))
            best = Made(waves, heard) if best is None else _better(best, waves, heard)
        assert best is not None
        return best

    def waves(self, codes: Tensor, frames: Tensor) -> list[Tensor]:
        """What the codec makes of codes (clips, frames, levels), of which those are there that `frames` says."""
        lengths = (frames.sum(1) * self.codec.hop).tolist()
        return [wave[:length] for wave, length in zip(self.codec.decode(codes).float().cpu(), lengths, strict=True)]


def level_settings(config: SoundStormSampleConfig, guidance: float, levels: int) -> list[masked.Sampling]:
    """How each level is decoded; steps of levels that the codec does not have are left out."""
    settings = masked.settings_of(config, config.steps[0], guidance, config.top_k, config.greedy_end)
    return for_levels(settings, config.steps[:levels], levels)


def _better(best: Made, waves: Sequence[Tensor], heard: Heard) -> Made:
    """Clip by clip the one with the higher score; of equals the earlier."""
    assert best.heard is not None
    higher = heard.scores > best.heard.scores
    chosen = [new if better else old for old, new, better in zip(best.waves, waves, higher.tolist(), strict=True)]
    vectors = torch.where(higher[:, None], heard.vectors, best.heard.vectors)
    return Made(chosen, Heard(vectors, torch.maximum(best.heard.scores, heard.scores)))
