"""Convolutions of the codec: over whole clips at once, or over a clip as it comes in, with the same result.

Every layer pads with silence itself, in front and, unless it is causal, behind. As a stream it keeps the end of what it
has seen, puts out what can be known already and, at the last chunk, pads behind. So nothing is computed twice, chunks
may be of any length, and a causal codec puts out a frame as soon as it has its samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

Memory = dict[nn.Module, Tensor]
"""What the layers of one stream have kept of it."""


class FrameMask:
    """Which frames (batch, frames) of a batch are of a clip; the rest is padding, and silence to every layer."""

    def __init__(self, present: Tensor) -> None:
        self.present = present
        self._padding: dict[int, Tensor] = {}

    def mask_padding(self, x: Tensor) -> Tensor:
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


class Layer(nn.Module, ABC):
    """Something that a stack is made of: `forward` takes `(x, mask)`, `stream` a clip chunk by chunk."""

    @abstractmethod
    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        """What is known once these steps are, perhaps nothing; with the last ones all the rest."""


class Conv(Layer):
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

    def zero_init(self) -> Conv:
        nn.init.zeros_(self.conv.weight)
        return self

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        x = self.activation(x)
        # Without a look ahead no step of a clip sees the padding after it.
        if mask is not None and self.behind:
            x = mask.mask_padding(x)
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


class Upsample(Layer):
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


class ResidualUnit(Layer):
    """A dilated convolution and one of single steps, beside the identity."""

    recomputable = True

    def __init__(self, dim: int, dilation: int, *, causal: bool, activation: str) -> None:
        super().__init__()
        self.first = Conv(dim, dim, 7, dilation=dilation, causal=causal, activation=activation)
        self.second = Conv(dim, dim, 1, activation=activation)
        # A unit starts as the identity, so that depth costs nothing at the beginning.
        self.second.zero_init()

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        update: Tensor = self.second(self.first(x, mask))
        return x + update

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        update = self.second.stream(self.first.stream(x, memory, last), memory, last)
        return _waited_for(self, x, update, memory)


class Residual(Layer):
    """Layers beside the identity, of which the last has to start at nothing."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.stack = Stack(layers)

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        update: Tensor = self.stack(x, mask)
        return x + update

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        return _waited_for(self, x, self.stack.stream(x, memory, last), memory)


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
            assert isinstance(layer, Layer)
            x = layer.stream(x, memory, last)
        return x


def _waited_for(layer: nn.Module, x: Tensor, update: Tensor, memory: Memory) -> Tensor:
    """What goes past a layer of a stream, kept until what the layer makes of it is there, and added to that."""
    waiting = torch.cat([memory[layer], x], dim=-1) if layer in memory else x
    steps = update.shape[-1]
    memory[layer] = waiting[..., steps:]
    return waiting[..., :steps] + update
