"""What a tokenizer's vectors tell of codes that look alike: weights that begin alike, and targets that are shared.

Which of several nearly equal codes a tokenizer chose is often chance, such as of a plain background. A model that is
asked for the one code is mostly taught this chance; asked for all of them by how alike they are, it is taught what
there is to see.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quintet.errors import UsageError


def init_from_codebook(weight: Tensor, codebook: Tensor) -> None:
    """Let similar codes start alike: `weight` is (codes, dim), `codebook` (codes, code_dim).

    The vectors are centred, brought to the scale that the weights were initialised with, and turned at random into
    their width; each call turns differently.
    """
    centred = codebook.to("cpu", weight.dtype)
    centred = centred - centred.mean(0)
    if not centred.isfinite().all() or not centred.any():
        raise UsageError("the vectors of a codebook are not finite, or all the same")
    # Orthogonal, so that distances between codes stay what the tokenizer made them.
    turned = centred @ nn.init.orthogonal_(centred.new_empty(centred.shape[1], weight.shape[1]))
    weight.copy_(turned * (weight.std().cpu() / turned.std()))


MOST = 16
"""Codes that share a target."""
AT_ONCE = 1024
"""Codes whose distances to all others are taken at once."""


@dataclass(frozen=True)
class CodebookSmoothing:
    """For each code those that are most like it, itself first, (codes, some), and their shares of its target; where the
    codebook is."""

    codes: Tensor
    shares: Tensor

    def loss(self, log_probabilities: Tensor, target: Tensor) -> Tensor:
        """(places, codes) and (places,) to the cross-entropy of each place."""
        codes, shares = (table.to(target.device)[target] for table in (self.codes, self.shares))
        return -(log_probabilities.gather(-1, codes) * shares.to(log_probabilities.dtype)).sum(-1)


def codebook_smoothing(codebook: Tensor, spread: float) -> CodebookSmoothing:
    """Shares fall with the squared distance, by e for every `spread` times the median one between nearest codes."""
    device, codebook = codebook.device, codebook.detach().to("cpu", torch.float64)
    some = min(MOST, len(codebook))
    near = [torch.cdist(part, codebook).square().topk(some, largest=False) for part in torch.split(codebook, AT_ONCE)]
    distances, codes = (torch.cat(parts) for parts in zip(*near, strict=True))
    unit = distances[:, 1].median() * spread
    if not unit > 0:
        raise UsageError(
            "loss.codebook_smoothing: half of the tokenizer's codes are the same, so that nothing is known of the rest"
        )
    return CodebookSmoothing(codes.to(device), (-distances / unit).softmax(-1).float().to(device))


def check_codebook_smoothing(spread: float, levels: int | None) -> None:
    """Refuse `loss.codebook_smoothing` before anything is read; `levels` are those of the tokenizer, if there is one."""
    if spread and levels != 1:
        raise UsageError("loss.codebook_smoothing needs a tokenizer with one code a place: set it to 0")
