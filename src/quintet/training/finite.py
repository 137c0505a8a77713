"""Owns the guard against NaN and Inf in what a run consists of: weights, their average, optimizer moments.

A step whose losses, gradients or moments are not finite is never taken, and a state that is not finite is never
saved: whatever happens, every checkpoint of a run can be gone on from.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from quintet.common.collectives import gather_names
from quintet.training.distributed.sharding import own_part
from quintet.training.engine import Engine


def largest_moment(optimizer: Optimizer) -> Tensor | None:
    """The largest magnitude in an optimizer's moments in this process, non-finite if any element is; None before the
    first step.

    The largest element rather than the norm: squares of squared gradients overflow long before the moments do.
    """
    moments = [
        own_part(value)
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.ndim and own_part(value).numel()
    ]
    return nn.utils.get_total_norm(moments, norm_type=torch.inf, foreach=True) if moments else None


def broken_tensors(groups: Mapping[str, Mapping[str, Tensor]], engine: Engine) -> list[str]:
    """The names of the tensors that hold a non-finite number, as `group: tensor`; of a sharded state on any rank."""
    broken = [
        f"{group}: {name}"
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not bool(own_part(tensor).isfinite().all())
    ]
    return list(dict.fromkeys(gather_names(broken, engine.device))) if engine.is_sharded else broken
