"""`ChunkedLoss`: output layer and loss of a large vocabulary, without the logits of all positions at the same time.

Logits in fp32, their log-softmax and its gradient take about 16 bytes for each position and code. Here the logits of a
few positions at a time are computed, and computed again in the backward pass: a third product in place of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.precision import at_least_fp32

CHUNK_LOGITS = 2**25
"""Number of logits of a chunk with `auto`: 128 MiB in fp32."""
CHUNK_MULTIPLE = 64
"""The positions of a chunk are a multiple of this, so that products have few different shapes."""


class PositionLosses(NamedTuple):
    """The loss of each position, and whether its most likely code is the target; both (positions,)."""

    values: Tensor
    right: Tensor


def chunk_size(setting: int | Literal["auto"] | None, num_codes: int, positions: int) -> int | None:
    """Positions of a chunk for a value of `loss.logit_chunk`; None if all positions are computed at the same time."""
    if setting == "auto":
        setting = max(CHUNK_MULTIPLE, CHUNK_LOGITS // num_codes // CHUNK_MULTIPLE * CHUNK_MULTIPLE)
    return None if setting is None or setting >= positions else setting


@dataclass(frozen=True)
class ChunkedLoss:
    """Passed to a model, which calls it with its hidden vectors instead of computing logits (FSDP gathers the weights
    of an output layer only within `forward`)."""

    loss: Callable[..., Tensor]
    """Losses (rows,) of logits (rows, codes) in fp32 and of rows of `columns`."""
    columns: tuple[Tensor, ...]
    """Values of each position, (positions,); the first are the targets."""
    size: int
    """Positions of a chunk."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, hidden: Tensor, head: nn.Linear) -> PositionLosses:
        """`hidden` (positions, dim) may have padding behind the positions of the targets."""
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        apply: Any = _ChunkedLoss.apply
        return PositionLosses(*apply(hidden, head.weight, head.bias, self.loss, self.size, dtype, *self.columns))


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        loss: Callable[..., Tensor],
        size: int,
        dtype: torch.dtype,
        *columns: Tensor,
    ) -> tuple[Tensor, Tensor]:
        context.save_for_backward(hidden, weight, bias, *columns)
        context.loss, context.size, context.dtype = loss, size, dtype
        values, right = [], []
        layer = weight.to(dtype), bias.to(dtype)
        for _, vectors, chunk in _chunks(size, hidden, columns):
            logits = _logits(vectors.to(dtype), layer, chunk)
            values.append(loss(logits, *chunk))
            right.append(logits.argmax(-1) == chunk[0])
        result = torch.cat(values), torch.cat(right)
        context.mark_non_differentiable(result[1])
        return result

    @staticmethod
    def backward(context: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, *columns = context.saved_tensors
        layer = weight.to(context.dtype), bias.to(context.dtype)
        # In fp32 also under autocast, because many chunks are added up. None if the layer is not trained.
        trained = any(context.needs_input_grad[1:3])
        sums = [at_least_fp32(torch.zeros_like(each)) for each in (weight, bias)] if trained else None
        parts = []
        for rows, part, chunk in _chunks(context.size, hidden, columns):
            vectors = part.to(context.dtype)
            with torch.enable_grad():
                logits = _logits(vectors, layer, chunk).requires_grad_()
                values = context.loss(logits, *chunk)
            (slope,) = torch.autograd.grad(values, logits, gradient[rows])
            slope = slope.to(context.dtype)
            count = len(slope)
            parts.append(F.pad(slope @ layer[0], (0, 0, 0, len(vectors) - count)).to(hidden.dtype))
            if sums is not None:
                _add_gradients(sums, slope, vectors[:count])
        nothing = [None] * (3 + len(columns))
        layer_gradients = (None, None) if sums is None else (sums[0].to(weight.dtype), sums[1].to(bias.dtype))
        return torch.cat(parts), *layer_gradients, *nothing


def _add_gradients(sums: list[Tensor], slope: Tensor, vectors: Tensor) -> None:
    """Add the gradients of weight and bias of one chunk."""
    if slope.dtype == sums[0].dtype:
        sums[0].addmm_(slope.t(), vectors)
    else:
        sums[0] += slope.t() @ vectors
    sums[1] += slope.sum(0)


def _chunks(
    size: int, hidden: Tensor, columns: tuple[Tensor, ...] | list[Tensor]
) -> Iterator[tuple[slice, Tensor, list[Tensor]]]:
    """The positions of each chunk, its hidden vectors, perhaps with padding, and its columns."""
    for start in range(0, len(hidden), size):
        rows = slice(start, start + size)
        yield rows, hidden[rows], [column[rows] for column in columns]


def _logits(vectors: Tensor, layer: tuple[Tensor, Tensor], chunk: list[Tensor]) -> Tensor:
    return at_least_fp32(F.linear(vectors, *layer)[: len(chunk[0])].detach())
