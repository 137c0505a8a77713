"""Images as the VQ-GAN reads them."""

from __future__ import annotations

import torch
from torch import Tensor

from quintet.common.batch import Batch
from quintet.data.image import folder_splits
from quintet.data.splits import Splits
from quintet.families.vqgan.config import VQGanConfig


def image_splits(config: VQGanConfig) -> Splits:
    return folder_splits(config.data, config.model.size, config.model.channels)


def pixels(batch: Batch) -> Tensor:
    """Images (batch, channels, height, width) in [0, 1], in the memory format convolutions like best."""
    images: Tensor = batch["images"]
    if images.dtype == torch.uint8:
        images = images.to(batch.precision) / 255
    return images.contiguous(memory_format=torch.channels_last)
