"""Owns attention by plain products of matrices, which on a CPU is quicker than torch's kernel for short rows in bf16.

Queries, keys and values are `(batch, heads, places, head_dim)`, in any order of axes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

SHORT_ROW = 512
"""Places up to which it is the quicker one."""


def is_cpu_bf16_faster(queries: Tensor, keys: Tensor) -> bool:
    """On a CPU torch's kernel of attention in bf16, forth and back, takes two to four times as long as products up to
    some hundred places do (`benchmarks/attention.py`); in fp32, and of long rows, it is the quicker one."""
    return (
        queries.dtype == torch.bfloat16
        and queries.device.type == "cpu"
        and max(queries.shape[-2], keys.shape[-2]) <= SHORT_ROW
    )


def cpu_bf16_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`mask` says which keys each query may see, as `scaled_dot_product_attention` takes it."""
    out: Tensor = _Products.apply(queries, keys, values, mask)  # type: ignore[no-untyped-call]
    return out


class _Products(torch.autograd.Function):
    """The backward pass is its own because torch's makes the gradient of the keys across, and whoever takes that
    copies it back along their rows."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        by_head = queries.shape[:2]
        # Batch and heads as one axis before any product: one that had to do it itself would copy keys across, too.
        queries, keys, values = (tensor.flatten(0, 1) for tensor in (queries * _scale(queries), keys, values))
        scores = queries @ keys.transpose(-1, -2)
        if mask is not None:
            scores.view(*by_head, *scores.shape[1:]).masked_fill_(~mask, -math.inf)
        weights = scores.softmax(-1).to(values.dtype)
        ctx.save_for_backward(queries, keys, values, weights)
        attended = weights @ values
        return attended.view(*by_head, *attended.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        queries, keys, values, weights = ctx.saved_tensors
        by_head, gradient = gradient.shape[:2], gradient.flatten(0, 1)
        of_weights = gradient @ values.transpose(-1, -2)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_queries = of_scores @ keys * _scale(queries)
        of_keys = of_scores.transpose(-1, -2) @ queries
        of_values = weights.transpose(-1, -2) @ gradient
        first, second, third = (part.view(*by_head, *part.shape[1:]) for part in (of_queries, of_keys, of_values))
        return first, second, third, None


def _scale(queries: Tensor) -> float:
    return float(queries.shape[-1] ** -0.5)
