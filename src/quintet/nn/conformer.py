"""Conformer: blocks of attention and convolution over a sequence of frames (Gulati et al. 2020, 2005.08100).

Shapes are `(batch, frames, dim)`; masks are boolean, `(batch, frames)`, true at valid frames. A masked frame affects no
other frame, even if it is NaN, so the output of a row does not depend on longer rows in the batch. The output at
masked positions is meaningless.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.attention import Attention, CrossKV, attention_mask, prepend_null_context
from quintet.nn.positions import CosSin, Rotary
from quintet.nn.transformer import FeedForward, make_norm


class Convolution(nn.Module):
    """Convolution module: pointwise with GLU, depthwise over `kernel` frames, norm, Swish, pointwise.

    The norm is a layer norm over the channels of a frame. The batch norm of the paper would make rows depend on each
    other and on padding.
    """

    def __init__(self, dim: int, kernel: int = 5, expansion: int = 1) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise UsageError(f"The kernel size of a conformer convolution must be odd, not {kernel}.")
        inner = dim * expansion
        self.to_gated = nn.Linear(dim, 2 * inner, bias=False)
        self.over_frames = nn.Conv1d(inner, inner, kernel, padding=kernel // 2, groups=inner, bias=False)
        self.norm = make_norm("layer", inner)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        gated = F.glu(self.to_gated(x), dim=-1)
        if mask is not None:
            # Zeros beyond the end of a row, like the zero padding beyond the longest row.
            gated = gated.masked_fill(~mask[..., None], 0)
        out: Tensor = self.to_out(F.silu(self.norm(self._mixed(gated))))
        return out

    def _mixed(self, x: Tensor) -> Tensor:
        """Depthwise convolution over frames, as a channels-last 2-D convolution over images one pixel wide.

        The 1-D kernels need channels first, and take about six times as long on a CPU.
        """
        image = x[:, :, None].permute(0, 3, 1, 2)
        kernel = self.over_frames.weight[..., None]
        mixed = F.conv2d(image, kernel, padding=(kernel.shape[2] // 2, 0), groups=len(kernel))
        return mixed[..., 0].transpose(1, 2)


class ConformerBlock(nn.Module):
    """Half feed-forward, attention, convolution, half feed-forward; pre-norm, with a final norm.

    With `context_dim`, cross-attention to a context follows the attention; it starts without an effect.
    """

    recomputable = True

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int = 64,
        ff_mult: float = 4.0,
        kernel: int = 5,
        expansion: int = 1,
        dropout: float = 0.0,
        context_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.first_norm = make_norm("layer", dim)
        self.first = FeedForward(dim, ff_mult)
        self.attention_norm = make_norm("layer", dim)
        self.attention = Attention(dim, heads, head_dim)
        self.convolution_norm = make_norm("layer", dim)
        self.convolution = Convolution(dim, kernel, expansion)
        self.last_norm = make_norm("layer", dim)
        self.last = FeedForward(dim, ff_mult)
        self.norm = make_norm("layer", dim)
        self.dropout = nn.Dropout(dropout)
        self.has_cross_attention = context_dim is not None
        if context_dim is not None:
            self.cross_norm = make_norm("layer", dim)
            self.cross_attention = Attention(dim, heads, head_dim, context_dim)
            # Zero initialisation: training starts as without a context.
            nn.init.zeros_(self.cross_attention.to_out.weight)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cos_sin: CosSin | None = None,
        context: Tensor | CrossKV | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """`mask` (batch, frames) is that of valid frames, `context_mask` the result of `attention_mask`."""
        keys_mask = None if mask is None else attention_mask(mask)
        x = x + 0.5 * self.dropout(self.first(self.first_norm(x)))
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=keys_mask, cos_sin=cos_sin))
        if self.has_cross_attention:
            x = x + self.dropout(self.cross_attention(self.cross_norm(x), context, context_mask))
        x = x + self.dropout(self.convolution(self.convolution_norm(x), mask))
        x = x + 0.5 * self.dropout(self.last(self.last_norm(x)))
        out: Tensor = self.norm(x)
        return out


class Conformer(nn.Module):
    """Conformer blocks with rotary positions, over at most `max_frames` frames.

    With `context_dim`, the blocks attend to a context (batch, positions, context_dim) after a learned null context.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        head_dim: int = 64,
        ff_mult: float = 4.0,
        kernel: int = 5,
        expansion: int = 1,
        dropout: float = 0.0,
        max_frames: int = 2048,
        context_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.max_frames = max_frames
        self.rotary = Rotary((max_frames,), head_dim)
        self.blocks = nn.ModuleList(
            ConformerBlock(dim, heads, head_dim, ff_mult, kernel, expansion, dropout, context_dim) for _ in range(depth)
        )
        self.nothing = None if context_dim is None else nn.Parameter(torch.randn(context_dim))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | CrossKV | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """`context_mask` (batch, positions) is the mask of the context; a `CrossKV` has its own."""
        if x.shape[1] > self.max_frames:
            raise UsageError(f"{x.shape[1]} frames exceed the maximum of {self.max_frames} of this conformer.")
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
        cos_sin = self.rotary((x.shape[1],))
        if self.nothing is None:
            for block in self.blocks:
                x = block(x, mask, cos_sin)
            return x
        if not isinstance(context, CrossKV):
            context, context_mask = prepend_null_context(self.nothing, len(x), context, context_mask)
        for number, block in enumerate(self.blocks):
            own_context = context.of_block(number) if isinstance(context, CrossKV) else context
            x = block(x, mask, cos_sin, own_context, context_mask)
        return x

    @torch.no_grad()
    def precompute_cross_kv(self, context: Tensor, context_mask: Tensor) -> CrossKV:
        """Keys and values of a context for many forward passes, instead of the context and its mask."""
        assert self.nothing is not None
        context, mask = prepend_null_context(self.nothing, len(context), context, context_mask)
        assert mask is not None
        blocks = [block for block in self.blocks if isinstance(block, ConformerBlock)]
        pairs = [block.cross_attention.cross_kv(context) for block in blocks]
        keys, values = (torch.stack(parts, dim=1) for parts in zip(*pairs, strict=True))
        return CrossKV(keys, values, mask)
