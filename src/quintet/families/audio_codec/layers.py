"""Owns the convolutions of the codec: over whole clips at once, or over a clip as it comes in, with the same result.

Every layer pads with silence itself, in front and, unless it is causal, behind. As a stream it keeps the end of what it
has seen, puts out what can be known already and, at the last chunk, pads behind. So nothing is computed twice, chunks
may be of any length, and a causal codec puts out a frame as soon as it has its samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

Memory = dict[nn.Module, Tensor]
"""What the layers of one stream have kept of it."""

QUIET = 1000
"""One over what is quiet."""
THRESHOLD = 0.01
"""Power below which numbers of a transform begin to vanish, at the beginning."""
NEARLY_STRAIGHT = -3.0
"""Logarithm of a snake's frequency at which it hardly bends what goes through."""


class FrameMask:
    """Which frames (batch, frames) of a batch are of a clip; the rest is padding, and silence to every layer."""

    def __init__(self, present: Tensor) -> None:
        self.present = present
        self._padding: dict[int, Tensor] = {}

    def silenced(self, x: Tensor) -> Tensor:
        """`x (batch, channels, steps)`, some whole number of steps a frame, with zeros in the padding."""
        steps = x.shape[-1]
        if steps not in self._padding:
            per_frame = steps // self.present.shape[1]
            self._padding[steps] = ~self.present.repeat_interleave(per_frame, dim=1)[:, None]
        return x.masked_fill(self._padding[steps], 0)


class Snake(nn.Module):
    """x + sin(a x)^2 / a with an `a` for each channel (2006.08195): goes on waving beyond what it was trained on."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.log_frequency = nn.Parameter(torch.zeros(dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        frequency = self.log_frequency.exp()
        return x + (frequency * x).sin().square() / frequency


def make_activation(name: str | None, dim: int) -> nn.Module:
    """What a layer does to its input first; none: nothing."""
    if name is None:
        return nn.Identity()
    return Snake(dim) if name == "snake" else nn.ELU()


class Conv(nn.Module):
    """An activation, then a convolution that makes one step of every `stride`."""

    def __init__(
        self,
        before: int,
        after: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        causal: bool = False,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        self.activation = make_activation(activation, before)
        self.conv = nn.Conv1d(before, after, kernel, stride=stride, dilation=dilation)
        # Of the scale of its input: a stack of layers as torch begins them would turn sound to nearly nothing.
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="linear")
        assert self.conv.bias is not None
        nn.init.zeros_(self.conv.bias)
        self.stride = stride
        self.span = (kernel - 1) * dilation + 1
        self.behind = 0 if causal else (self.span - stride) // 2
        self.front = self.span - stride - self.behind

    def begin_as_identity(self, scale: float = 1.0) -> Conv:
        """Let each channel begin as the one of its number, `scale` times."""
        nn.init.zeros_(self.conv.weight)
        with torch.no_grad():
            self.conv.weight[..., self.front // self.conv.dilation[0]].diagonal().fill_(scale)
            if isinstance(self.activation, Snake):
                self.activation.log_frequency.fill_(NEARLY_STRAIGHT)
        return self

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        x = self.activation(x)
        # Without a look ahead no step of a clip sees the padding after it.
        if mask is not None and self.behind:
            x = mask.silenced(x)
        made: Tensor = self.conv(F.pad(x, (self.front, self.behind)))
        return made

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        x = self.activation(x)
        kept = memory[self] if self in memory else x.new_zeros(*x.shape[:2], self.front)
        seen = torch.cat([kept, F.pad(x, (0, self.behind if last else 0))], dim=-1)
        steps = max(0, (seen.shape[-1] - self.span) // self.stride + 1)
        memory[self] = seen[..., steps * self.stride :]
        if not steps:
            return x.new_zeros(len(x), self.conv.out_channels, 0)
        made: Tensor = self.conv(seen[..., : (steps - 1) * self.stride + self.span])
        return made


class Upsample(nn.Module):
    """`stride` steps of every one: what a transposed convolution does, as a convolution to so many times the width."""

    def __init__(self, before: int, after: int, stride: int, *, causal: bool, activation: str | None = None) -> None:
        super().__init__()
        self.stride = stride
        self.conv = Conv(before, after * stride, 2 if causal else 3, causal=causal, activation=activation)

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        return self._unfolded(self.conv(x, mask))

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        return self._unfolded(self.conv.stream(x, memory, last))

    def _unfolded(self, x: Tensor) -> Tensor:
        return rearrange(x, "b (c s) t -> b c (t s)", s=self.stride)


class ResidualUnit(nn.Module):
    """A dilated convolution and one of single steps, beside the identity."""

    recomputable = True

    def __init__(self, dim: int, dilation: int, *, causal: bool, activation: str) -> None:
        super().__init__()
        self.first = Conv(dim, dim, 7, dilation=dilation, causal=causal, activation=activation)
        self.second = Conv(dim, dim, 1, activation=activation)
        # A unit starts as the identity, so that depth costs nothing at the beginning.
        nn.init.zeros_(self.second.conv.weight)

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        update: Tensor = self.second(self.first(x, mask))
        return x + update

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        update = self.second.stream(self.first.stream(x, memory, last), memory, last)
        waiting = torch.cat([memory[self], x], dim=-1) if self in memory else x
        steps = update.shape[-1]
        memory[self] = waiting[..., steps:]
        return waiting[..., :steps] + update


class Compress(nn.Module):
    """Twice the channels: as they are, and with what is quiet brought near to what is loud."""

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        return torch.cat([x, (x * QUIET).asinh() / QUIET.bit_length()], dim=1)

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        return self.forward(x)


class Shrink(nn.Module):
    """The numbers of a transform, of which the small ones vanish: what is far below a threshold, which is predicted for
    each, is noise of the quantizer. So silence is silent, and what lies between tones."""

    def __init__(self, before: int, after: int, *, causal: bool, activation: str) -> None:
        super().__init__()
        self.conv = Conv(before, 2 * after, 3, causal=causal, activation=activation).begin_as_identity()

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        return self._shrunk(self.conv(x, mask))

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        return self._shrunk(self.conv.stream(x, memory, last))

    def _shrunk(self, x: Tensor) -> Tensor:
        value, threshold = x.chunk(2, dim=1)
        power = value.square()
        # Times 8, since thresholds have to move by orders of magnitude.
        return value * power / (power + THRESHOLD * (8 * threshold).clamp(max=20).exp())


class Stack(nn.Module):
    """Layers one after another."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        for layer in self.layers:
            assert isinstance(layer, Conv | Upsample | ResidualUnit | Compress | Shrink)
            x = layer.stream(x, memory, last)
        return x


