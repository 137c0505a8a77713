"""What is to be beaten by a tokenizer: the mean picture, and thumbnails scaled up again."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.nn.similarity import psnr


def baselines(train: Tensor, validation: Tensor) -> dict[str, float]:
    """Mean PSNR over the validation pictures, (n, 3, h, w) in [0, 1]."""
    mean = train.mean(0, keepdim=True).expand_as(validation)
    figures = {"mean picture": _score(mean, validation)}
    for side in (8, 16):
        figures[f"{side} x {side} thumbnail"] = _score(thumbnail(validation, side), validation)
    return figures


def thumbnail(images: Tensor, side: int) -> Tensor:
    """Scaled down by averaging and up again bicubically: the kindest of the usual ways."""
    small = F.interpolate(images, (side, side), mode="area")
    return F.interpolate(small, images.shape[-2:], mode="bicubic", align_corners=False).clamp(0, 1)


def _score(made: Tensor, images: Tensor) -> float:
    return float(psnr(made, images).mean())


def load(source: object, items: range) -> Tensor:
    """The pictures of a source, unaugmented."""
    from quintet.common.rng import ItemRNG

    return torch.stack([source.load(item, ItemRNG(0, [0], [item]))["images"] for item in items]).float() / 255  # type: ignore[attr-defined]
