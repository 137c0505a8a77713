"""The captioned images of the text-to-image benchmark: real images of a run's splits, and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baselines import load
from quintet import config
from quintet.common.inference import inference_mode
from quintet.data.image import folder_splits
from quintet.families.muse.config import MuseConfig
from subjects import STYLES, parts

BATCH_SIZE = 32
"""Number of samples per batch; the logits of all codes at all positions need memory."""


@dataclass(frozen=True)
class Images:
    """Images in [0, 1], their codes and their reconstructions; a sample is its own reconstruction."""

    images: Tensor
    codes: Tensor
    reconstructions: Tensor
    texts: list[str]
    files: list[str]

    def of(self, texts: Sequence[str]) -> Images:
        """The images with these captions, in their order."""
        chosen = [self.texts.index(text) for text in texts]
        files = [self.files[index] for index in chosen]
        return Images(self.images[chosen], self.codes[chosen], self.reconstructions[chosen], list(texts), files)

    @property
    def styles(self) -> Tensor:
        return torch.tensor([STYLES.index(parts(text)[1]) for text in self.texts])

    def with_mirrored(self, tokenizer: Any) -> Images:
        """All images, followed by all images flipped horizontally."""
        mirrored = self.images.flip(-1)
        codes, reconstructions = encode_and_decode(tokenizer, mirrored)
        return Images(
            torch.cat([self.images, mirrored]),
            torch.cat([self.codes, codes]),
            torch.cat([self.reconstructions, reconstructions]),
            2 * self.texts,
            2 * self.files,
        )


def real_images(settings: MuseConfig, folder: str, tokenizer: Any) -> tuple[Images, Images]:
    """Training and held-out images of the run, without augmentation."""
    data = settings.changed({"data.path": folder, "data.flip": False, "data.random_crop": False}).data
    assert isinstance(data, config.ImageDataConfig)
    splits = folder_splits(data, tokenizer.config.size, tokenizer.config.channels)
    sides = []
    for split in (splits.train, splits.validation):
        images = load(split, range(len(split)))
        entries = split.entries  # type: ignore[attr-defined]
        texts, files = [entry.text or "" for entry in entries], [entry.file for entry in entries]
        sides.append(Images(images, *encode_and_decode(tokenizer, images), texts, files))
    return sides[0], sides[1]


def encode_and_decode(tokenizer: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and reconstructions."""
    device = next(tokenizer.parameters()).device
    with inference_mode({"tokenizer": tokenizer}):
        codes = torch.cat([tokenizer.encode(batch) for batch in torch.split(images.to(device), BATCH_SIZE)])
        decoded = torch.cat([tokenizer.decode(batch) for batch in torch.split(codes, BATCH_SIZE)])
    return codes.cpu(), decoded.cpu()
