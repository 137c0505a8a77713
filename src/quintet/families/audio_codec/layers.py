"""1D convolutions of the codec that also run as a stream, chunk by chunk, with the same result.

Every layer pads its input with zeros at the start and, unless it is causal, at the end. In a stream a layer stores the
end of its input, returns the outputs that are complete and pads the end with the last chunk. So nothing is computed
twice, chunks may have any length, and a causal codec returns a frame as soon as its samples are in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

Memory = dict[nn.Module, Tensor]
"""The buffered inputs of the layers of one stream."""


class FrameMask:
    """Mask of the valid frames (batch, frames) of a padded batch; every layer sees zeros in the padding."""

    def __init__(self, valid: Tensor) -> None:
        self.valid = valid

    def mask_padding(self, x: Tensor) -> Tensor:
        """`x (batch, channels, steps)`, with a whole number of steps per frame, with zeros in the padding."""
        per_frame = x.shape[-1] // self.valid.shape[1]
        # Computed anew for each layer: a mask that was kept by the number of steps would be state of a compiled block.
        return x.masked_fill(~self.valid.repeat_interleave(per_frame, dim=1)[:, None], 0)


class Snake(nn.Module):
    """Snake activation: x + sin(a x)^2 / a with a learned `a` per channel (2006.08195), for periodic signals."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.log_frequency = nn.Parameter(torch.zeros(dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        frequency = self.log_frequency.exp()
        return x + (frequency * x).sin().square() / frequency


def make_activation(name: str | None, dim: int) -> nn.Module:
    """The activation of this name; the identity for None."""
    if name is None:
        return nn.Identity()
    return Snake(dim) if name == "snake" else nn.ELU()


class Layer(nn.Module, ABC):
    """A layer of a `Stack`: `forward` takes `(x, mask)` with whole clips, `stream` takes a clip chunk by chunk."""

    @abstractmethod
    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        """The outputs that these steps complete, perhaps none; with the last chunk all remaining ones."""


class Conv(Layer):
    """An activation, then a 1D convolution with a stride."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        causal: bool = False,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        self.activation = make_activation(activation, in_channels)
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, stride=stride, dilation=dilation)
        # Keeps the scale of the input: with the default initialisation a deep stack would attenuate it to almost zero.
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="linear")
        assert self.conv.bias is not None
        nn.init.zeros_(self.conv.bias)
        self.stride = stride
        self.span = (kernel - 1) * dilation + 1
        self.pad_right = 0 if causal else (self.span - stride) // 2
        self.pad_left = self.span - stride - self.pad_right

    def zero_init(self) -> Conv:
        nn.init.zeros_(self.conv.weight)
        return self

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        x = self.activation(x)
        # Without look-ahead no step of a clip sees the padding behind it.
        if mask is not None and self.pad_right:
            x = mask.mask_padding(x)
        out: Tensor = self.conv(F.pad(x, (self.pad_left, self.pad_right)))
        return out

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        x = self.activation(x)
        buffered = memory[self] if self in memory else x.new_zeros(*x.shape[:2], self.pad_left)
        inputs = torch.cat([buffered, F.pad(x, (0, self.pad_right if last else 0))], dim=-1)
        steps = max(0, (inputs.shape[-1] - self.span) // self.stride + 1)
        # A copy: a view would keep all inputs of the chunk in memory until the next one.
        memory[self] = inputs[..., steps * self.stride :].clone()
        if not steps:
            return x.new_zeros(len(x), self.conv.out_channels, 0)
        out: Tensor = self.conv(inputs[..., : (steps - 1) * self.stride + self.span])
        return out


class Upsample(Layer):
    """Upsampling by `stride`: a convolution to `stride` times the channels, which are then interleaved in time."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, *, causal: bool, activation: str | None = None
    ) -> None:
        super().__init__()
        self.stride = stride
        self.conv = Conv(in_channels, out_channels * stride, 2 if causal else 3, causal=causal, activation=activation)

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        return self._interleave(self.conv(x, mask))

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        return self._interleave(self.conv.stream(x, memory, last))

    def _interleave(self, x: Tensor) -> Tensor:
        return rearrange(x, "b (c s) t -> b c (t s)", s=self.stride)


class ResidualUnit(Layer):
    """Residual branch of a dilated convolution and a pointwise convolution."""

    recomputable = True

    def __init__(self, dim: int, dilation: int, *, causal: bool, activation: str) -> None:
        super().__init__()
        self.first = Conv(dim, dim, 7, dilation=dilation, causal=causal, activation=activation)
        self.second = Conv(dim, dim, 1, activation=activation)
        # A unit starts as the identity, so that depth does not hurt at the start of training.
        self.second.zero_init()

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        update: Tensor = self.second(self.first(x, mask))
        return x + update

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        update = self.second.stream(self.first.stream(x, memory, last), memory, last)
        return _add_delayed(self, x, update, memory)


class Residual(Layer):
    """A residual branch of several layers; the last one should be initialised to zero."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.stack = Stack(layers)

    def forward(self, x: Tensor, mask: FrameMask | None = None) -> Tensor:
        update: Tensor = self.stack(x, mask)
        return x + update

    def stream(self, x: Tensor, memory: Memory, last: bool) -> Tensor:
        return _add_delayed(self, x, self.stack.stream(x, memory, last), memory)


class Stack(nn.Module):
    """A sequence of layers."""

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


def _add_delayed(layer: nn.Module, x: Tensor, update: Tensor, memory: Memory) -> Tensor:
    """The residual sum in a stream: inputs wait in `memory` until the update of their steps is complete."""
    waiting = torch.cat([memory[layer], x], dim=-1) if layer in memory else x
    steps = update.shape[-1]
    memory[layer] = waiting[..., steps:].clone()  # not a view, as in `Conv.stream`
    return waiting[..., :steps] + update
