"""Full precision for computations that lose accuracy under bf16 autocast."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_fp32(x: Tensor) -> Tensor:
    """Convert to float32; float64 stays float64."""
    return x if x.dtype == torch.float64 else x.float()
