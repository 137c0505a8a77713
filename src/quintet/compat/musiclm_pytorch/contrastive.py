"""The contrastive losses of musiclm-pytorch as modules with a learned temperature; computed by `nn.contrastive`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from quintet.common import collectives
from quintet.nn.contrastive import ContrastiveKind, contrastive_loss


class _ContrastiveLearning(nn.Module):
    """Loss of latents (batch, dim) or (layers, batch, dim), summed over layers."""

    kind: ContrastiveKind

    def __init__(self, layers: int, init_temp: float) -> None:
        super().__init__()
        self.temperatures = nn.Parameter(torch.full((layers, 1, 1), math.log(init_temp)))
        self.bias: nn.Parameter | None = None

    @property
    def device(self) -> torch.device:
        return self.temperatures.device

    def forward(self, audio_latents: Tensor, text_latents: Tensor) -> Tensor:
        audio, text = (each[None] if each.ndim == 2 else each for each in (audio_latents, text_latents))
        scales = self.temperatures.exp()
        biases = torch.zeros_like(scales) if self.bias is None else self.bias
        losses = [
            contrastive_loss(self.kind, collectives.gather_rows(clips), collectives.gather_rows(texts), scale, bias)
            for clips, texts, scale, bias in zip(audio, text, scales, biases, strict=True)
        ]
        return torch.stack(losses).sum()


class SoftmaxContrastiveLearning(_ContrastiveLearning):
    """InfoNCE in both directions, or DCL with `decoupled_contrastive_learning`."""

    def __init__(self, *, layers: int = 1, decoupled_contrastive_learning: bool = False, init_temp: float = 10) -> None:
        super().__init__(layers, init_temp)
        self.kind = "decoupled" if decoupled_contrastive_learning else "softmax"
        self.decoupled_contrastive_learning = decoupled_contrastive_learning


class SigmoidContrastiveLearning(_ContrastiveLearning):
    """SigLIP: binary classification of all pairs, with a learned bias."""

    kind = "sigmoid"

    def __init__(self, *, layers: int = 1, init_temp: float = 10, init_bias: float = -10) -> None:
        super().__init__(layers, init_temp)
        self.bias = nn.Parameter(torch.full((layers, 1, 1), float(init_bias)))
