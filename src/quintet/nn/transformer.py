"""Transformer of all families: pre-norm blocks with attention, cross-attention and SwiGLU, over tokens on a grid.

Shapes are `(batch, tokens, dim)`. Masks are boolean, `(batch, tokens)`, true at valid tokens. A masked token affects no
other token, even if it is NaN; the output at masked positions is meaningless.

A softmax over no keys would be NaN. In self-attention, a query without any valid key attends to all keys (or, if
causal, to itself); this can only happen at padding. For cross-attention the transformer has one learned null context
vector (`nothing`), which precedes every context and is never masked: a row whose context is fully masked, such as a
dropped caption, attends only to it, and so does a transformer without a context.

Training uses full rows. A causal transformer can also process rows step by step, with `step` and a `KVCache` from
`start`; the output is the same, without gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.attention import (
    NORM_EPSILON,
    Attention,
    CrossKV,
    KVCache,
    LayerKVCache,
    attention_mask,
    prepend_null_context,
)
from quintet.nn.positions import CosSin, LearnedPositions, Rotary, grid_text

Norm = Literal["layer", "rms"]


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, 2002.05202), with as many weights as an ungated layer of hidden size `ff_mult * dim`."""

    def __init__(self, dim: int, ff_mult: float = 4.0) -> None:
        super().__init__()
        hidden = 16 * math.ceil(dim * ff_mult * 2 / 3 / 16)  # a multiple of the vector size of matrix kernels
        self.to_hidden = nn.Linear(dim, 2 * hidden, bias=False)
        self.to_out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        values, gates = self.to_hidden(x).chunk(2, dim=-1)
        out: Tensor = self.to_out(values * F.silu(gates))
        return out


