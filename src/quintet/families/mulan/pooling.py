"""Mean pooling of a tower's tokens over those that are valid."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.nn.transformer import Transformer


def pooled_states(
    transformer: Transformer, x: Tensor, mask: Tensor, after: Sequence[int] = (), places: Tensor | None = None
) -> Tensor:
    """The mean over the tokens that are there, after these blocks and at the end, `(batch, states, dim)`."""
    states = []
    for number, state in enumerate(transformer.hidden(x, mask, places=places)):
        last = state
        if number in after:
            states.append(_mean(state, mask))
    return torch.stack([*states, _mean(transformer.norm(last), mask)], dim=1)


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    there = x.masked_fill(~mask[..., None], 0)
    return there.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
