"""Owns lookup-free quantization (MAGVIT-v2, 2310.05737): a code is the signs of log2(codes) numbers.

The entropy loss asks every vector to be sure of its code, and all vectors together to use all codes. The paper's
softmax over all codes, of exp(2 * inverse_temperature * latent . code), is a product of one coin per bit with
log odds 4 * inverse_temperature * scale * latent. So the entropy of a vector is the sum of its coins' entropies,
and the mean distribution over all 2^bits codes is one matrix product of the distributions of two halves of the
bits: exact, with 2^bits numbers in memory instead of positions * 2^bits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common import collectives
from quintet.errors import UsageError
from quintet.nn.quantize.base import SingleQuantizer


class LookupFreeQuantizer(SingleQuantizer):
    """Codes are signs; the first dimension is the highest bit, and each is `scale` or `-scale`.

    loss = `entropy_weight` * (entropy of a vector - `diversity_gamma` * entropy of the batch)
    + `commitment_weight` * mean squared distance, all as means over the global batch; entropies in nats.
    With `inverse_temperature` 100 and codes at 1 a number is undecided only within about 0.01 of 0.
    `depth` is the level in a residual quantizer: the codes lie at scale 2^-depth.
    """

    def __init__(
        self,
        dim: int,
        num_codes: int,
        *,
        entropy_weight: float = 0.1,
        diversity_gamma: float = 4.0,
        commitment_weight: float = 0.25,
        inverse_temperature: float = 100.0,
        depth: int = 0,
    ) -> None:
        super().__init__(dim, bits_of(num_codes), num_codes)
        self.entropy_weight = entropy_weight
        self.diversity_gamma = diversity_gamma
        self.commitment_weight = commitment_weight
        self.inverse_temperature = inverse_temperature
        self.scale = 2.0**-depth

    def nearest(self, latents: Tensor, levels: int | None = None) -> Tensor:
        return ((latents > 0).long() << places(self.code_dim, latents.device)).sum(-1)

    def look_up(self, codes: Tensor) -> Tensor:
        bits = (codes[:, None] >> places(self.code_dim, codes.device)) & 1
        return (2 * bits - 1).to(self.placement.dtype) * self.scale

    def auxiliary_loss(self, latents: Tensor, values: Tensor, valid: Tensor | None) -> Tensor:
        log_odds = latents * (4 * self.inverse_temperature * self.scale)
        no, yes = F.logsigmoid(-log_odds), F.logsigmoid(log_odds)
        weights = latents.new_ones(len(latents)) if valid is None else valid.to(latents.dtype)
        half = self.code_dim // 2
        high = joint_probabilities(no[:, :half], yes[:, :half]) * weights[:, None]
        low = joint_probabilities(no[:, half:], yes[:, half:])
        entropies = -(no.exp() * no + yes.exp() * yes).sum(-1)
        distances = (latents - values).square().mean(-1)
        sums = torch.stack([weights.sum(), weights @ entropies, weights @ distances])
        # One message for all of it; what follows is the same on every rank.
        sums = collectives.sum_over_ranks(torch.cat([sums, (high.t() @ low).flatten()]))
        means = sums[1:] / sums[0].detach().clamp(min=1)
        entropy, distance, average = means[0], means[1], means[2:]
        # A code of probability 0 has entropy 0 and no infinite gradient.
        diversity = -(average * average.clamp(min=torch.finfo(average.dtype).tiny).log()).sum()
        entropy_loss = entropy - self.diversity_gamma * diversity
        return self.entropy_weight * entropy_loss + self.commitment_weight * distance


def places(bits: int, device: torch.device) -> Tensor:
    """Where each dimension's bit stands in the code, highest first."""
    return torch.arange(bits - 1, -1, -1, device=device)


def joint_probabilities(no: Tensor, yes: Tensor) -> Tensor:
    """The probabilities `(n, 2^bits)` of all words of independent bits, of log probabilities `(n, bits)`.

    The logarithms all have one sign, so that their sums, one matrix product, lose no digits.
    """
    bits = no.shape[-1]
    words = torch.arange(2**bits, device=no.device)[:, None] >> places(bits, no.device) & 1
    chosen = torch.cat([1 - words, words], -1).to(no.dtype)
    return (torch.cat([no, yes], -1) @ chosen.t()).exp()


def bits_of(num_codes: int) -> int:
    """log2, of a power of two."""
    bits = max(num_codes, 0).bit_length() - 1
    if bits < 1 or num_codes != 2**bits:
        below = 2 ** max(bits, 1)
        raise UsageError(f"LFQ needs a power of two as num_codes, not {num_codes}; take {below} or {2 * below}.")
    return bits