class Block(nn.Module):
    """Pre-norm residual block: self-attention, cross-attention if `context_dim` is set, feed-forward."""

    recomputable = True

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int = 64,
        context_dim: int | None = None,
        norm: Norm = "layer",
        ff_mult: float = 4.0,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.attention_norm = make_norm(norm, dim)
        self.attention = Attention(dim, heads, head_dim, causal=causal)
        self.has_cross_attention = context_dim is not None
        if context_dim is not None:
            self.cross_norm = make_norm(norm, dim)
            self.cross_attention = Attention(dim, heads, head_dim, context_dim)
        self.feed_forward_norm = make_norm(norm, dim)
        self.feed_forward = FeedForward(dim, ff_mult)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | CrossKV | None = None,
        context_mask: Tensor | None = None,
        cos_sin: CosSin | None = None,
        where: Tensor | None = None,
    ) -> Tensor:
        """`(batch, tokens, dim)` to the same shape, or `(indices, dim)` with flat token indices `where`.

        The masks are results of `attention_mask`.
        """
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=mask, cos_sin=cos_sin))
        if self.has_cross_attention:
            x = x + self.dropout(self.cross_attention(self.cross_norm(x), context, context_mask))
        if where is not None:
            x = x.flatten(0, 1).index_select(0, where)
        out: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return out

    def step(
        self,
        x: Tensor,
        cache: LayerKVCache,
        context: tuple[Tensor, Tensor] | None = None,
        context_mask: Tensor | None = None,
        cos_sin: CosSin | None = None,
    ) -> Tensor:
        """The same for new tokens after those in the cache, without dropout; `context` is from `cross_kv`."""
        x = x + self.attention.step(self.attention_norm(x), cache, cos_sin)
        if context is not None:
            x = x + self.cross_attention.cross_attend(self.cross_norm(x), context, context_mask)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Transformer(nn.Module):
    """Transformer blocks and a final norm, with optional position embeddings on a grid.

    Learned `positions` are added to the input; rotary `positions` rotate queries and keys in every self-attention.
    `rotary` adds rotary to learned positions, for absolute and relative positions. `dropout` applies to the output of
    each residual branch, and not to attention weights, so that fast attention kernels can be used.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        head_dim: int = 64,
        context_dim: int | None = None,
        norm: Norm = "layer",
        ff_mult: float = 4.0,
        dropout: float = 0.0,
        causal: bool = False,
        positions: LearnedPositions | Rotary | None = None,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(dim=dim, depth=depth, heads=heads, head_dim=head_dim)
        self.dim = dim
        self.causal = causal
        self.positions = positions
        self.rotary = rotary
        self.blocks = nn.ModuleList(
            Block(dim, heads, head_dim, context_dim, norm, ff_mult, dropout, causal) for _ in range(depth)
        )
        self.norm = make_norm(norm, dim)
        self.nothing = None if context_dim is None else nn.Parameter(torch.randn(context_dim))
        self._shrink_branches()

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | CrossKV | None = None,
        context_mask: Tensor | None = None,
        grid: Sequence[int] | None = None,
        position_ids: Tensor | None = None,
        where: Tensor | None = None,
    ) -> Tensor:
        """`(batch, tokens, dim)` to the same shape.

        `grid` is the grid of the tokens, if it is smaller than the shape of the positions. `position_ids`
        `(batch, tokens)` are flat indices into that shape, for rows with individual positions. `where` are flat indices
        of tokens over the batch: only these are returned, `(indices, dim)`, and the last feed-forward is computed for
        them alone.
        """
        for state in self.hidden(x, mask, context, context_mask, grid, position_ids, where):
            last = state  # a loop, so that earlier states can be freed
        out: Tensor = self.norm(last)
        return out

    def hidden(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | CrossKV | None = None,
        context_mask: Tensor | None = None,
        grid: Sequence[int] | None = None,
        position_ids: Tensor | None = None,
        where: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """The output of each block in turn, before the final norm; of the last block only the tokens in `where`."""
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
            mask = attention_mask(mask, self.causal)
        if not isinstance(context, CrossKV):
            context, context_mask = self._prepend_null_context(len(x), context, context_mask)
        cos_sin = None
        if isinstance(self.positions, LearnedPositions):
            x = x + (self.positions(self._grid(x, grid)) if position_ids is None else self.positions.at(position_ids))
        rotary = self.positions if isinstance(self.positions, Rotary) else self.rotary
        if rotary is not None:
            cos_sin = rotary(self._grid(x, grid)) if position_ids is None else rotary.at(position_ids)
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            own_context = context.of_block(number) if isinstance(context, CrossKV) else context
            x = block(x, mask, own_context, context_mask, cos_sin, where if number == last else None)
            yield x

    @torch.no_grad()
    def precompute_cross_kv(self, context: Tensor, context_mask: Tensor) -> CrossKV:
        """Keys and values of a context for many forward passes, instead of the context and its mask."""
        pairs, mask = self._contexts(len(context), context, context_mask)
        assert mask is not None
        keys, values = (torch.stack(parts, dim=1) for parts in zip(*pairs, strict=True))
        return CrossKV(keys, values, mask)

    @torch.no_grad()
    def start(
        self, batch: int, max_length: int, context: Tensor | None = None, context_mask: Tensor | None = None
    ) -> KVCache:
        """The initial cache for `step`, for up to `max_length` tokens, with keys and values of the context."""
        if not self.causal:
            raise UsageError("Step-by-step decoding needs a causal transformer.")
        if self.positions is not None and len(self.positions.shape) != 1:
            raise UsageError("Step-by-step decoding needs tokens on a line, not on a grid.")
        contexts, context_mask = self._contexts(batch, context, context_mask)
        return KVCache([LayerKVCache(max_length) for _ in self.blocks], contexts, context_mask)

    @torch.no_grad()
    def step(self, x: Tensor, cache: KVCache) -> Tensor:
        """The output of `forward` for new tokens `(batch, new, dim)` after those in the cache, which is updated."""
        before, after = cache.length, cache.length + x.shape[1]
        if after > cache.max_length:
            raise UsageError(f"{after} tokens do not fit into a KV cache of {cache.max_length}.")
        if isinstance(self.positions, LearnedPositions):
            x = x + self.positions.between(before, after)
        rotary = self.positions if isinstance(self.positions, Rotary) else self.rotary
        cos_sin = None if rotary is None else rotary.between(before, after)
        for number, (block, layer) in enumerate(zip(self.blocks, cache.layers, strict=True)):
            assert isinstance(block, Block)
            x = block.step(x, layer, cache.contexts[number] if cache.contexts else None, cache.context_mask, cos_sin)
        out: Tensor = self.norm(x)
        return out

    def _contexts(
        self, batch: int, context: Tensor | None, mask: Tensor | None
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """Keys and values of the context for each block, empty without cross-attention, and their mask."""
        context, mask = self._prepend_null_context(batch, context, mask)
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [] if context is None else [block.cross_attention.cross_kv(context) for block in blocks], mask

    def _prepend_null_context(
        self, batch: int, context: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The context with the null context vector prepended, and the attention mask of both."""
        if self.nothing is None:
            if context is not None:
                raise UsageError("This transformer takes no context: it has no context_dim.")
            return None, None
        return prepend_null_context(self.nothing, batch, context, mask)

    def _grid(self, x: Tensor, grid: Sequence[int] | None) -> Sequence[int]:
        assert self.positions is not None
        shape = self.positions.shape
        if grid is None:
            grid = (x.shape[1],) if len(shape) == 1 else shape
        if math.prod(grid) != x.shape[1]:
            raise UsageError(f"{x.shape[1]} tokens do not match a grid of {grid_text(grid)}.")
        return grid

    def _shrink_branches(self) -> None:
        """Scale output weights so that the sum of all branches starts at the scale of one, whatever the depth."""
        for block in self.blocks:
            branches = [module for module in block.children() if isinstance(module, Attention | FeedForward)]
            for branch in branches:
                branch.to_out.weight.data.mul_((len(branches) * len(self.blocks)) ** -0.5)


def make_norm(norm: Norm, dim: int) -> nn.Module:
    if norm == "rms":
        return nn.RMSNorm(dim, eps=NORM_EPSILON)
    if norm == "layer":
        return nn.LayerNorm(dim, eps=NORM_EPSILON, bias=False)
    raise UsageError(f"norm must be 'rms' or 'layer', not {norm!r}.")


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"A transformer needs {name} of at least 1, not {size}.")
