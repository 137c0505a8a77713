"""Full precision where the half of it that autocast computes in would lose what matters."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_fp32(x: Tensor) -> Tensor:
    """`x` in float32; float64 stays what it is."""
    return x if x.dtype == torch.float64 else x.float()
