"""Owns the transformer of all families: attention, gated feed-forward, pre-norm blocks, positions on grids, caches.

Shapes are `(batch, tokens, dim)`. Masks are boolean, `(batch, tokens)`, true where there is something. A masked token
cannot reach any other, even if it is NaN; what comes out in its own place has no meaning.

No softmax is ever over nothing, which would be NaN. In self-attention a query that may see no key at all sees all of
them (or, causal, itself): only padding can be in that place. For cross-attention the transformer owns one learned
context vector, `nothing`, that stands before every context and is never masked: a row whose whole context is masked,
as a dropped caption's is, attends to it alone, and so does a transformer that is given no context.

Training calls a transformer with whole rows. A causal one can also go through rows piece by piece, `step` by `step`,
with a `Cache` from `start`; what comes out is the same, without gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.cpu_bf16_attention import attention_by_products, is_quicker_by_products

Norm = Literal["layer", "rms"]
Turn = tuple[Tensor, Tensor]
"""Cosines and sines, each `(tokens, 1, head_dim)`, or with the batch before, by which queries and keys are turned; as
a plane's first coordinate loses what its second one gains, the sines of first ones are negative."""

_EPSILON = 1e-6

EMBEDDING_SCALE = 0.5
"""Standard deviation of fresh embeddings and positions. Much less than what a block adds, and tokens would drown in
the first blocks' noise until training has turned them up: measured with Muse, see docs/decisions/0008."""


class LearnedPositions(nn.Module):
    """One learned table for each axis of a grid; a place's vector is the sum of its rows."""

    def __init__(self, shape: Sequence[int], dim: int) -> None:
        super().__init__()
        self.shape = _checked_shape(shape)
        self.tables = nn.ParameterList(torch.randn(size, dim) * EMBEDDING_SCALE for size in self.shape)

    def between(self, first: int, last: int) -> Tensor:
        """The vectors of the places from `first` to before `last` on a line."""
        part: Tensor = self.tables[0][_checked_part(first, last, self.shape)]
        return part

    def at(self, places: Tensor) -> Tensor:
        """The vectors of places that are counted over the whole shape, last axis fastest; `(..., dim)`."""
        return F.embedding(places, self(self.shape))

    def forward(self, grid: Sequence[int]) -> Tensor:
        """The vectors of a grid that fits into the shape, `(tokens, dim)`, last axis fastest."""
        grid = _checked_grid(grid, self.shape)
        total: Tensor = self.tables[0][: grid[0]]
        for table, size in zip(list(self.tables)[1:], grid[1:], strict=True):
            total = total[..., None, :] + table[:size]
        return total.reshape(-1, total.shape[-1])


