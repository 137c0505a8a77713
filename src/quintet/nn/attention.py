"""Multi-head attention of tokens to themselves or to a context, through `scaled_dot_product_attention`.

Shapes are `(batch, tokens, dim)`. Masks are boolean, true where there is something. No softmax is ever over nothing,
which would be NaN: `attention_mask` lets a query that may see no key at all see all of them (or, causal, itself).

A causal transformer keeps keys and values from one step of decoding to the next, in room taken once: `KVCache`.
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
    """The keys and values of the tokens that one self-attention has seen, `(batch, heads, max_length, head_dim)`.

    The room is taken at the first step, in the precision that the step runs in; of it, `length` places are filled.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self.has_room = False

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add `(batch, heads, new, head_dim)` and return all there is."""
        if not self.has_room:
            batch, heads, _, head_dim = keys.shape
            self.keys, self.values = keys.new_empty(2, batch, heads, self.max_length, head_dim)
            self.has_room = True
        last = self.length + keys.shape[2]
        self.keys[:, :, self.length : last] = keys
        self.values[:, :, self.length : last] = values
        self.length = last
        return self.keys[:, :, :last], self.values[:, :, :last]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch alone."""
        if self.has_room:
            self.keys, self.values = self.keys[rows], self.values[rows]


@dataclass
class KVCache:
    """What a causal transformer keeps from one `step` to the next.

    `contexts` are the keys and values of every block's attention to the context, made once; `context_mask` is what
    `attention_mask` made.
    """

    layers: list[LayerKVCache]
    contexts: list[tuple[Tensor, Tensor]]
    context_mask: Tensor | None

    @property
    def length(self) -> int:
        """How many tokens were seen."""
        return self.layers[0].length

    @property
    def max_length(self) -> int:
        return self.layers[0].max_length

    def rewind(self) -> None:
        """Forget the tokens, and keep the room and the context."""
        for layer in self.layers:
            layer.length = 0

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch alone."""
        for layer in self.layers:
            layer.select(rows)
        self.contexts = [(keys[rows], values[rows]) for keys, values in self.contexts]
        self.context_mask = None if self.context_mask is None else self.context_mask[rows]


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


NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class CrossKV:
    """What every block's attention to a context needs of it, made once for many passes by `precompute_cross_kv`.

    `keys` and `values` are `(batch, blocks, heads, places, head_dim)`, of one block without `blocks`; `mask` is what
    `attention_mask` made. The first place is that of `nothing`.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor

    def of_block(self, number: int) -> CrossKV:
        return CrossKV(self.keys[:, number], self.values[:, number], self.mask)

    @property
    def attending_rows(self) -> Tensor | None:
        """The numbers of the rows that see more than `nothing`, if not all do."""
        # On a GPU it would have to be read from there which they are.
        if self.mask.device.type != "cpu":
            return None
        attends = self.mask[:, 0, 0, 1:].any(1)
        return None if attends.all() else attends.nonzero()[:, 0]

    def select(self, rows: Tensor) -> CrossKV:
        """Of these rows of the batch alone."""
        return CrossKV(*(tensor.index_select(0, rows) for tensor in (self.keys, self.values, self.mask)))


class Attention(nn.Module):
    """Attention of tokens to themselves, or, with a `context_dim`, to a context.

    `normalise` brings every query and key to one length (Dehghani et al. 2023, 2302.05442), so that scores cannot
    grow without bound. Queries alone have a learned scale: only its product with the keys' would count.
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
            raise UsageError("Attention to a context cannot be causal.")
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
        """`mask` is what `attention_mask` made of the keys' mask; `cos_sin` are those of self-attention."""
        if isinstance(context, CrossKV):
            return self._cross_attend_rows(x, context)
        if self.is_cross_attention:
            assert context is not None, "this attention needs a context"
            queries = self._queries(x)
            keys, values = self._keys_values(context)
        else:
            queries, keys, values = self._queries_keys_values(x, cos_sin)
        causal = self.causal and mask is None  # with a mask, `attention_mask` has put both in one
        return self._attend(queries, _by_head(keys), _by_head(values), mask, causal)

    def step(self, x: Tensor, cache: LayerKVCache, cos_sin: CosSin | None = None) -> Tensor:
        """Causal self-attention of tokens that follow those in the cache, which then has them too."""
        queries, keys, values = self._queries_keys_values(x, cos_sin)
        keys, values = cache.append(_by_head(keys), _by_head(values))
        new, before = x.shape[1], cache.length - x.shape[1]
        mask = None
        if new > 1 and before:
            mask = torch.ones(new, cache.length, dtype=torch.bool, device=x.device).tril(before)
        return self._attend(queries, keys, values, mask, causal=new > 1 and not before)

    def cross_kv(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a context, `(batch, heads, places, head_dim)`, for `cross_attend`."""
        keys, values = self._keys_values(context)
        return _by_head(keys).contiguous(), _by_head(values).contiguous()

    def cross_attend(self, x: Tensor, context: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Attention to a context of which the keys and values were made before."""
        return self._attend(self._queries(x), *context, mask)

    def _cross_attend_rows(self, x: Tensor, context: CrossKV) -> Tensor:
        rows = context.attending_rows
        if rows is None:
            return self.cross_attend(x, (context.keys, context.values), context.mask)
        # All attention of the others is on one position, whatever the query, so none is computed.
        nothing: Tensor = self.to_out(context.values[:, :, :1].transpose(1, 2).flatten(2))
        out = nothing.repeat(1, x.shape[1], 1)
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
        """`(batch, tokens, heads, head_dim)`; by plain torch, because a cached step is short."""
        return joined.reshape(*joined.shape[:2], -1, self.head_dim)

    def _normalised(self, heads: Tensor, scale: Tensor | None = None) -> Tensor:
        if self.query_scale is None:
            return heads
        return F.layer_norm(heads, (self.head_dim,), scale, eps=NORM_EPSILON).to(heads.dtype)

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool = False
    ) -> Tensor:
        """Queries by token, keys and values by head."""
        # Views: the kernels take any order of axes, and give theirs back so that heads join without a copy.
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
    """Which keys each query may see, `(batch, 1, 1 or queries, keys)`, from which keys are there; never none."""
    if not causal:
        return (mask | ~mask.any(dim=1, keepdim=True))[:, None, None]
    length = mask.shape[1]
    square = torch.ones(length, length, dtype=torch.bool, device=mask.device)
    itself = torch.eye(length, dtype=torch.bool, device=mask.device)
    return ((square.tril() & mask[:, None]) | itself)[:, None]
