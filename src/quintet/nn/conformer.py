"""Owns the conformer: attention and convolution in one block, over frames on a line (Gulati et al. 2020, 2005.08100).

Shapes are `(batch, frames, dim)`; masks are boolean, `(batch, frames)`, true where there is something. Neither
attention nor convolution lets a masked frame reach another one, even if it is NaN: a row comes out the same alone and
beside longer ones. What comes out in a masked place has no meaning.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.attention import Attention, attention_mask
from quintet.nn.positions import CosSin, Rotary
from quintet.nn.transformer import FeedForward, make_norm


class Convolution(nn.Module):
    """Pointwise and gated, over `kernel` frames channel by channel, normalised, Swish, pointwise.

    The norm is over the channels of one frame. One over the batch, as in the paper, would let rows and padding be felt
    by each other.
    """

    def __init__(self, dim: int, kernel: int = 5, expansion: int = 1) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise UsageError(f"A convolution over {kernel} frames has no frame in its middle; give an odd number.")
        inner = dim * expansion
        self.to_gated = nn.Linear(dim, 2 * inner, bias=False)
        self.over_frames = nn.Conv1d(inner, inner, kernel, padding=kernel // 2, groups=inner, bias=False)
        self.norm = make_norm("layer", inner)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        gated = F.glu(self.to_gated(x), dim=-1)
        if mask is not None:
            # What lies beyond the end of a row is then what lies beyond the end of the longest: zeros.
            gated = gated.masked_fill(~mask[..., None], 0)
        out: Tensor = self.to_out(F.silu(self.norm(self._mixed(gated))))
        return out

    def _mixed(self, x: Tensor) -> Tensor:
        """Over frames, channel by channel, as a picture one pixel wide whose channels lie together, as they do here.

        The kernels for lines of frames want them apart, and take about six times as long on a CPU.
        """
        picture = x[:, :, None].permute(0, 3, 1, 2)
        kernel = self.over_frames.weight[..., None]
        mixed = F.conv2d(picture, kernel, padding=(kernel.shape[2] // 2, 0), groups=len(kernel))
        return mixed[..., 0].transpose(1, 2)


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward; each normalised before; a norm at the end."""

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

    def forward(self, x: Tensor, mask: Tensor | None = None, cos_sin: CosSin | None = None) -> Tensor:
        seen = None if mask is None else attention_mask(mask)
        x = x + 0.5 * self.dropout(self.first(self.first_norm(x)))
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=seen, cos_sin=cos_sin))
        x = x + self.dropout(self.convolution(self.convolution_norm(x), mask))
        x = x + 0.5 * self.dropout(self.last(self.last_norm(x)))
        out: Tensor = self.norm(x)
        return out


class Conformer(nn.Module):
    """Blocks over at most `max_frames` frames; attention sees distances, by rotary positions."""

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
    ) -> None:
        super().__init__()
        self.max_frames = max_frames
        self.rotary = Rotary((max_frames,), head_dim)
        self.blocks = nn.ModuleList(
            ConformerBlock(dim, heads, head_dim, ff_mult, kernel, expansion, dropout) for _ in range(depth)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if x.shape[1] > self.max_frames:
            raise UsageError(f"{x.shape[1]} frames are more than the {self.max_frames} of a conformer's positions.")
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
        cos_sin = self.rotary((x.shape[1],))
        for block in self.blocks:
            x = block(x, mask, cos_sin)
        return x
