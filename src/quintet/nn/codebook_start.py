"""Owns how weights that belong to codes begin: as the tokenizer's own vectors of these codes, turned."""

from __future__ import annotations

from torch import Tensor, nn

from quintet.errors import UsageError


def start_alike(weight: Tensor, codebook: Tensor) -> None:
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
