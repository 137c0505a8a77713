"""A lapped transform in polar form: magnitude and phase of each frequency of a frame, from samples and back.

A lapped cosine transform (MDCT; Princen and Bradley 1986) is invertible, but its coefficients oscillate with the phase
of a tone. The same transform with sines (MDST) completes it: together they give the magnitude of a frequency whatever
its phase. The vector of a frame holds `size` log-magnitudes, then `size` cosine coefficients relative to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from quintet.common.precision import at_least_fp32
from quintet.families.audio_codec.layers import Conv, FrameMask, Layer, Memory, Upsample

QUIET = 0.01
"""Magnitude that counts as silence. A full-scale tone has a magnitude of ten or more."""
MAX_LOG_MAGNITUDE = 14.0
"""Upper limit of the log-magnitudes of a vector."""
NEGLIGIBLE = 1e-12
WEAK = 0.1
"""Fraction of a frame's largest magnitude: weaker frequencies get a synthetic phase where the codes give none."""
CODED_EXPONENT = 16
"""How quickly strong frequencies stop getting synthetic phases as more of the frame has coded phases."""
PHASE_STD = 3.0
"""Standard deviation of the synthetic phases over frames, in radians."""


class ToPolar(Layer):
    """Waveform (batch, 1, samples) to vectors (batch, 2 * size, frames) of frames of `size` samples.

    Not learned: each coefficient sums over many samples, so a small step of all their weights would be large.
    """

    def __init__(self, size: int, *, causal: bool) -> None:
        super().__init__()
        self.conv = Conv(1, 2 * size, 2 * size, stride=size, causal=causal)
        with torch.no_grad():
            bases = [basis(size, causal, wave) for wave in (torch.cos, torch.sin)]
            self.conv.conv.weight.copy_(torch.cat(bases)[:, None])
        self.conv.requires_grad_(False)

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        return self._polar(self.conv(x, mask))

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        return self._polar(self.conv.stream(x, memory, last))

    def _polar(self, x: Tensor) -> Tensor:
        # Half precision is too coarse for phases.
        cosine, sine = at_least_fp32(x).chunk(2, dim=1)
        magnitude = (cosine.square() + sine.square() + NEGLIGIBLE).sqrt()
        # Divided by the root of the magnitude, so that quiet frequencies count as well.
        return torch.cat([(magnitude / QUIET).log1p(), cosine / (magnitude + QUIET).sqrt()], dim=1)


class FromPolar(Layer):
    """The inverse: vectors (batch, 2 * size, frames) to a waveform (batch, 1, samples).

    No coefficient exceeds the magnitude of its frequency, so that the gaps between tones stay silent despite noise in
    the coded phases. A weak frequency without a coded phase gets a pseudo-random one, a function of the vector:
    listeners hear that such a frequency is present, but not its phase.
    """

    def __init__(self, size: int, *, causal: bool) -> None:
        super().__init__()
        self.upsample = Upsample(size, 1, size, causal=causal)
        _make_inverse(self.upsample, size, causal)
        self.upsample.requires_grad_(False)
        self.phase_projection: Tensor
        projection = torch.randn(size, 2 * size, generator=torch.Generator().manual_seed(0))
        self.register_buffer("phase_projection", PHASE_STD * size**-0.5 * projection, persistent=False)

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        return self.upsample(self._coefficients(x), mask)  # type: ignore[no-any-return]

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        return self.upsample.stream(self._coefficients(x), memory, last)

    def _coefficients(self, x: Tensor) -> Tensor:
        # Half precision is too coarse for phases.
        x = at_least_fp32(x)
        logarithm, phase = x.chunk(2, dim=1)
        magnitude = QUIET * logarithm.clamp(0, MAX_LOG_MAGNITUDE).expm1()
        coded = (phase * (magnitude + QUIET).sqrt()).clamp(-magnitude, magnitude)
        with torch.no_grad():
            relative = magnitude / (magnitude.amax(1, keepdim=True) + QUIET)
            coded_fraction = coded.square().sum(1, keepdim=True) / (
                magnitude.square().sum(1, keepdim=True) + NEGLIGIBLE
            )
            uncoded = (1 - coded_fraction) ** CODED_EXPONENT
            weight = (1 - coded.abs() / (magnitude + NEGLIGIBLE)).square() * torch.maximum(
                WEAK / (WEAK + relative), uncoded
            )
            synthetic = weight * (self.phase_projection.to(x) @ x).cos()
        return coded + magnitude * synthetic


def basis(size: int, causal: bool, wave: Callable[[Tensor], Tensor] = torch.cos) -> Tensor:
    """Basis functions (size, 2 * size): under a sine window, or, if causal, over the newest `size` samples alone."""
    # Double precision: the angles are large.
    channel, sample = torch.arange(size).double()[:, None] + 0.5, torch.arange(2 * size).double() + 0.5
    scale = math.sqrt(2 / size)
    if causal:
        return scale * wave(math.pi / size * channel * (sample - size)) * (sample > size)
    window = torch.sin(math.pi / (2 * size) * sample)
    return scale * window * wave(math.pi / size * channel * (sample + size / 2))


def _make_inverse(layer: Upsample, size: int, causal: bool) -> None:
    """Set the weights of `layer` to the inverse of the cosine transform."""
    cosines = basis(size, causal)
    frames = torch.arange(layer.conv.conv.kernel_size[0])
    # Position of each sample of a block in the previous frame, in its own and, with look-ahead, in the next one.
    position = torch.arange(size)[:, None] + size * (2 - frames) - (0 if causal else size // 2)
    inside = (position >= 0) & (position < 2 * size)
    with torch.no_grad():
        weights = cosines[:, position.clamp(0, 2 * size - 1)] * inside
        layer.conv.conv.weight.copy_(weights.transpose(0, 1))
