"""Initialization of a C-ViViT with `model.shortcut`: a principal component analysis of the patches of the first clips.

The model starts as the linear transform onto the first `model.dim` principal components. A first frame is treated as a
tube of equal frames, so that it has the same vectors and the same codes as a tube without motion.
"""

from __future__ import annotations

import torch
from einops import rearrange, repeat
from torch import Tensor

from quintet.common import collectives
from quintet.common.statistics import Statistics
from quintet.families.cvivit.config import CHANNELS
from quintet.families.cvivit.model import CViViT


def patch_statistics(model: CViViT, videos: Tensor, mask: Tensor) -> Statistics:
    """Count, sum and sum of outer products of the patches of a batch of videos, padding excluded."""
    first, tubes = model.patches(videos)
    still = _as_still_tube(first, model.config.temporal_patch_size)
    patches = torch.cat([still, tubes], dim=1)[model.latent_frame_mask(mask)].flatten(0, 1).double()
    count = torch.tensor(float(len(patches)), dtype=torch.float64, device=patches.device)
    return Statistics({"count": count, "sum": patches.sum(0), "products": patches.T @ patches})


@torch.no_grad()
def init_as_transform(model: CViViT, statistics: Statistics) -> None:
    """Set the linear layers between patches and tokens; the blocks contribute nothing yet, because of the shortcut."""
    sums, step = statistics.sums, model.config.temporal_patch_size
    mean = sums["sum"] / sums["count"]
    covariance = sums["products"] / sums["count"] - mean.outer(mean)
    directions = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, : model.config.dim]
    # Fixes the sign of each eigenvector, which rounding would decide otherwise.
    directions = directions * directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
    # Zero-pads if the model has more dimensions than a patch has values.
    directions = torch.nn.functional.pad(directions, (0, model.config.dim - directions.shape[1]))
    for layer, weight, bias in (
        (model.tubes_in, directions.T, -mean @ directions),
        (model.tubes_out, directions, mean),
        (model.first_in, _by_frame(directions, step).sum(1).flatten(0, 1).T, -mean @ directions),
        (model.first_out, _by_frame(directions, step).mean(1).flatten(0, 1), _by_frame(mean, step).mean(1).flatten()),
    ):
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
        for parameter in (layer.weight, layer.bias):
            collectives.broadcast(parameter.data)


def _as_still_tube(first: Tensor, step: int) -> Tensor:
    """The patch of a first frame repeated to a tube."""
    return repeat(first, "b k n (c r) -> b k n (c t r)", c=CHANNELS, t=step)


def _by_frame(values: Tensor, step: int) -> Tensor:
    """(values per tube, ...) to (channels, frames, pixels per patch, ...)."""
    return rearrange(values, "(c t r) ... -> c t r ...", c=CHANNELS, t=step)
