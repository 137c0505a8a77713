"""PSNR and SSIM against known values and a plain implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from quintet.nn.similarity import psnr, ssim


def random_images(count: int = 3, channels: int = 3, height: int = 16, width: int = 20, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, channels, height, width, generator=generator, dtype=torch.float64)


def noisy(images: Tensor, strength: float) -> Tensor:
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1), dtype=images.dtype)
    return (images + strength * noise).clamp(0, 1)


@pytest.mark.parametrize(("error", "decibels"), [(1.0, 0.0), (0.1, 20.0), (0.01, 40.0), (0.5, 6.0206)])
def test_psnr_of_a_constant_error(error: float, decibels: float) -> None:
    black = torch.zeros(2, 3, 4, 5)
    assert psnr(black, black + error).tolist() == pytest.approx([decibels] * 2, abs=1e-4)


def test_psnr_is_one_number_per_image() -> None:
    black = torch.zeros(2, 1, 2, 2)
    other = black.clone()
    other[1, 0, 0, 0] = 1.0
    assert psnr(black, other).tolist() == pytest.approx([100.0, -10 * math.log10(1 / 4)])


def test_psnr_has_a_maximum_and_is_symmetric() -> None:
    images = random_images()
    assert psnr(images, images).tolist() == [100.0] * 3
    assert torch.equal(psnr(images, noisy(images, 0.1)), psnr(noisy(images, 0.1), images))


def plain_ssim(one: np.ndarray, two: np.ndarray, window: int = 11, sigma: float = 1.5) -> float:
    """Wang et al. 2004, pixel by pixel."""
    offsets = np.arange(window) - window // 2
    weights = np.exp(-(offsets[:, None] ** 2 + offsets[None, :] ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    values = []
    for channel in range(one.shape[0]):
        for top in range(one.shape[1] - window + 1):
            for left in range(one.shape[2] - window + 1):
                position = (channel, slice(top, top + window), slice(left, left + window))
                x, y = one[position], two[position]
                mean_x, mean_y = (weights * x).sum(), (weights * y).sum()
                variance_x = (weights * (x - mean_x) ** 2).sum()
                variance_y = (weights * (y - mean_y) ** 2).sum()
                covariance = (weights * (x - mean_x) * (y - mean_y)).sum()
                above = (2 * mean_x * mean_y + 0.01**2) * (2 * covariance + 0.03**2)
                values.append(above / ((mean_x**2 + mean_y**2 + 0.01**2) * (variance_x + variance_y + 0.03**2)))
    return float(np.mean(values))


@pytest.mark.parametrize("strength", [0.02, 0.3])
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 16, 20), (1, 11, 11)])
def test_ssim_equals_a_plain_implementation(channels: int, height: int, width: int, strength: float) -> None:
    images = random_images(2, channels, height, width)
    others = noisy(images, strength)
    expected = [plain_ssim(one.numpy(), two.numpy()) for one, two in zip(images, others, strict=True)]
    assert ssim(images, others).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("height", "window"), [(8, 7), (5, 5), (4, 3), (1, 1)])
def test_small_images_get_the_largest_odd_window_that_fits(height: int, window: int) -> None:
    images = random_images(1, 2, height, height + 3)
    others = noisy(images, 0.1)
    assert ssim(images, others).item() == pytest.approx(
        plain_ssim(images[0].numpy(), others[0].numpy(), window), abs=1e-6
    )


def test_ssim_of_equal_images_is_one_and_decreases_with_noise() -> None:
    images = random_images()
    assert ssim(images, images).tolist() == pytest.approx([1.0] * 3, abs=1e-6)
    course = [ssim(images, noisy(images, strength)).mean().item() for strength in (0.0, 0.05, 0.1, 0.2, 0.5)]
    assert course == sorted(course, reverse=True)
    assert course[-1] < 0.6


def test_ssim_of_constant_images_is_finite() -> None:
    black, white = torch.zeros(1, 3, 16, 16), torch.ones(1, 3, 16, 16)
    assert ssim(black, black).item() == pytest.approx(1)
    assert ssim(black, white).item() == pytest.approx(0.01**2 / (1 + 0.01**2))


def test_precision_of_the_input_hardly_matters() -> None:
    """Sums of squares in half precision would be noise."""
    images = random_images().half()
    others = noisy(random_images(), 0.01).half()
    assert ssim(images, others).tolist() == pytest.approx(ssim(images.double(), others.double()).tolist(), abs=1e-6)
    assert ssim(images, others).dtype == psnr(images, others).dtype == torch.float32
