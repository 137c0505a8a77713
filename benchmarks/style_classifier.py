"""Owns the judge of drawing styles: a small convolutional classifier, trained on real pictures.

Its word counts only beside its accuracy on pictures that nobody generated: real ones it has not seen, and their
reconstructions, which have lost what a tokenizer loses.
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
LARGEST_SHIFT = 6
"""Pixels: styles differ in their margins too, which should not decide."""


class StyleClassifier(nn.Module):
    """Pictures in [0, 1], (batch, channels, height, width) of any size, to logits of the styles."""

    def __init__(self, styles: int, channels: int = 3, dim: int = 24) -> None:
        super().__init__()
        widths = [channels, dim, 2 * dim, 4 * dim]
        blocks: list[nn.Module] = []
        for number, (before, after) in enumerate(pairwise(widths)):
            kernel = 5 if number == 0 else 3
            # Not normalised picture by picture, which would take away the absolute colours: each style has its palette.
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
        # The mean tells of texture, the largest of a mark that is somewhere.
        pooled = torch.cat([features.mean((-2, -1)), features.amax((-2, -1))], -1)
        logits: Tensor = self.head(self.drop(pooled))
        return logits


def train_classifier(
    pictures: Tensor, styles: Tensor, count: int, *, steps: int = STEPS, seed: int = 0
) -> StyleClassifier:
    """A classifier of `count` styles; the same for the same pictures and seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = StyleClassifier(count, pictures.shape[1])
        optimizer = torch.optim.AdamW(classifier.parameters(), lr=PEAK_RATE, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=steps)
        classifier.train()
        for _ in range(steps):
            chosen = torch.randint(len(pictures), (BATCH_SIZE,))
            loss = F.cross_entropy(classifier(augmented(pictures[chosen])), styles[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return classifier.eval()


def augmented(images: Tensor) -> Tensor:
    """Moved, mirrored, somewhat blurred and noisy: none of it changes who drew a picture. Colours stay: they tell."""
    count, _, height, width = images.shape
    images = torch.where(torch.rand(count, 1, 1, 1) < 0.5, images.flip(-1), images)
    small = F.interpolate(images, scale_factor=0.5, mode="area")
    blurred = F.interpolate(small, (height, width), mode="bilinear", align_corners=False)
    images = images.lerp(blurred, torch.rand(count, 1, 1, 1) * (torch.rand(count, 1, 1, 1) < 0.3))
    images = images + 0.01 * torch.rand(count, 1, 1, 1) * torch.randn_like(images)
    padded = F.pad(images, [LARGEST_SHIFT] * 4, value=1.0)
    down, right = (int(torch.randint(2 * LARGEST_SHIFT + 1, ())) for _ in range(2))
    return padded[..., down : down + height, right : right + width].clamp(0, 1)


@torch.no_grad()
def recognised(classifier: StyleClassifier, pictures: Tensor) -> Tensor:
    """The style of each picture, as its number."""
    return torch.cat([classifier(batch).argmax(-1) for batch in torch.split(pictures, 128)])


def shares_right(
    classifier: StyleClassifier, pictures: Tensor, styles: Tensor, names: Sequence[str]
) -> dict[str, float]:
    """The share of pictures recognised as the style they are said to be: of all, and of each style."""
    right = (recognised(classifier, pictures) == styles).double()
    of_each = {name: float(right[styles == number].mean()) for number, name in enumerate(names)}
    return {"all": float(right.mean()), **of_each}
