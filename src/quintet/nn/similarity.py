"""Metrics: PSNR and SSIM of images, and the Frechet distance between two sets of vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.precision import as_float64


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """Peak signal-to-noise ratio (batch,), in dB, of images (batch, channels, height, width); at most 100 dB."""
    error = (as_float64(images) - as_float64(others)).square().flatten(1).mean(1)
    return (-10 * torch.log10(error.clamp(min=1e-10))).float().to(images.device)


def ssim(images: Tensor, others: Tensor, window: int = 11, sigma: float = 1.5) -> Tensor:
    """Structural similarity (batch,) with a Gaussian window (Wang et al. 2004), averaged over channels."""
    device, images, others = images.device, as_float64(images), as_float64(others)
    window = min(window, *images.shape[-2:])
    window -= 1 - window % 2  # must be odd
    kernel = _gaussian(window, sigma, images)

    def blurred(values: Tensor) -> Tensor:
        channels = values.shape[1]
        rows = F.conv2d(values, kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)
        return F.conv2d(rows, kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)

    mean, other_mean = blurred(images), blurred(others)
    variance = blurred(images * images) - mean**2
    other_variance = blurred(others * others) - other_mean**2
    covariance = blurred(images * others) - mean * other_mean
    luminance, contrast = 0.01**2, 0.03**2
    above = (2 * mean * other_mean + luminance) * (2 * covariance + contrast)
    below = (mean**2 + other_mean**2 + luminance) * (variance + other_variance + contrast)
    return (above / below).flatten(1).mean(1).float().to(device)


def _gaussian(size: int, sigma: float, like: Tensor) -> Tensor:
    offsets = torch.arange(size, dtype=like.dtype, device=like.device) - (size - 1) / 2
    weights = torch.exp(-(offsets**2) / (2 * sigma**2))
    return weights / weights.sum()


def frechet_distance(ours: Tensor, theirs: Tensor) -> float:
    """Frechet distance between two sets of vectors (n, dim) and (m, dim), at least two each; in double precision."""
    ours, theirs = as_float64(ours), as_float64(theirs)
    between = (ours.mean(0) - theirs.mean(0)).square().sum()
    first, second = _covariance(ours), _covariance(theirs)
    # The trace of sqrt(first @ second) equals that of a symmetric matrix with the same, real eigenvalues.
    root = _root(first)
    shared = torch.linalg.eigvalsh(root @ second @ root).clamp(min=0).sqrt().sum()
    return float(between + first.trace() + second.trace() - 2 * shared)


def _covariance(vectors: Tensor) -> Tensor:
    centred = vectors - vectors.mean(0)
    return centred.T @ centred / (len(vectors) - 1)


def _root(matrix: Tensor) -> Tensor:
    values, directions = torch.linalg.eigh(matrix)
    root: Tensor = (directions * values.clamp(min=0).sqrt()) @ directions.T
    return root
