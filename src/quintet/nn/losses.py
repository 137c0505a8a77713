"""Losses over logits, the largest tensors of a generator."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from quintet.common.precision import at_least_fp32
from quintet.common.regions import compilable
from quintet.nn.codebook import CodebookSmoothing


def code_losses(
    logits: Tensor,
    targets: Tensor,
    levels: Tensor | int = 0,
    label_smoothing: float = 0.0,
    codebook_smoothing: CodebookSmoothing | None = None,
) -> Tensor:
    """Cross-entropy (tokens,) of logits (tokens, codes) in fp32; `levels` (tokens,) or one level for all."""
    if codebook_smoothing is None:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=label_smoothing)
    return codebook_smoothing.loss(logits.log_softmax(-1), targets, levels)


@compilable
def token_losses(
    logits: Tensor,
    targets: Tensor,
    label_smoothing: float,
    codebook_smoothing: CodebookSmoothing | None = None,
    levels: Tensor | int = 0,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy (tokens,) of each token, and whether its most likely code is the target, as 0 or 1.

    `logits` (tokens, codes), `targets` (tokens,), `levels` (tokens,) or one level for all."""
    # Also for argmax, which is four times slower in bf16 on a CPU.
    logits = at_least_fp32(logits)
    losses = code_losses(logits, targets, levels, label_smoothing, codebook_smoothing)
    return losses, (logits.argmax(-1) == targets).to(losses.dtype)
