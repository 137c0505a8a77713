"""`MuLaNFeatures`: hidden states of the audio tower as an `AudioFeatureExtractor`, one vector per time step.

A time step is one column of patches: `model.audio.patch_size` spectrogram frames of `model.audio.hop_length` samples.
Its vector is the mean over the patches of all frequency bands. A clip is processed in consecutive windows of the
length used in training, rounded to whole time steps, because later positions were never trained.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from quintet.common.weights.loading import weights_digest
from quintet.families.mulan.config import MuLaNConfig
from quintet.families.mulan.model import MuLaN
from quintet.families.mulan.towers import AudioSpectrogramTransformer

WINDOWS_AT_ONCE = 16
"""Batch size for the windows of a long clip."""


class MuLaNFeatures:
    """The `AudioFeatureExtractor` of a MuLaN."""

    def __init__(self, mulan: MuLaN, config: MuLaNConfig) -> None:
        self.mulan = mulan
        assert isinstance(mulan.audio, AudioSpectrogramTransformer)
        self.tower = mulan.audio
        self.loudness = config.data.loudness
        self.seconds = config.data.seconds

    @property
    def sample_rate(self) -> int:
        return self.tower.config.sample_rate

    @property
    def token_rate(self) -> float:
        return self.sample_rate / self._step

    @property
    def depth(self) -> int:
        return self.tower.config.depth

    @cached_property
    def digest(self) -> str:
        return weights_digest(f"mulan {self.seconds:g} s", self.mulan)

    @torch.no_grad()
    def hidden_states(self, wave: Tensor, layer: int) -> Tensor:
        wave = wave.to(self.tower.mean)
        window = self._step * max(1, int(self.seconds * self.sample_rate / self._step))
        whole = wave[: len(wave) // window * window].view(-1, window)
        parts = [
            self._states(windows, layer).flatten(0, 1)
            for windows in torch.split(whole, WINDOWS_AT_ONCE)
            if len(windows)
        ]
        rest = wave[whole.numel() :]
        if len(rest):
            parts.append(self._states(rest[None], layer)[0])
        return torch.cat(parts)

    def _states(self, waves: Tensor, layer: int) -> Tensor:
        """Hidden states (windows, steps, dim) of windows (windows, samples)."""
        lengths = torch.full((len(waves),), waves.shape[1], device=waves.device)
        # A window of whole time steps has one extra column at its end.
        return self.tower.hidden_states(waves, lengths, layer)[:, : -(-waves.shape[1] // self._step)]

    @property
    def _step(self) -> int:
        """Samples per time step."""
        return self.tower.config.hop_length * self.tower.config.patch_size
