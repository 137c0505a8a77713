"""Features of subjects: a small convolutional network in which a picture is nearest to the real picture that it shows.

Trained by instance discrimination: every real picture is a class of its own, and its views (shifted, scaled, recolored,
blurred, with a foreign patch, or as its reconstruction by a tokenizer) must be recognized among all pictures. Its
results on samples are meaningful only together with those on reconstructions of the real pictures.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearest import Nearest

STEPS = 500
BATCH_SIZE = 96
PEAK_RATE = 4e-3
SHARPNESS = 16.0
"""Factor of the cosine similarities in the softmax over pictures."""
MAX_SHIFT = 0.1
"""Maximum shift, as a fraction of the image's side."""
MAX_SCALE = 0.12
"""Maximum relative change of the size."""
PATCH = 8
"""Side in pixels of the squares that are replaced by those of another picture, as wrong codes do."""


class SubjectFeatures(nn.Module):
    """Features (batch, dim) of length 1 of images (batch, channels, height, width) in [0, 1] of any size."""

    def __init__(self, channels: int = 3, width: int = 24, dim: int = 128) -> None:
        super().__init__()
        widths = [channels, width, 2 * width, 4 * width]
        blocks: list[nn.Module] = []
        for before, after in pairwise(widths):
            blocks += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.SiLU()]
        # A subject is an arrangement of parts, so the features know positions, though roughly.
        self.blocks = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Linear(16 * widths[-1], dim)

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.head(self.blocks(2 * images - 1)), dim=-1)


def train_features(
    images: Tensor, reconstructions: Tensor, *, steps: int = STEPS, batch_size: int = BATCH_SIZE, seed: int = 0
) -> SubjectFeatures:
    """Features of images and their reconstructions; deterministic for the same images and seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        features = SubjectFeatures(images.shape[1])
        pictures = nn.Parameter(F.normalize(torch.randn(len(images), features.head.out_features), dim=-1))
        optimizer = torch.optim.AdamW([*features.parameters(), pictures], lr=PEAK_RATE, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=steps)
        features.train()
        for _ in range(steps):
            chosen = torch.randint(len(images), (batch_size,))
            is_real = torch.rand(batch_size, 1, 1, 1) < 0.5
            views = augmented(torch.where(is_real, images[chosen], reconstructions[chosen]))
            similarities = features(views) @ F.normalize(pictures, dim=-1).T
            loss = F.cross_entropy(SHARPNESS * similarities, chosen)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return features.eval()


def augmented(images: Tensor) -> Tensor:
    """Other views of the same subjects: with foreign patches, moved and scaled on white, recolored and blurred."""
    images = _with_foreign_patches(images)
    images = _moved(images)
    images = images.lerp(_blurred(images), torch.rand(len(images), 1, 1, 1))
    return _recolored(images).clamp(0, 1)


@torch.no_grad()
def nearest_features(features: SubjectFeatures, images: Tensor, candidates: Tensor) -> Nearest:
    """The nearest candidate of each image by cosine similarity of features; `values` are the similarities."""
    queries, keys = (
        torch.cat([features(batch) for batch in torch.split(group, 128)]) for group in (images, candidates)
    )
    found = (queries @ keys.T).max(-1)
    return Nearest(found.values, found.indices)


def _with_foreign_patches(images: Tensor) -> Tensor:
    """Up to a quarter of the squares comes from another image of the batch."""
    count, _, height, width = images.shape
    shares = 0.25 * torch.rand(count, 1, 1, 1)
    squares = torch.rand(count, 1, -(-height // PATCH), -(-width // PATCH)) < shares
    replaced = squares.repeat_interleave(PATCH, -2).repeat_interleave(PATCH, -1)[..., :height, :width]
    return torch.where(replaced, images.roll(1, 0), images)


def _moved(images: Tensor) -> Tensor:
    count = len(images)
    scales = 1 + MAX_SCALE * (2 * torch.rand(count, 2) - 1)
    # The coordinates of an image are from -1 to 1: its side is 2.
    shifts = 2 * MAX_SHIFT * (2 * torch.rand(count, 2) - 1)
    maps = torch.cat([torch.diag_embed(scales), shifts.unsqueeze(-1)], -1)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return 1 + F.grid_sample(images - 1, grid, align_corners=False)


def _blurred(images: Tensor) -> Tensor:
    small = F.interpolate(images, scale_factor=0.25, mode="area")
    return F.interpolate(small, images.shape[-2:], mode="bilinear", align_corners=False)


def _recolored(images: Tensor) -> Tensor:
    """Contrast and brightness of each channel changed slightly, and noise added."""
    count, channels = images.shape[:2]
    gains = 1 + 0.2 * (2 * torch.rand(count, channels, 1, 1) - 1)
    offsets = 0.08 * (2 * torch.rand(count, channels, 1, 1) - 1)
    noise = 0.03 * torch.rand(count, 1, 1, 1) * torch.randn_like(images)
    return gains * (images - 0.5) + 0.5 + offsets + noise
