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
def contrastive_loss(kind: ContrastiveKind, left: Tensor, right: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Contrastive loss of `left` and `right`, both `(rows, dim)`; `bias` is used by the sigmoid loss.

    softmax: InfoNCE in both directions (2010.00747, 2103.00020). decoupled: DCL, the same without the positive in the
    denominator (2110.06848). sigmoid: SigLIP, binary classification of all pairs (2303.15343).
    """
    scores = similarities(left, right, scale)
    if kind == "sigmoid":
        signs = 2 * torch.eye(len(scores), dtype=scores.dtype, device=scores.device) - 1
        return -F.logsigmoid(signs * (scores + bias)).sum(1).mean()
    positives = scores.diagonal()
    if kind == "decoupled":
        diagonal = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(diagonal, -torch.inf)
    both = scores.logsumexp(0) + scores.logsumexp(1)
    return (both / 2 - positives).mean()
