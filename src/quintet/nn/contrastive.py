"""Contrastive losses between two views of each item: InfoNCE, DCL and SigLIP.

Row i of one view is the positive of row i of the other; rows are unit vectors. Losses are computed in the log domain,
so that no temperature overflows, and in full precision, because differences of similarities are small.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.precision import at_least_fp32
from quintet.common.regions import compilable

ContrastiveKind = Literal["softmax", "decoupled", "sigmoid"]


def similarities(left: Tensor, right: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Scaled similarities `(..., rows, rows)` of all pairs of rows of `left` and `right` `(..., rows, dim)`."""
    with torch.autocast(left.device.type, enabled=False):
        return scale * (at_least_fp32(left) @ at_least_fp32(right).transpose(-2, -1))


@compilable
def contrastive_loss(
    kind: ContrastiveKind, left: Tensor, right: Tensor, scale: Tensor, bias: Tensor, negatives: Tensor | None = None
) -> Tensor:
    """Contrastive loss of `left` and `right`, both `(rows, dim)`; `bias` is used by the sigmoid loss.

    `negatives` `(rows, dim)` are one more negative for each row of `left` alone; a row of zeros is none.

    softmax: InfoNCE in both directions (2010.00747, 2103.00020). decoupled: DCL, the same without the positive in the
    denominator (2110.06848). sigmoid: SigLIP, binary classification of all pairs (2303.15343).
    """
    scores = similarities(left, right, scale)
    if kind == "sigmoid":
        signs = 2 * torch.eye(len(scores), dtype=scores.dtype, device=scores.device) - 1
        loss = -F.logsigmoid(signs * (scores + bias)).sum(1)
        if negatives is not None:
            hard, is_given = _paired(left, negatives, scale)
            loss = loss - F.logsigmoid(-(hard + bias)) * is_given
        return loss.mean()
    positives = scores.diagonal()
    if kind == "decoupled":
        diagonal = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(diagonal, -torch.inf)
    of_left = scores.logsumexp(1)
    if negatives is not None:
        hard, is_given = _paired(left, negatives, scale)
        of_left = torch.where(is_given, torch.logaddexp(of_left, hard), of_left)
    both = scores.logsumexp(0) + of_left
    return (both / 2 - positives).mean()


def _paired(left: Tensor, negatives: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Scaled similarities `(rows,)` of each row with its own negative, and which rows have one."""
    with torch.autocast(left.device.type, enabled=False):
        return scale * (at_least_fp32(left) * at_least_fp32(negatives)).sum(-1), negatives.any(-1)
