"""A lapped transform in polar form: magnitude and phase of each frequency of a frame, from samples and back.

A lapped cosine transform (Princen and Bradley 1986) keeps all of a sound, but its numbers swing with the phase of a
tone. Beside it stands the same transform by sines: together they say how loud a frequency is whatever its phase. A
vector of a frame is both parts, `size` numbers each: first how loud, then what the cosine transform is beside that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from quintet.common.precision import at_least_fp32
from quintet.families.audio_codec.layers import Conv, FrameMask, Layer, Memory, Upsample

QUIET = 0.01
"""Of a transform's numbers: what is below is heard as nothing. A tone of full scale makes ten, or more."""
LOUDEST = 14.0
"""Logarithm, in the units of a vector, that nothing exceeds."""
NEGLIGIBLE = 1e-12
WEAK = 0.1
"""Share of a frame's loudest number: what is below gets phases of its own where the codes leave them open."""
UNTOLD_ONLY = 16
"""How quickly, the more of a frame has phases by its codes, its strong frequencies stop to get others."""
TURNS = 3.0
"""Standard deviation, in radians, of such phases over frames."""


class ToPolar(Layer):
    """Every `size` samples to a vector of twice as many numbers.

    Not learned: each number is a sum over so many samples that a small step of all their weights would be a large one.
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
        # Phases do not survive half precision.
        cosine, sine = at_least_fp32(x).chunk(2, dim=1)
        loudness = (cosine.square() + sine.square() + NEGLIGIBLE).sqrt()
        # By the root of the loudness, so that quiet frequencies count as well.
        return torch.cat([(loudness / QUIET).log1p(), cosine / (loudness + QUIET).sqrt()], dim=1)


class FromPolar(Layer):
    """The way back.

    No number may be greater than its frequency is loud, so that what lies between tones is silent whatever noise the
    codes of the phases carry. Where they leave a weak frequency without a phase it gets one, as if at random, but
    always the same of the same vector: it is heard that such a frequency is there, and not how it turns.
    """

    def __init__(self, size: int, *, causal: bool) -> None:
        super().__init__()
        self.upsample = Upsample(size, 1, size, causal=causal)
        _make_inverse(self.upsample, size, causal)
        self.upsample.requires_grad_(False)
        self.turns: Tensor
        turns = torch.randn(size, 2 * size, generator=torch.Generator().manual_seed(0))
        self.register_buffer("turns", TURNS * size**-0.5 * turns, persistent=False)

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        return self.upsample(self._numbers(x), mask)  # type: ignore[no-any-return]

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        return self.upsample.stream(self._numbers(x), memory, last)

    def _numbers(self, x: Tensor) -> Tensor:
        # Phases do not survive half precision.
        x = at_least_fp32(x)
        logarithm, phase = x.chunk(2, dim=1)
        loudness = QUIET * logarithm.clamp(0, LOUDEST).expm1()
        known = (phase * (loudness + QUIET).sqrt()).clamp(-loudness, loudness)
        with torch.no_grad():
            share = loudness / (loudness.amax(1, keepdim=True) + QUIET)
            told = known.square().sum(1, keepdim=True) / (loudness.square().sum(1, keepdim=True) + NEGLIGIBLE)
            untold = (1 - told) ** UNTOLD_ONLY
            openness = (1 - known.abs() / (loudness + NEGLIGIBLE)).square() * torch.maximum(
                WEAK / (WEAK + share), untold
            )
            made_up = openness * (self.turns.to(x) @ x).cos()
        return known + loudness * made_up


def basis(size: int, causal: bool, wave: Callable[[Tensor], Tensor] = torch.cos) -> Tensor:
    """(channels, 2 * size): with a look ahead all samples of a frame by a soft window, otherwise the newest."""
    # Double, since single precision does not know large angles.
    channel, sample = torch.arange(size).double()[:, None] + 0.5, torch.arange(2 * size).double() + 0.5
    scale = math.sqrt(2 / size)
    if causal:
        return scale * wave(math.pi / size * channel * (sample - size)) * (sample > size)
    window = torch.sin(math.pi / (2 * size) * sample)
    return scale * window * wave(math.pi / size * channel * (sample + size / 2))


def _make_inverse(layer: Upsample, size: int, causal: bool) -> None:
    """Of the cosine transform."""
    cosines = basis(size, causal)
    frames = torch.arange(layer.conv.conv.kernel_size[0])
    # Where each sample of a block lies in the frame before, in its own and, with a look ahead, in the one after.
    place = torch.arange(size)[:, None] + size * (2 - frames) - (0 if causal else size // 2)
    there = (place >= 0) & (place < 2 * size)
    with torch.no_grad():
        weights = cosines[:, place.clamp(0, 2 * size - 1)] * there
        layer.conv.conv.weight.copy_(weights.transpose(0, 1))
