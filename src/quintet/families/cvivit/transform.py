"""Initialization of a C-ViViT with `model.shortcut`: a principal component analysis of the patches of the first clips.

The model starts as the linear transform onto the first `model.dim` principal components. A first frame is treated as a
tube of equal frames, so that it has the same vectors and the same codes as a tube without motion.
"""

from __future__ import annotations

from functools import partial

import torch
from einops import rearrange, repeat
from torch import Tensor

from quintet.common import collectives
from quintet.common.statistics import Statistics
from quintet.families.cvivit.config import CHANNELS
from quintet.families.cvivit.model import CViViT
from quintet.nn.principal import patch_statistics, principal_components, set_linear


def clip_statistics(model: CViViT, videos: Tensor, mask: Tensor) -> Statistics:
    """Statistics of the patches of a batch of videos, padding excluded."""
    first, tubes = model.patches(videos)
    still = _as_still_tube(first, model.config.temporal_patch_size)
    return patch_statistics(torch.cat([still, tubes], dim=1)[model.latent_frame_mask(mask)].flatten(0, 1))


def init_as_transform(model: CViViT, statistics: Statistics) -> None:
    """Set the linear layers between patches and tokens; the blocks contribute nothing yet, because of the shortcut."""
    step = model.config.temporal_patch_size
    mean, directions = principal_components(statistics, model.config.dim)
    for layer, weight, bias in (
        (model.tubes_in, directions.T, -mean @ directions),
        (model.tubes_out, directions, mean),
        (model.first_in, _by_frame(directions, step).sum(1).flatten(0, 1).T, -mean @ directions),
        (model.first_out, _by_frame(directions, step).mean(1).flatten(0, 1), _by_frame(mean, step).mean(1).flatten()),
    ):
        set_linear(layer, weight, bias)
    if model.config.temporal_prediction:
        last = partial(_last_frame_as_still_tube, step=step)
        for buffer, value in (
            (model.prediction.weight, directions.T @ last(directions)),
            (model.prediction.bias, (last(mean) - mean) @ directions),
        ):
            buffer.copy_(value)
            collectives.broadcast(buffer)


def _as_still_tube(first: Tensor, step: int) -> Tensor:
    """The patch of a first frame repeated to a tube."""
    return repeat(first, "b k n (c r) -> b k n (c t r)", c=CHANNELS, t=step)


def _by_frame(values: Tensor, step: int) -> Tensor:
    """(values per tube, ...) to (channels, frames, pixels per patch, ...)."""
    return rearrange(values, "(c t r) ... -> c t r ...", c=CHANNELS, t=step)


def _last_frame_as_still_tube(values: Tensor, step: int) -> Tensor:
    """(values per tube, ...), with the last frame in place of every frame."""
    frames = _by_frame(values, step)
    return frames[:, -1:].expand_as(frames).flatten(0, 2)
