"""`AudioFeatureExtractor`: hidden states of an audio model, which k-means turns into semantic tokens."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class AudioFeatureExtractor(Protocol):
    """A frozen audio model. All its time steps have the same duration."""

    @property
    def sample_rate(self) -> int:
        """Sampling rate of its input, in Hz."""

    @property
    def loudness(self) -> float | None:
        """Loudness that clips are normalised to before encoding, in LUFS; None leaves them unchanged."""

    @property
    def token_rate(self) -> float:
        """Time steps per second of its output."""

    @property
    def depth(self) -> int:
        """Number of layers; layers are numbered from 1."""

    @property
    def digest(self) -> str:
        """A hash of everything that the hidden states depend on besides the clip: weights and settings."""

    def hidden_states(self, wave: Tensor, layer: int) -> Tensor:
        """Hidden states (steps, dim) after a layer, for one clip (samples,) of any length; at least one step."""
