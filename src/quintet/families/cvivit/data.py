"""Clips as C-ViViT reads them: padded to whole latent frames, with a mask of the frames that exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quintet.common.batch import Batch, Item
from quintet.data.splits import Splits
from quintet.data.video import pad_clips, video_folder_splits
from quintet.families.cvivit.config import CViViTConfig, CViViTModelConfig


def video_splits(config: CViViTConfig) -> Splits:
    return video_folder_splits(config.data, config.model.size)


def collate_clips(items: Sequence[Item], model: CViViTModelConfig) -> dict[str, Any]:
    """Padded to the longest, in whole latent frames."""
    longest = max(item["videos"].shape[1] for item in items)
    return pad_clips(items, model.frames(model.moments(longest)))


def pixels(batch: Batch) -> Tensor:
    """Videos (batch, 3, frames, height, width) in [0, 1]."""
    videos: Tensor = batch["videos"]
    return videos.to(batch.precision) / 255 if videos.dtype == torch.uint8 else videos
