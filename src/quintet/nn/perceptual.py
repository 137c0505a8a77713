"""Perceptual loss: distances between features of a frozen VGG-16 with weights from a local file.

Weights are never downloaded. The file is a safetensors file with the convolutions of VGG-16 under torchvision's names
(`features.0.weight` …). It may contain only the first layers; all layers that it contains are used.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from quintet.common.files import open_regular
from quintet.common.weights.pretrained import pickle_hint
from quintet.errors import UsageError

_POOLED_AFTER = {2, 7, 14, 21, 28}
"""Torchvision's indices of the convolutions of VGG-16 that are followed by pooling."""
_WEIGHT = re.compile(r"features\.(\d+)\.weight")
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)


class PerceptualLoss(nn.Module):
    """Mean squared distance of unit-normalised features at the end of every block, of images in [0, 1]."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, weights: Path) -> None:
        super().__init__()
        self.numbers, self.layers = _read_layers(weights)
        self.register_buffer("mean", torch.tensor(_MEAN).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor(_DEVIATION).view(1, 3, 1, 1))
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor, others: Tensor) -> Tensor:
        pairs = zip(self._features(images), self._features(others), strict=True)
        distances = [(F.normalize(one, dim=1) - F.normalize(two, dim=1)).square().sum(1).mean() for one, two in pairs]
        return torch.stack(distances).mean()

    def _features(self, images: Tensor) -> list[Tensor]:
        x = (images[:, :3].expand(-1, 3, -1, -1) - self.mean) / self.deviation  # repeat grey, drop alpha
        features = []
        for number, layer in zip(self.numbers, self.layers, strict=True):
            x = F.relu(layer(x))
            if number in _POOLED_AFTER:
                features.append(x)
            if number in _POOLED_AFTER and number != self.numbers[-1]:
                x = F.max_pool2d(x, 2)
        return features


def _read_layers(path: Path) -> tuple[list[int], nn.ModuleList]:
    try:
        open_regular(path).close()  # a pipe would wait for ever
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        if isinstance(error, SafetensorError) and pickle_hint(path):
            reason = "is a pickle, which quintet never opens; convert it to safetensors"
            raise UsageError(f"loss.perceptual_weights: {path} {reason}") from None
        raise UsageError(f"loss.perceptual_weights: cannot read {path} as safetensors ({error})") from None
    numbers = sorted(int(match[1]) for name in tensors if (match := _WEIGHT.fullmatch(name)))
    if not _POOLED_AFTER.intersection(numbers):
        raise UsageError(
            f"loss.perceptual_weights: {path} contains no block of VGG-16 (features.0.weight … features.2.weight)"
        )
    layers = nn.ModuleList()
    channels = 3
    for number in numbers:
        weight, bias = tensors[f"features.{number}.weight"], tensors.get(f"features.{number}.bias")
        if weight.shape[1:] != (channels, 3, 3) or bias is None or bias.shape != weight.shape[:1]:
            raise UsageError(f"loss.perceptual_weights: {path}: features.{number} is not a convolution of VGG-16")
        channels = len(weight)
        layer = nn.Conv2d(weight.shape[1], channels, 3, padding=1)
        layer.weight.data.copy_(weight)
        layer.bias.data.copy_(bias)  # type: ignore[union-attr]
        layers.append(layer)
    return numbers, layers
