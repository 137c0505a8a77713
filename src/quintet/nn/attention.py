"""Multi-head attention of tokens to themselves or to a context, through `scaled_dot_product_attention`.

Shapes are `(batch, tokens, dim)`. Masks are boolean, true where there is something. No softmax is ever over nothing,
which would be NaN: `attention_mask` lets a query that may see no key at all see all of them (or, causal, itself).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.cpu_bf16_attention import cpu_bf16_attention, is_cpu_bf16_faster
from quintet.nn.kv_cache import LayerKVCache
from quintet.nn.rotary import CosSin, apply_rotary

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
        self.crosses = context_dim is not None
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
        if self.crosses:
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
