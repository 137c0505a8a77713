"""Owns losses that bring the two views of each item together and hold those of different items apart.

Row i of one view belongs to row i of the other; rows have length one. Everything is computed from logarithms, so
that no temperature overflows, and in full precision: differences of similarities are small.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.precision import at_least_fp32

ContrastiveKind = Literal["softmax", "decoupled", "sigmoid"]


def similarities(left: Tensor, right: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """`(..., rows, rows)`: of every row of the one with every row of the other, times the scale."""
    with torch.autocast(left.device.type, enabled=False):
        return scale * (at_least_fp32(left) @ at_least_fp32(right).transpose(-2, -1))


def contrastive_loss(kind: ContrastiveKind, left: Tensor, right: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """The loss of `(rows, dim)` against `(rows, dim)`; the bias is for the sigmoid loss.

    softmax: which of all rows belongs to this one, asked both ways (2010.00747, 2103.00020). decoupled: the same with
    the right answer left out of the sum of all answers (2110.06848). sigmoid: of every pair, whether it belongs
    together (2303.15343).
    """
    scores = similarities(left, right, scale)
    if kind == "sigmoid":
        together = 2 * torch.eye(len(scores), dtype=scores.dtype, device=scores.device) - 1
        return -F.logsigmoid(together * (scores + bias)).sum(1).mean()
    right_answers = scores.diagonal()
    if kind == "decoupled":
        itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(itself, -torch.inf)
    both = scores.logsumexp(0) + scores.logsumexp(1)
    return (both / 2 - right_answers).mean()
