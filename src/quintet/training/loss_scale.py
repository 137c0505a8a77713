"""Dynamic loss scaling for fp16 (Micikevicius et al. 2017, 1710.03740).

Small gradients are zero in fp16. So the loss is multiplied by a large power of two before the backward pass, and the
fp32 gradients of the weights are divided by it. A scale that is too large overflows: the step is skipped as any other
non-finite step, and the scale halved. After many accepted steps in a row it is doubled. A power of two changes no bit
of a gradient that stays in range, and the scale is part of the checkpoint, so that resuming is exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from quintet.training.state import Progress

INITIAL = 2.0**16
LARGEST = 2.0**24
GROWTH_STEPS = 2000
"""Number of accepted steps in a row after which the scale is doubled."""


def unscale(parameters: Iterable[nn.Parameter], scale: float) -> None:
    """Divide the gradients of a scaled loss by the scale, in place."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients and scale != 1.0:
        torch._foreach_mul_(gradients, 1 / scale)


def update(progress: Progress, accepted: bool) -> None:
    """The scale of the next step, in the counters of the run; for runs in other precisions nothing changes."""
    if progress.loss_scale is None:
        return
    progress.steps_since_overflow = progress.steps_since_overflow + 1 if accepted else 0
    if not accepted:
        progress.loss_scale /= 2
    elif progress.steps_since_overflow % GROWTH_STEPS == 0:
        progress.loss_scale = min(progress.loss_scale * 2, LARGEST)
