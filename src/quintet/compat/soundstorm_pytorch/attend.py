"""`Attend` of soundstorm-pytorch: attention of queries to keys and values, by torch's own function."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attend(nn.Module):
    """Queries (batch, heads, queries, dim) to outputs of the same shape. `flash` is what torch chooses by itself."""

    def __init__(self, causal: bool = False, dropout: float = 0.0, flash: bool = False) -> None:
        super().__init__()
        self.causal, self.dropout, self.flash = causal, dropout, flash

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, attn_bias: Tensor | None = None
    ) -> Tensor:
        """`k` and `v` have an axis of heads or one head for all; `mask` (batch, keys) is true at valid keys."""
        keys, values = (each[:, None] if each.ndim == 3 else each for each in (k, v))
        queries, count = q.shape[-2], keys.shape[-2]
        bias = q.new_zeros(1, 1, queries, count) if attn_bias is None else attn_bias.to(q.dtype)
        lowest = torch.finfo(q.dtype).min
        if self.causal:
            later = torch.ones(queries, count, dtype=torch.bool, device=q.device).triu(count - queries + 1)
            bias = bias.masked_fill(later, lowest)
        if mask is not None:
            bias = bias.masked_fill(~(mask if mask.ndim == 4 else mask[:, None, None]), lowest)
        heads = q.shape[1]
        keys, values = (each.expand(-1, heads, -1, -1) for each in (keys, values))
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=bias, dropout_p=dropout)


__all__ = ["Attend"]
