"""Principal component analysis of the patches of the first batches, for tokenizers that start as a linear transform."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common import collectives
from quintet.common.precision import as_float64
from quintet.common.statistics import Statistics

PATCHES_PER_CODE = 32
"""Average number of patches from which one code is initialised, if the model starts as a linear transform."""


def patch_statistics(patches: Tensor) -> Statistics:
    """Count, sum and sum of outer products of patches (patches, values)."""
    patches = as_float64(patches)
    count = torch.tensor(float(len(patches)), dtype=torch.float64, device=patches.device)
    return Statistics({"count": count, "sum": patches.sum(0), "products": patches.T @ patches})


def principal_components(statistics: Statistics, dim: int) -> tuple[Tensor, Tensor]:
    """The mean (values,) of patches and their first `dim` principal components (values, dim), from their statistics.

    Components are zero if there are more of them than a patch has values.
    """
    sums = statistics.sums
    mean = sums["sum"] / sums["count"]
    covariance = sums["products"] / sums["count"] - mean.outer(mean)
    directions = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :dim]
    # Fixes the sign of each eigenvector, which rounding would decide otherwise.
    directions = directions * directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
    return mean, F.pad(directions, (0, dim - directions.shape[1]))


@torch.no_grad()
def set_linear(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    """Set weight and bias of a layer, on all ranks to those of the first."""
    for parameter, value in ((layer.weight, weight), (layer.bias, bias)):
        parameter.copy_(value)
        collectives.broadcast(parameter.data)
