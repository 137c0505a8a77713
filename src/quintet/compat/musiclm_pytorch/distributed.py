"""`AllGather` of musiclm-pytorch: the tensors of all processes, by quintet's collectives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet.common import collectives


class AllGather(nn.Module):
    """Concatenates the tensors of all processes along `dim`; the gradients of all processes are summed."""

    def __init__(self, dim: int, *, all_reduce_grads: bool = False) -> None:
        super().__init__()
        self.dim, self.all_reduce_grads = dim, all_reduce_grads
        self.is_distributed = collectives.is_distributed()

    def forward(self, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The gathered tensor and the size of each process along `dim`; `x` and None in a single process."""
        if not self.is_distributed:
            return x, None
        if sizes is None:
            sizes = collectives.gather_rows(torch.tensor([x.shape[self.dim]], device=x.device))
        return collectives.gather_uneven_rows(x.movedim(self.dim, 0)).movedim(0, self.dim), sizes


__all__ = ["AllGather"]