class Rotary(nn.Module):
    """Turns queries and keys by their place on a grid, so that attention sees distances (Su et al. 2021, 2104.09864).

    The `head_dim / 2` planes of a head are shared out among the axes. A plane is made of the coordinates i and
    `head_dim / 2` + i.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(self, shape: Sequence[int], head_dim: int, theta: float = 10_000.0) -> None:
        super().__init__()
        self.shape = _checked_shape(shape)
        axes, planes = len(self.shape), head_dim // 2
        if head_dim % 2 or planes < axes:
            raise UsageError(f"Rotary positions on {axes} axes need an even head_dim of at least {2 * axes}.")
        angles = []
        for axis, size in enumerate(self.shape):
            share = planes // axes + (axis < planes % axes)
            speeds = theta ** -(torch.arange(share, dtype=torch.float64) / share)
            places = torch.arange(size, dtype=torch.float64).view(-1, *[1] * (axes - axis))
            angles.append((places * speeds).expand(*self.shape, share))
        whole = torch.cat(angles, dim=-1)[..., None, :]
        # Not saved: they follow from the shape, and a longer grid may continue from the same weights.
        for name, halves in (("cosines", (whole.cos(), whole.cos())), ("sines", (-whole.sin(), whole.sin()))):
            self.register_buffer(name, torch.cat(halves, dim=-1).to(torch.get_default_dtype()), persistent=False)

    def between(self, first: int, last: int) -> Turn:
        """The cosines and sines of the places from `first` to before `last` on a line."""
        part = _checked_part(first, last, self.shape)
        return self.cosines[part], self.sines[part]

    def at(self, places: Tensor) -> Turn:
        """The cosines and sines of places that are counted over the whole shape, last axis fastest."""
        return self.cosines.flatten(0, -3)[places], self.sines.flatten(0, -3)[places]

    def forward(self, grid: Sequence[int]) -> Turn:
        """The cosines and sines of a grid that fits into the shape."""
        part = tuple(slice(size) for size in _checked_grid(grid, self.shape))
        return self.cosines[part].flatten(0, -3), self.sines[part].flatten(0, -3)


def turn(x: Tensor, by: Turn) -> Tensor:
    """Turn `(batch, tokens, heads, head_dim)`, in the precision of the angles."""
    cosines, sines = by
    # Half way round, every coordinate lies where the other one of its plane was.
    turned = x * cosines + x.roll(x.shape[-1] // 2, dims=-1) * sines
    return turned.to(x.dtype)


class Past:
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
class Cache:
    """What a causal transformer keeps from one `step` to the next.

    `contexts` are the keys and values of every block's attention to the context, made once; `context_mask` is what
    `attention_mask` made.
    """

    pasts: list[Past]
    contexts: list[tuple[Tensor, Tensor]]
    context_mask: Tensor | None

    @property
    def length(self) -> int:
        """How many tokens were seen."""
        return self.pasts[0].length

    @property
    def max_length(self) -> int:
        return self.pasts[0].max_length

    def rewind(self) -> None:
        """Forget the tokens, and keep the room and the context."""
        for past in self.pasts:
            past.length = 0

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch alone."""
        for past in self.pasts:
            past.select(rows)
        self.contexts = [(keys[rows], values[rows]) for keys, values in self.contexts]
        self.context_mask = None if self.context_mask is None else self.context_mask[rows]


