"""`Rates`: samples, frames and bits per second, levels and codes of any audio codec."""

from __future__ import annotations

import math

from torch import Tensor

from quintet.families.audio_codec.config import AudioCodecModelConfig


class Rates:
    """What follows from a codec's configuration and from how many samples a frame has."""

    config: AudioCodecModelConfig
    hop: int
    """Samples of a frame."""

    @property
    def num_codes(self) -> int:
        """The vocabulary of each level."""
        return self.config.codebook_size

    @property
    def levels(self) -> int:
        return self.config.levels

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.config.rate

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.rate / self.hop

    @property
    def bitrate(self) -> float:
        """Bits a second of codes of all levels."""
        return self.frame_rate * self.levels * math.log2(self.num_codes)

    def frames(self, samples: Tensor) -> Tensor:
        """Frames of clips of so many samples."""
        return (samples + self.hop - 1) // self.hop
