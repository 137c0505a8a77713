"""Temporal prediction: each latent frame is encoded as its difference from a prediction out of the one before it.

The prediction is made from decoded vectors, never from the video itself, so encoder and decoder predict the same
(differential coding with a closed loop). The errors of a latent frame are therefore part of the next difference: the
codes of a patch that stands still correct it further in each latent frame, instead of repeating what is known.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet.common.precision import at_least_fp32
from quintet.nn.quantize import Quantizer


class TemporalPrediction(nn.Module):
    """Predicts vectors (batch, positions, dim) of a latent frame by a fixed affine map of the previous ones.

    The map starts as the identity; `transform.init_as_transform` sets it to "the last frame stands still". It is not
    trained: a small error of it would be made again in each latent frame.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight: Tensor
        self.bias: Tensor
        self.register_buffer("weight", torch.eye(dim))
        self.register_buffer("bias", torch.zeros(dim))

    def forward(self, vectors: Tensor) -> Tensor:
        with torch.autocast(vectors.device.type, enabled=False):
            return nn.functional.linear(vectors, self.weight.to(vectors.dtype), self.bias.to(vectors.dtype))

    @torch.no_grad()
    def closed_loop(self, latents: Tensor, quantizer: Quantizer) -> Tensor:
        """Predictions (batch, latent frames, positions, dim) for latents; zero for the first latent frame."""
        exact = at_least_fp32(latents)
        predictions = [torch.zeros_like(exact[:, 0])]
        for current in exact[:, :-1].unbind(1):
            codes = quantizer.encode(current - predictions[-1])
            predictions.append(self(predictions[-1] + quantizer.codes_to_vectors(codes)))
        return torch.stack(predictions, dim=1)

    def accumulated(self, vectors: Tensor) -> Tensor:
        """Decoded latents of the vectors of codes (batch, latent frames, positions, dim)."""
        frames = [vectors[:, 0]]
        for difference in vectors[:, 1:].unbind(1):
            frames.append(self(frames[-1]) + difference)
        return torch.stack(frames, dim=1)
