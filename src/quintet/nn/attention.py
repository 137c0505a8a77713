"""Multi-head self-attention and cross-attention, with `scaled_dot_product_attention` and a KV cache.

Shapes are `(batch, tokens, dim)`. Masks are boolean, true at valid tokens. A softmax over no keys would be NaN, so
`attention_mask` lets a query without any valid key attend to all keys (or, if causal, to itself).

`KVCache` holds the keys and values of a causal transformer between decoding steps, in memory allocated once. A CPU
attends to the filled part of it. A GPU attends to all of it with a mask, so that all steps have the same shapes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.positions import CosSin, apply_rotary


class LayerKVCache:
    """Keys and values of one self-attention layer, `(batch, heads, max_length, head_dim)`.

    Memory is allocated at the first step, in the dtype of that step; the first `length` positions are filled.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self.allocated = False
        self.is_fixed_size = False
        """Whether queries attend to the whole memory with a mask, rather than to its filled part."""

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values `(batch, heads, new, head_dim)`, and return those to attend to with `mask`."""
        if not self.allocated:
            batch, heads, _, head_dim = keys.shape
            self.keys, self.values = keys.new_empty(2, batch, heads, self.max_length, head_dim)
            self.allocated = True
            self.is_fixed_size = keys.device.type != "cpu"
            if self.is_fixed_size:
                # A mask would not hide what is not a number.
                self.keys.zero_()
                self.values.zero_()
                self.positions = torch.arange(self.max_length, device=keys.device)
        last = self.length + keys.shape[2]
        self.keys[:, :, self.length : last] = keys
        self.values[:, :, self.length : last] = values
        self.length = last
        if self.is_fixed_size:
            return self.keys, self.values
        return self.keys[:, :, :last], self.values[:, :, :last]

    def mask(self, new: int) -> Tensor | None:
        """The causal mask of the last `new` tokens, `(new, keys)`; None: they attend to all keys."""
        if self.is_fixed_size:
            return self.positions <= self.positions[self.length - new : self.length, None]
        if new == 1:
            return None
        return torch.ones(new, self.length, dtype=torch.bool, device=self.keys.device).tril(self.length - new)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows of the batch."""
        if self.allocated:
            self.keys, self.values = self.keys[rows], self.values[rows]


@dataclass
class KVCache:
    """State of a causal transformer between two calls of `step`.

    `contexts` are the precomputed keys and values of each block's cross-attention; `context_mask` is the result of
    `attention_mask`.
    """

    layers: list[LayerKVCache]
    contexts: list[tuple[Tensor, Tensor]]
    context_mask: Tensor | None

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""
        return self.layers[0].length

    @property
    def max_length(self) -> int:
        return self.layers[0].max_length

    def rewind(self) -> None:
        """Remove all tokens; the allocated memory and the context are kept."""
        for layer in self.layers:
            layer.length = 0

    def select(self, rows: Tensor) -> None:
        """Keep only these rows of the batch."""
        for layer in self.layers:
            layer.select(rows)
        self.contexts = [(keys[rows], values[rows]) for keys, values in self.contexts]
        self.context_mask = None if self.context_mask is None else self.context_mask[rows]


MAX_BF16_LENGTH = 512
"""Longest row for which `cpu_bf16_attention` is faster."""


def is_cpu_bf16_faster(queries: Tensor, keys: Tensor) -> bool:
    """Whether `cpu_bf16_attention` is faster than torch's kernel.

    On a CPU in bf16, forward and backward of torch's kernel take two to four times as long as plain matrix products for
    rows of up to a few hundred tokens (`benchmarks/attention.py`). In fp32 and for long rows the kernel is faster.
    """
    return (
        queries.dtype == torch.bfloat16
        and queries.device.type == "cpu"
        and max(queries.shape[-2], keys.shape[-2]) <= MAX_BF16_LENGTH
    )