# --- a transform to begin with -------------------------------------------------------------------------------------


def transform_in(size: int, *, causal: bool) -> Conv:
    """Every `size` samples to as many channels. Begins as a transform that loses nothing, and learns on.

    Where a frame may look ahead that is the lapped one (Princen and Bradley 1986): each frame sees twice its samples,
    with a soft window, and a steady tone is only a few numbers. Otherwise it is a cosine transform of the newest.
    """
    layer = Conv(1, size, 2 * size, stride=size, causal=causal)
    with torch.no_grad():
        layer.conv.weight.copy_(_basis(size, causal)[:, None])
    return layer


def transform_out(size: int, *, causal: bool) -> Upsample:
    """The way back from the channels of `transform_in`, which begins as its inverse."""
    layer = Upsample(size, 1, size, causal=causal)
    basis = _basis(size, causal)
    frames = torch.arange(layer.conv.conv.kernel_size[0])
    # Where each sample of a block lies in the frame before, in its own and, with a look ahead, in the one after.
    place = torch.arange(size)[:, None] + size * (2 - frames) - (0 if causal else size // 2)
    there = (place >= 0) & (place < 2 * size)
    with torch.no_grad():
        weights = basis[:, place.clamp(0, 2 * size - 1)] * there
        layer.conv.conv.weight.copy_(weights.transpose(0, 1))
    return layer


def _basis(size: int, causal: bool) -> Tensor:
    """(channels, 2 * size)"""
    # Double, since single precision does not know large angles.
    channel, sample = torch.arange(size).double()[:, None] + 0.5, torch.arange(2 * size).double() + 0.5
    scale = math.sqrt(2 / size)
    if causal:
        return scale * torch.cos(math.pi / size * channel * (sample - size)) * (sample > size)
    window = torch.sin(math.pi / (2 * size) * sample)
    return scale * window * torch.cos(math.pi / size * channel * (sample + size / 2))


Layer = Conv | Upsample | ResidualUnit | Compress | Shrink
