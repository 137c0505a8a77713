"""`AudioFeatureExtractor`: hidden states of a model that hears audio, from which semantic tokens are made."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class AudioFeatureExtractor(Protocol):
    """Frozen, on some device. All its steps of time are equally long."""

    @property
    def rate(self) -> int:
        """Samples a second of what it hears."""

    @property
    def loudness(self) -> float | None:
        """What clips are brought to before it hears them, in LUFS; none: they stay as they are."""

    @property
    def token_rate(self) -> float:
        """Steps a second."""

    @property
    def depth(self) -> int:
        """The last of its layers, which are numbered from 1."""

    @property
    def digest(self) -> str:
        """A hash of all that what it hears depends on, but for the clip."""

    def states(self, wave: Tensor, layer: int) -> Tensor:
        """Vectors (steps, dim) behind a layer, of one clip (samples), however long it is; at least one."""
