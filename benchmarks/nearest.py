"""Detects copies: distance of samples to their nearest training images, in pixels and in codes.

The baseline is the distance of held-out real images to the same training images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COPY = 0.9
"""Fraction of equal codes above which a sample counts as a copy."""
CLOSEST = 0.01
"""Quantile of held-out distances below which a sample is suspicious."""


@dataclass(frozen=True)
class Nearest:
    """The nearest training image of each image: distances or similarities, and indices."""

    values: Tensor
    indices: Tensor


def nearest_images(images: Tensor, train: Tensor) -> Nearest:
    """By root mean square difference of images (n, channels, height, width) in [0, 1]."""
    flat, candidates = images.flatten(1), train.flatten(1)
    rows = [
        # Not by a matrix product, whose rounding hides exact copies.
        torch.cdist(row, candidates, compute_mode="donot_use_mm_for_euclid_dist").min(-1)
        for row in torch.split(flat, 16)
    ]
    values = torch.cat([row.values for row in rows]) / flat.shape[1] ** 0.5
    return Nearest(values, torch.cat([row.indices for row in rows]))


def nearest_codes(codes: Tensor, train: Tensor) -> Nearest:
    """By the fraction of equal codes at equal positions; `values` is the largest fraction."""
    candidates = train.flatten(1)
    rows = [(candidates == row).float().mean(-1).max(-1) for row in codes.flatten(1)]
    return Nearest(torch.stack([row.values for row in rows]), torch.stack([row.indices for row in rows]))


def distance_metrics(samples: Nearest, held_out: Nearest) -> dict[str, float]:
    """Distances of samples, compared with those of held-out images."""
    limit = torch.quantile(held_out.values, CLOSEST)
    suspicious = samples.values < limit
    return {
        "samples_median": float(samples.values.median()),
        "samples_5_percent": float(torch.quantile(samples.values, 0.05)),
        "samples_smallest": float(samples.values.min()),
        "held_out_median": float(held_out.values.median()),
        "held_out_5_percent": float(torch.quantile(held_out.values, 0.05)),
        "held_out_1_percent": float(limit),
        "held_out_smallest": float(held_out.values.min()),
        "samples_nearer_than_held_out_1_percent": int(suspicious.sum()),
        "share_nearer_than_held_out_1_percent": float(suspicious.double().mean()),
    }


def code_metrics(samples: Nearest, held_out: Nearest) -> dict[str, float]:
    """Fractions of codes shared with the nearest training image, of samples and of held-out images."""
    return {
        "samples_median": float(samples.values.median()),
        "samples_95_percent": float(torch.quantile(samples.values, 0.95)),
        "samples_largest": float(samples.values.max()),
        "samples_copies": int((samples.values > COPY).sum()),
        "samples_copies_share": float((samples.values > COPY).double().mean()),
        "held_out_median": float(held_out.values.median()),
        "held_out_95_percent": float(torch.quantile(held_out.values, 0.95)),
        "held_out_largest": float(held_out.values.max()),
        "held_out_copies_share": float((held_out.values > COPY).double().mean()),
    }
