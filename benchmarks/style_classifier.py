"""Classifier of drawing styles: a small convolutional network, trained on real images.

Its results on samples are meaningful only together with its accuracy on unseen real images and on their
reconstructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 900
BATCH_SIZE = 64
PEAK_RATE = 1e-2
MAX_SHIFT = 6
"""Maximum shift in pixels, so that the margins of a style do not decide."""


class StyleClassifier(nn.Module):
    """Logits (batch, styles) of images (batch, channels, height, width) in [0, 1] of any size."""

    def __init__(self, styles: int, channels: int = 3, dim: int = 24) -> None:
        super().__init__()
        widths = [channels, dim, 2 * dim, 4 * dim]
        blocks: list[nn.Module] = []
        for number, (before, after) in enumerate(pairwise(widths)):
            kernel = 5 if number == 0 else 3
            # No normalization per image, which would remove absolute colors: each style has its palette.
            blocks += [
                nn.Conv2d(before, after, kernel, stride=2, padding=kernel // 2),
                nn.BatchNorm2d(after),
                nn.SiLU(),
            ]
        self.blocks = nn.Sequential(*blocks)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(2 * widths[-1], styles)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(2 * images - 1)
        # The mean represents texture, the maximum a mark at any position.
        pooled = torch.cat([features.mean((-2, -1)), features.amax((-2, -1))], -1)
        logits: Tensor = self.head(self.drop(pooled))
        return logits


def train_classifier(
    images: Tensor, styles: Tensor, count: int, *, steps: int = STEPS, seed: int = 0
) -> StyleClassifier:
    """Train a classifier of `count` styles; deterministic for the same images and seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = StyleClassifier(count, images.shape[1])
        optimizer = torch.optim.AdamW(classifier.parameters(), lr=PEAK_RATE, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=steps)
        classifier.train()
        for _ in range(steps):
            chosen = torch.randint(len(images), (BATCH_SIZE,))
            loss = F.cross_entropy(classifier(augmented(images[chosen])), styles[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return classifier.eval()


def augmented(images: Tensor) -> Tensor:
    """Images shifted, flipped, slightly blurred and noisy, which does not change the style; colors are preserved."""
    count, _, height, width = images.shape
    images = torch.where(torch.rand(count, 1, 1, 1) < 0.5, images.flip(-1), images)
    small = F.interpolate(images, scale_factor=0.5, mode="area")
    blurred = F.interpolate(small, (height, width), mode="bilinear", align_corners=False)
    images = images.lerp(blurred, torch.rand(count, 1, 1, 1) * (torch.rand(count, 1, 1, 1) < 0.3))
    images = images + 0.01 * torch.rand(count, 1, 1, 1) * torch.randn_like(images)
    padded = F.pad(images, [MAX_SHIFT] * 4, value=1.0)
    down, right = (int(torch.randint(2 * MAX_SHIFT + 1, ())) for _ in range(2))
    return padded[..., down : down + height, right : right + width].clamp(0, 1)


@torch.no_grad()
def predicted_styles(classifier: StyleClassifier, images: Tensor) -> Tensor:
    """Index of the style of each image (images,)."""
    return torch.cat([classifier(batch).argmax(-1) for batch in torch.split(images, 128)])


def accuracy(classifier: StyleClassifier, images: Tensor, styles: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Accuracy over all images, and over the images of each style."""
    correct = (predicted_styles(classifier, images) == styles).double()
    of_each = {name: float(correct[styles == number].mean()) for number, name in enumerate(names)}
    return {"all": float(correct.mean()), **of_each}