@dataclass(frozen=True)
class Context:
    """What every block's attention to a context needs of it, made once for many passes; see `Transformer.look`.

    `keys` and `values` are `(batch, blocks, heads, places, head_dim)`, of one block without `blocks`; `mask` is what
    `attention_mask` made. The first place is that of `nothing`.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor

    def of_block(self, number: int) -> Context:
        return Context(self.keys[:, number], self.values[:, number], self.mask)

    @property
    def told(self) -> Tensor | None:
        """The numbers of the rows that see more than `nothing`, if not all do."""
        # On a GPU it would have to be read from there which they are.
        if self.mask.device.type != "cpu":
            return None
        told = self.mask[:, 0, 0, 1:].any(1)
        return None if told.all() else told.nonzero()[:, 0]

    def select(self, rows: Tensor) -> Context:
        """Of these rows of the batch alone."""
        return Context(*(tensor.index_select(0, rows) for tensor in (self.keys, self.values, self.mask)))


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
        context: Tensor | Context | None = None,
        mask: Tensor | None = None,
        by: Turn | None = None,
    ) -> Tensor:
        """`mask` is what `attention_mask` made of the keys' mask; `by` turns queries and keys of self-attention."""
        if isinstance(context, Context):
            return self._look(x, context)
        if self.crosses:
            assert context is not None, "this attention needs a context"
            queries = self._queries(x)
            keys, values = self._keys_values(context)
        else:
            queries, keys, values = self._queries_keys_values(x, by)
        causal = self.causal and mask is None  # with a mask, `attention_mask` has put both in one
        return self._attend(queries, _by_head(keys), _by_head(values), mask, causal)

    def step(self, x: Tensor, past: Past, by: Turn | None = None) -> Tensor:
        """Causal self-attention of tokens that follow the past, which then has them too."""
        queries, keys, values = self._queries_keys_values(x, by)
        keys, values = past.append(_by_head(keys), _by_head(values))
        new, before = x.shape[1], past.length - x.shape[1]
        mask = None
        if new > 1 and before:
            mask = torch.ones(new, past.length, dtype=torch.bool, device=x.device).tril(before)
        return self._attend(queries, keys, values, mask, causal=new > 1 and not before)

    def to_context(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a context, `(batch, heads, places, head_dim)`, for `look_at`."""
        keys, values = self._keys_values(context)
        return _by_head(keys).contiguous(), _by_head(values).contiguous()

    def look_at(self, x: Tensor, context: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Attention to a context of which the keys and values were made before."""
        return self._attend(self._queries(x), *context, mask)

    def _look(self, x: Tensor, context: Context) -> Tensor:
        rows = context.told
        if rows is None:
            return self.look_at(x, (context.keys, context.values), context.mask)
        # All weight of the others is on one place, whatever they ask, so they need not ask.
        nothing: Tensor = self.to_out(context.values[:, :, :1].transpose(1, 2).flatten(2))
        out = nothing.repeat(1, x.shape[1], 1)
        if not len(rows):
            return out
        told = context.select(rows)
        looked = self.look_at(x.index_select(0, rows), (told.keys, told.values), told.mask)
        return out.index_copy_(0, rows, looked)

    def _queries_keys_values(self, x: Tensor, by: Turn | None) -> tuple[Tensor, Tensor, Tensor]:
        """Each `(batch, tokens, heads, head_dim)`."""
        heads = self._heads(self.to_queries_keys_values(x))
        queries, keys, values = heads.chunk(3, dim=2)
        queries, keys = self._normalised(queries, self.query_scale), self._normalised(keys)
        if by is not None:
            queries, keys = turn(queries, by), turn(keys, by)
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
        return F.layer_norm(heads, (self.head_dim,), scale, eps=_EPSILON).to(heads.dtype)

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool = False
    ) -> Tensor:
        """Queries by token, keys and values by head."""
        # Views: the kernels take any order of axes, and give theirs back so that heads join without a copy.
        queries = _by_head(queries)
        if is_quicker_by_products(queries, keys) and not causal:
            attended = attention_by_products(queries, keys, values, mask)
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


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, 2002.05202), with as many weights as an ungated layer of `multiplier` times the width."""

    def __init__(self, dim: int, multiplier: float = 4.0) -> None:
        super().__init__()
        hidden = 16 * math.ceil(dim * multiplier * 2 / 3 / 16)  # whole vectors of the matrix kernels
        self.to_hidden = nn.Linear(dim, 2 * hidden, bias=False)
        self.to_out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        values, gates = self.to_hidden(x).chunk(2, dim=-1)
        out: Tensor = self.to_out(values * F.silu(gates))
        return out


class Block(nn.Module):
    """Self-attention, attention to a context if there is one, feed-forward; each normalised before and added after."""

    recomputable = True

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int = 64,
        context_dim: int | None = None,
        norm: Norm = "layer",
        multiplier: float = 4.0,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.attention_norm = make_norm(norm, dim)
        self.attention = Attention(dim, heads, head_dim, causal=causal)
        self.crosses = context_dim is not None
        if context_dim is not None:
            self.cross_norm = make_norm(norm, dim)
            self.cross_attention = Attention(dim, heads, head_dim, context_dim)
        self.feed_forward_norm = make_norm(norm, dim)
        self.feed_forward = FeedForward(dim, multiplier)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | Context | None = None,
        context_mask: Tensor | None = None,
        by: Turn | None = None,
        where: Tensor | None = None,
    ) -> Tensor:
        """The masks are what `attention_mask` made. With `where` only these tokens come out."""
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=mask, by=by))
        if self.crosses:
            x = x + self.dropout(self.cross_attention(self.cross_norm(x), context, context_mask))
        if where is not None:
            x = x.flatten(0, 1).index_select(0, where)
        out: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return out

    def step(
        self,
        x: Tensor,
        past: Past,
        context: tuple[Tensor, Tensor] | None = None,
        context_mask: Tensor | None = None,
        by: Turn | None = None,
    ) -> Tensor:
        """The same for tokens that follow the past, without dropout; the context is what `to_context` made."""
        x = x + self.attention.step(self.attention_norm(x), past, by)
        if context is not None:
            x = x + self.cross_attention.look_at(self.cross_norm(x), context, context_mask)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Transformer(nn.Module):
    """Blocks and a last norm, over tokens that lie on a grid if `positions` says so.

    Learned positions are added to the input once; rotary ones turn queries and keys in every self-attention. `rotary`
    does so beside learned ones: these say where a token is, turning says how far two are apart.
    `dropout` is that of each branch before it is added; attention weights have none, so that the fast kernels stay.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        head_dim: int = 64,
        context_dim: int | None = None,
        norm: Norm = "layer",
        multiplier: float = 4.0,
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
            Block(dim, heads, head_dim, context_dim, norm, multiplier, dropout, causal) for _ in range(depth)
        )
        self.norm = make_norm(norm, dim)
        self.nothing = None if context_dim is None else nn.Parameter(torch.randn(context_dim))
        self._shrink_branches()

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | Context | None = None,
        context_mask: Tensor | None = None,
        grid: Sequence[int] | None = None,
        places: Tensor | None = None,
        where: Tensor | None = None,
    ) -> Tensor:
        """`grid` says how the tokens lie where that is not the whole shape of the positions; a line may be shorter.

        `places` `(batch, tokens)` says it where every row lies in its own way: counted over the whole shape. Who
        needs some tokens alone gives their numbers, counted over the whole batch, as `where`, and gets `(tokens there,
        dim)`: the last feed-forward is spared the others.
        """
        for state in self.hidden(x, mask, context, context_mask, grid, places, where):
            last = state  # one at a time: the others may be forgotten
        out: Tensor = self.norm(last)
        return out

    def hidden(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | Context | None = None,
        context_mask: Tensor | None = None,
        grid: Sequence[int] | None = None,
        places: Tensor | None = None,
        where: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """What comes out of each block in turn, before the last norm; of the last one the tokens `where` alone."""
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
            mask = attention_mask(mask, self.causal)
        if not isinstance(context, Context):
            context, context_mask = self._after_nothing(len(x), context, context_mask)
        by = None
        if isinstance(self.positions, LearnedPositions):
            x = x + (self.positions(self._grid(x, grid)) if places is None else self.positions.at(places))
        turning = self.positions if isinstance(self.positions, Rotary) else self.rotary
        if turning is not None:
            by = turning(self._grid(x, grid)) if places is None else turning.at(places)
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            seen = context.of_block(number) if isinstance(context, Context) else context
            x = block(x, mask, seen, context_mask, by, where if number == last else None)
            yield x

    @torch.no_grad()
    def look(self, context: Tensor, context_mask: Tensor) -> Context:
        """The context as many passes may be given it, instead of itself and its mask."""
        pairs, mask = self._contexts(len(context), context, context_mask)
        assert mask is not None
        keys, values = (torch.stack(parts, dim=1) for parts in zip(*pairs, strict=True))
        return Context(keys, values, mask)

    @torch.no_grad()
    def start(
        self, batch: int, max_length: int, context: Tensor | None = None, context_mask: Tensor | None = None
    ) -> Cache:
        """What `step` begins with: room for `max_length` tokens, and the context as every block wants it."""
        if not self.causal:
            raise UsageError("Only a causal transformer can go step by step: earlier tokens must not see later ones.")
        if self.positions is not None and len(self.positions.shape) != 1:
            raise UsageError("Only tokens on a line can go step by step, not those on a grid.")
        contexts, context_mask = self._contexts(batch, context, context_mask)
        return Cache([Past(max_length) for _ in self.blocks], contexts, context_mask)

    @torch.no_grad()
    def step(self, x: Tensor, cache: Cache) -> Tensor:
        """What `forward` gives for these tokens, `(batch, new, dim)`, after all those that the cache has seen."""
        before, after = cache.length, cache.length + x.shape[1]
        if after > cache.max_length:
            raise UsageError(f"{after} tokens do not fit into a cache of {cache.max_length}.")
        if isinstance(self.positions, LearnedPositions):
            x = x + self.positions.between(before, after)
        turning = self.positions if isinstance(self.positions, Rotary) else self.rotary
        by = None if turning is None else turning.between(before, after)
        for number, (block, past) in enumerate(zip(self.blocks, cache.pasts, strict=True)):
            assert isinstance(block, Block)
            x = block.step(x, past, cache.contexts[number] if cache.contexts else None, cache.context_mask, by)
        out: Tensor = self.norm(x)
        return out

    def _contexts(
        self, batch: int, context: Tensor | None, mask: Tensor | None
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """What each block's attention makes of the context, if it has any, and the mask for all of them."""
        context, mask = self._after_nothing(batch, context, mask)
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [] if context is None else [block.cross_attention.to_context(context) for block in blocks], mask

    def _after_nothing(
        self, batch: int, context: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The context behind the vector that is always there, and the mask of both, ready for attention."""
        if self.nothing is None:
            if context is not None:
                raise UsageError("This transformer takes no context: it was made without context_dim.")
            return None, None
        first = self.nothing.expand(batch, 1, -1)
        if context is None:
            return first, None
        if mask is None:
            return torch.cat([first.to(context.dtype), context], dim=1), None
        context = context.masked_fill(~mask[..., None], 0)
        return torch.cat([first.to(context.dtype), context], dim=1), attention_mask(F.pad(mask, (1, 0), value=True))

    def _grid(self, x: Tensor, grid: Sequence[int] | None) -> Sequence[int]:
        assert self.positions is not None
        shape = self.positions.shape
        if grid is None:
            grid = (x.shape[1],) if len(shape) == 1 else shape
        if math.prod(grid) != x.shape[1]:
            raise UsageError(f"{x.shape[1]} tokens do not fill a grid of {_times(grid)}.")
        return grid

    def _shrink_branches(self) -> None:
        """So that the sum of all branches starts at the scale of one, however deep."""
        for block in self.blocks:
            branches = [module for module in block.children() if isinstance(module, Attention | FeedForward)]
            for branch in branches:
                branch.to_out.weight.data.mul_((len(branches) * len(self.blocks)) ** -0.5)


def make_norm(norm: Norm, dim: int) -> nn.Module:
    if norm == "rms":
        return nn.RMSNorm(dim, eps=_EPSILON)
    if norm == "layer":
        return nn.LayerNorm(dim, eps=_EPSILON, bias=False)
    raise UsageError(f"norm must be 'rms' or 'layer', not {norm!r}.")


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if not shape or min(shape) < 1:
        raise UsageError(f"Positions need a grid with at least one place on every axis, not {tuple(shape)}.")
    return tuple(shape)


def _checked_grid(grid: Sequence[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(grid) != len(shape) or any(not 1 <= size <= most for size, most in zip(grid, shape, strict=True)):
        raise UsageError(f"A grid of {_times(grid)} does not fit into the positions of {_times(shape)}.")
    return tuple(grid)


def _checked_part(first: int, last: int, shape: tuple[int, ...]) -> slice:
    if last > shape[0]:
        raise UsageError(f"{last} tokens do not fit into the positions of {_times(shape)}.")
    return slice(first, last)


def _times(grid: Sequence[int]) -> str:
    return " x ".join(map(str, grid))


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"A transformer needs {name} of at least 1, not {size}.")