def cpu_bf16_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention by matrix products, of `(batch, heads, tokens, head_dim)`.

    `mask` is true where a query may attend to a key, as for `scaled_dot_product_attention`.
    """
    out: Tensor = _CPUAttention.apply(queries, keys, values, mask)  # type: ignore[no-untyped-call]
    return out


class _CPUAttention(torch.autograd.Function):
    """Has its own backward pass, because that of torch returns a transposed gradient of the keys, which callers then
    have to copy."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        shape = queries.shape[:2]
        # Flatten batch and heads before any product; otherwise the product itself would copy the transposed keys.
        queries, keys, values = (tensor.flatten(0, 1) for tensor in (queries * _scale(queries), keys, values))
        scores = queries @ keys.transpose(-1, -2)
        if mask is not None:
            scores.view(*shape, *scores.shape[1:]).masked_fill_(~mask, -math.inf)
        weights = scores.softmax(-1).to(values.dtype)
        ctx.save_for_backward(queries, keys, values, weights)
        attended = weights @ values
        return attended.view(*shape, *attended.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        queries, keys, values, weights = ctx.saved_tensors
        shape, gradient = gradient.shape[:2], gradient.flatten(0, 1)
        grad_weights = gradient @ values.transpose(-1, -2)
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_queries = grad_scores @ keys * _scale(queries)
        grad_keys = grad_scores.transpose(-1, -2) @ queries
        grad_values = weights.transpose(-1, -2) @ gradient
        first, second, third = (part.view(*shape, *part.shape[1:]) for part in (grad_queries, grad_keys, grad_values))
        return first, second, third, None


def _scale(queries: Tensor) -> float:
    return float(queries.shape[-1] ** -0.5)


NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class CrossKV:
    """Keys and values of a context for the cross-attention of all blocks, computed once by `precompute_cross_kv`.

    `keys` and `values` are `(batch, blocks, heads, positions, head_dim)`, or without `blocks` for one block; `mask` is
    the result of `attention_mask`. The first position is the learned null context.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor

    def of_block(self, number: int) -> CrossKV:
        return CrossKV(self.keys[:, number], self.values[:, number], self.mask)

    @property
    def attending_rows(self) -> Tensor | None:
        """Indices of the rows that attend to more than the null context; None if all do."""
        # On a GPU this would need a synchronisation.
        if self.mask.device.type != "cpu":
            return None
        attends = self.mask[:, 0, 0, 1:].any(1)
        return None if attends.all() else attends.nonzero()[:, 0]

    def select(self, rows: Tensor) -> CrossKV:
        """A copy with only these rows of the batch."""
        return CrossKV(*(tensor.index_select(0, rows) for tensor in (self.keys, self.values, self.mask)))


class Attention(nn.Module):
    """Self-attention, or cross-attention if `context_dim` is set.

    `normalise` normalises queries and keys (QK norm, Dehghani et al. 2023, 2302.05442), so that attention scores are
    bounded. Only queries have a learned scale; a scale of the keys would be redundant.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int = 64,
        context_dim: int | None = None,
        causal: bool = False,
        normalise: bool = True,
    ) -> None:
        super().__init__()
        if causal and context_dim is not None:
            raise UsageError("Cross-attention cannot be causal.")
        self.head_dim = head_dim
        self.causal = causal
        inner = heads * head_dim
        self.is_cross_attention = context_dim is not None
        if context_dim is None:
            self.to_queries_keys_values = nn.Linear(dim, 3 * inner, bias=False)
        else:
            self.to_queries = nn.Linear(dim, inner, bias=False)
            self.to_keys_values = nn.Linear(context_dim, 2 * inner, bias=False)
        self.query_scale = nn.Parameter(torch.ones(head_dim)) if normalise else None
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(
        self,
        x: Tensor,
        context: Tensor | CrossKV | None = None,
        mask: Tensor | None = None,
        cos_sin: CosSin | None = None,
    ) -> Tensor:
        """`(batch, tokens, dim)` to the same shape; `mask` is the result of `attention_mask` for the keys' mask.

        `cos_sin` are the rotary embeddings of self-attention.
        """
        if isinstance(context, CrossKV):
            return self._cross_attend_rows(x, context)
        if self.is_cross_attention:
            assert context is not None, "cross-attention needs a context"
            queries = self._queries(x)
            keys, values = self._keys_values(context)
        else:
            queries, keys, values = self._queries_keys_values(x, cos_sin)
        causal = self.causal and mask is None  # with a mask, `attention_mask` has combined both
        return self._attend(queries, _by_head(keys), _by_head(values), mask, causal)

    def step(self, x: Tensor, cache: LayerKVCache, cos_sin: CosSin | None = None) -> Tensor:
        """Causal self-attention of new tokens `(batch, new, dim)`, which are appended to the cache."""
        queries, keys, values = self._queries_keys_values(x, cos_sin)
        keys, values = cache.append(_by_head(keys), _by_head(values))
        new = x.shape[1]
        # Without a mask, kernels know which products to leave out.
        causal = new > 1 and new == keys.shape[2]
        return self._attend(queries, keys, values, None if causal else cache.mask(new), causal)

    def cross_kv(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a context, `(batch, heads, positions, head_dim)`, for `cross_attend`."""
        keys, values = self._keys_values(context)
        return _by_head(keys).contiguous(), _by_head(values).contiguous()

    def cross_attend(self, x: Tensor, context: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Cross-attention to precomputed keys and values."""
        return self._attend(self._queries(x), *context, mask)

    def _cross_attend_rows(self, x: Tensor, context: CrossKV) -> Tensor:
        rows = context.attending_rows
        if rows is None:
            return self.cross_attend(x, (context.keys, context.values), context.mask)
        # The other rows attend only to the null context, whatever the query, so their attention is constant.
        null: Tensor = self.to_out(context.values[:, :, :1].transpose(1, 2).flatten(2))
        out = null.repeat(1, x.shape[1], 1)
        if not len(rows):
            return out
        own = context.select(rows)
        attended = self.cross_attend(x.index_select(0, rows), (own.keys, own.values), own.mask)
        return out.index_copy_(0, rows, attended)

    def _queries_keys_values(self, x: Tensor, cos_sin: CosSin | None) -> tuple[Tensor, Tensor, Tensor]:
        """Each `(batch, tokens, heads, head_dim)`."""
        heads = self._heads(self.to_queries_keys_values(x))
        queries, keys, values = heads.chunk(3, dim=2)
        queries, keys = self._normalised(queries, self.query_scale), self._normalised(keys)
        if cos_sin is not None:
            queries, keys = apply_rotary(queries, cos_sin), apply_rotary(keys, cos_sin)
        return queries, keys, values

    def _queries(self, x: Tensor) -> Tensor:
        return self._normalised(self._heads(self.to_queries(x)), self.query_scale)

    def _keys_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self._heads(self.to_keys_values(context)).chunk(2, dim=2)
        return self._normalised(keys), values

    def _heads(self, joined: Tensor) -> Tensor:
        """`(batch, tokens, heads, head_dim)`; without einops, whose overhead matters in short cached steps."""
        return joined.reshape(*joined.shape[:2], -1, self.head_dim)

    def _normalised(self, heads: Tensor, scale: Tensor | None = None) -> Tensor:
        if self.query_scale is None:
            return heads
        return F.layer_norm(heads, (self.head_dim,), scale, eps=NORM_EPSILON).to(heads.dtype)

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool = False
    ) -> Tensor:
        """Queries `(batch, tokens, heads, head_dim)`; keys and values `(batch, heads, tokens, head_dim)`."""
        # Views: the kernels accept any order of axes, and their output joins heads without a copy.
        queries = _by_head(queries)
        if is_cpu_bf16_faster(queries, keys) and not causal:
            attended = cpu_bf16_attention(queries, keys, values, mask)
        else:
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal)
        out: Tensor = self.to_out(attended.transpose(1, 2).flatten(2))
        return out


def _by_head(tensor: Tensor) -> Tensor:
    """`(batch, tokens, heads, head_dim)` to `(batch, heads, tokens, head_dim)`."""
    return tensor.transpose(1, 2)


def attention_mask(mask: Tensor, causal: bool = False) -> Tensor:
    """Mask `(batch, 1, 1 or queries, keys)` from the mask of valid keys `(batch, keys)`; every query has a key."""
    if not causal:
        return (mask | ~mask.any(dim=1, keepdim=True))[:, None, None]
    length = mask.shape[1]
    square = torch.ones(length, length, dtype=torch.bool, device=mask.device)
    itself = torch.eye(length, dtype=torch.bool, device=mask.device)
    return ((square.tril() & mask[:, None]) | itself)[:, None]


def prepend_null_context(
    null: Tensor, batch: int, context: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """A context `(batch, positions, dim)` after the null context vector `(dim,)`, and the attention mask of both."""
    first = null.expand(batch, 1, -1)
    if context is None:
        return first, None
    if mask is None:
        return torch.cat([first.to(context.dtype), context], dim=1), None
    context = context.masked_fill(~mask[..., None], 0)
    return torch.cat([first.to(context.dtype), context], dim=1), attention_mask(F.pad(mask, (1, 0), value=True))
