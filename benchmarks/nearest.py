"""Owns the question whether samples are copies: how near each is to a training picture, in pixels and in codes.

Distances mean nothing by themselves: the yardstick is how near real pictures, which were held out, are to the same
training pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COPY = 0.9
"""Share of equal codes above which a sample counts as a copy."""
CLOSEST = 0.01
"""The share of held-out pictures that are nearest to a training picture: what is nearer than those is suspicious."""


@dataclass(frozen=True)
class Nearest:
    """For each picture the nearest training picture: how near, and which."""

    values: Tensor
    places: Tensor


def nearest_pictures(pictures: Tensor, train: Tensor) -> Nearest:
    """By root mean square difference of pictures in [0, 1], (n, channels, height, width)."""
    flat, candidates = pictures.flatten(1), train.flatten(1)
    rows = [
        # Not through a matrix product, which cannot tell an exact copy from a near one.
        torch.cdist(row, candidates, compute_mode="donot_use_mm_for_euclid_dist").min(-1)
        for row in torch.split(flat, 16)
    ]
    values = torch.cat([row.values for row in rows]) / flat.shape[1] ** 0.5
    return Nearest(values, torch.cat([row.indices for row in rows]))


def nearest_codes(codes: Tensor, train: Tensor) -> Nearest:
    """By the share of equal codes at equal places; `values` is the largest share."""
    candidates = train.flatten(1)
    rows = [(candidates == row).float().mean(-1).max(-1) for row in codes.flatten(1)]
    return Nearest(torch.stack([row.values for row in rows]), torch.stack([row.indices for row in rows]))


def distance_figures(samples: Nearest, held_out: Nearest) -> dict[str, float]:
    """How near samples are, beside how near held-out pictures are."""
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


def code_figures(samples: Nearest, held_out: Nearest) -> dict[str, float]:
    """How many codes samples share with the training picture they share most with, and how many held-out ones do."""
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
