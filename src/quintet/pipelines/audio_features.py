"""`AudioFeatureExtractor`: hidden states of an audio model, from which semantic tokens are made."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class AudioFeatureExtractor(Protocol):
    """Frozen, on some device. All its steps of time are equally long."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of its input."""

    @property
    def loudness(self) -> float | None:
        """Loudness that clips are normalised to first, in LUFS; none: they stay as they are."""

    @property
    def token_rate(self) -> float:
        """Steps per second."""

    @property
    def depth(self) -> int:
        """Number of its layers, which are counted from 1."""

    @property
    def digest(self) -> str:
        """A hash of all that the states depend on beside the clip: weights and settings."""

    def hidden_states(self, wave: Tensor, layer: int) -> Tensor:
        """Hidden states (steps, dim) after a layer, of one clip (samples,) of any length; at least one step."""
