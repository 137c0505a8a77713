"""Baselines of an image tokenizer: the mean image, and thumbnails scaled up again."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.nn.similarity import psnr


def baselines(train: Tensor, validation: Tensor) -> dict[str, float]:
    """Mean PSNR over the validation images (n, 3, h, w) in [0, 1]."""
    mean = train.mean(0, keepdim=True).expand_as(validation)
    metrics = {"mean image": _score(mean, validation)}
    for side in (8, 16):
        metrics[f"{side} x {side} thumbnail"] = _score(thumbnail(validation, side), validation)
    return metrics


def thumbnail(images: Tensor, side: int) -> Tensor:
    """Images scaled down by averaging and up again bicubically, the best of the usual methods."""
    small = F.interpolate(images, (side, side), mode="area")
    return F.interpolate(small, images.shape[-2:], mode="bicubic", align_corners=False).clamp(0, 1)


def _score(output: Tensor, images: Tensor) -> float:
    return float(psnr(output, images).mean())


def load(dataset: object, items: range) -> Tensor:
    """Images (items, channels, height, width) of a dataset in [0, 1], without augmentation."""
    from quintet.common.rng import ItemRNG

    return torch.stack([dataset.load(item, ItemRNG(0, [0], [item]))["images"] for item in items]).float() / 255  # type: ignore[attr-defined]
