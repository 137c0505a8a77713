"""Use of the similarity of codebook entries: initialisation of token embeddings, and smoothing of targets.

Which of several nearly equal codes a tokenizer chooses is often random, for example for a plain background. A model
that must predict one of them learns mostly this noise. With targets spread over similar codes it learns the content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quintet.errors import UsageError


def init_from_codebook(weight: Tensor, codebook: Tensor) -> None:
    """Initialise `weight` (codes, dim) in place from `codebook` (codes, code_dim), so that similar codes start similar.

    The vectors are centred, scaled to the standard deviation of the initial weights, and mapped to `dim` by a random
    orthogonal matrix, a new one in each call.
    """
    centred = codebook.to("cpu", weight.dtype)
    centred = centred - centred.mean(0)
    if not centred.isfinite().all() or not centred.any():
        raise UsageError("the vectors of the codebook are not finite, or all equal")
    # Orthogonal, so that distances between codes are preserved.
    rotated = centred @ nn.init.orthogonal_(centred.new_empty(centred.shape[1], weight.shape[1]))
    weight.copy_(rotated * (weight.std().cpu() / rotated.std()))


MAX_NEIGHBOURS = 16
"""Maximum number of codes that a target is spread over."""
CHUNK_SIZE = 1024
"""Number of codes per chunk of the distance computation."""


@dataclass(frozen=True)
class CodebookSmoothing:
    """The nearest codes of each code, itself first, and their weights in its target.

    Both tables are `(levels, codes, neighbours)`. Codes are similar only to codes of the same level, which are those of
    the same quantizer.
    """

    codes: Tensor
    weights: Tensor

    @property
    def levels(self) -> int:
        return len(self.codes)

    def loss(self, log_probabilities: Tensor, target: Tensor, levels: Tensor | int = 0) -> Tensor:
        """Cross-entropy (positions,) of `log_probabilities` (positions, codes) and `target` (positions,).

        `levels` is the level of each position, (positions,), or of all.
        """
        codes, weights = (table.to(target.device)[levels, target] for table in (self.codes, self.weights))
        return -(log_probabilities.gather(-1, codes) * weights.to(log_probabilities.dtype)).sum(-1)


def codebook_smoothing(codebooks: Sequence[Tensor], spread: float) -> CodebookSmoothing:
    """Smoothing tables of the codebook (codes, code_dim) of each level.

    Weights decrease exponentially with the squared distance; the unit is `spread` times the median squared distance
    between nearest neighbours of the same level.
    """
    codes, weights = zip(*(_neighbours(codebook, spread) for codebook in codebooks), strict=True)
    return CodebookSmoothing(torch.stack(codes), torch.stack(weights))


def _neighbours(codebook: Tensor, spread: float) -> tuple[Tensor, Tensor]:
    device, codebook = codebook.device, codebook.detach().to("cpu", torch.float64)
    neighbours = min(MAX_NEIGHBOURS, len(codebook))
    near = [
        torch.cdist(part, codebook).square().topk(neighbours, largest=False)
        for part in torch.split(codebook, CHUNK_SIZE)
    ]
    distances, codes = (torch.cat(parts) for parts in zip(*near, strict=True))
    unit = distances[:, 1].median() * spread
    if not unit > 0:
        raise UsageError(
            "loss.codebook_smoothing: half of the tokenizer's codes are identical, which leaves no scale of "
            "distances; set it to 0"
        )
    return codes.to(device), (-distances / unit).softmax(-1).float().to(device)


def check_codebook_smoothing(spread: float, has_tokenizer: bool) -> None:
    """Refuse `loss.codebook_smoothing` without a tokenizer, before data is read."""
    if spread and not has_tokenizer:
        raise UsageError(
            f"loss.codebook_smoothing={spread:g} needs a tokenizer, whose codebook it takes the distances of codes "
            "from; name it with --tokenizer RUN, or set loss.codebook_smoothing=0"
        )
