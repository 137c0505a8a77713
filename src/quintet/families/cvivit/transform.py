"""Owns how a fresh C-ViViT with `model.shortcut` begins: as the linear transform that keeps most of what its data show.

The patches of the first clips decide: their principal directions, as many as the model is wide. A first frame is a tube
of frames that stand still, so that it has the same vectors, and the same codes, as a tube in which nothing moves.
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
    """Number, sum and products of the patches of clips in [0, 1], of moments that are there."""
    still, tubes = model.patches(videos)
    still = _stands_still(still, model.config.temporal_patch_size)
    patches = torch.cat([still, tubes], dim=1)[model.moments_there(mask)].flatten(0, 1).double()
    count = torch.tensor(float(len(patches)), dtype=torch.float64, device=patches.device)
    return Statistics({"count": count, "sum": patches.sum(0), "products": patches.T @ patches})


@torch.no_grad()
def begin_as_transform(model: CViViT, statistics: Statistics) -> None:
    """Set the maps between patches and tokens; the blocks have no say yet, since a shortcut leads past them."""
    sums, step = statistics.sums, model.config.temporal_patch_size
    mean = sums["sum"] / sums["count"]
    covariance = sums["products"] / sums["count"] - mean.outer(mean)
    directions = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, : model.config.dim]
    # A direction and its opposite are the same one; rounding must not choose.
    directions = directions * directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
    # A model that is wider than a patch has numbers to spare.
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


def _stands_still(first: Tensor, step: int) -> Tensor:
    """The patch of a first frame as a tube."""
    return repeat(first, "b k n (c r) -> b k n (c t r)", c=CHANNELS, t=step)


def _by_frame(values: Tensor, step: int) -> Tensor:
    """(numbers of a tube, ...) to (channels, frames, numbers of a patch's channel, ...)."""
    return rearrange(values, "(c t r) ... -> c t r ...", c=CHANNELS, t=step)
