"""The codes of a batch of clips as rows, and which of them a training step may mask."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.families.phenaki.config import PhenakiLossConfig
from quintet.sampling.maskgit_preparation import CodeRows


def code_rows(loss: PhenakiLossConfig, batch: Batch, train: bool) -> CodeRows:
    """Rows (batch, codes) of a collated batch. In training, some codes may be known: the start of a continuation."""
    if loss.frame_autoregressive:
        return _up_to_latent_frame(loss, batch)
    valid: Tensor | None = batch.fields.get("valid_mask")
    codes = batch["codes"].flatten(1)
    if valid is not None:
        codes = codes.masked_fill(~valid, 0)
    known = _known_codes(loss, batch) if train and loss.continuation_prob else None
    return CodeRows(codes, valid, known)


def latent_frames(codes: Tensor) -> Tensor:
    """Mask (batch, latent frames) of the latent frames that are not padding."""
    return (codes >= 0).flatten(2).any(2)


def _up_to_latent_frame(loss: PhenakiLossConfig, batch: Batch) -> CodeRows:
    """One latent frame of each clip to predict, with all earlier ones known and all later ones removed."""
    codes = batch["codes"]
    chosen = _latent_frames_to_predict(loss, batch.rng, latent_frames(codes).sum(1))
    codes = codes[:, : int(chosen.max()) + 1]
    indices = torch.arange(codes.shape[1], device=codes.device)
    positions = prod(codes.shape[2:])
    valid = (indices <= chosen[:, None]).repeat_interleave(positions, 1)
    known = (indices < chosen[:, None]).repeat_interleave(positions, 1)
    return CodeRows(codes.flatten(1).masked_fill(~valid, 0), valid, known)


def _latent_frames_to_predict(loss: PhenakiLossConfig, rng: ItemRNG, lengths: Tensor) -> Tensor:
    """Index of the latent frame to predict for each clip (batch,)."""
    chances, first = rng.uniform("moment").to(lengths.device), loss.first_frame_prob
    later = 1 + ((chances - first) / max(1 - first, 1e-9) * (lengths - 1)).long()
    return torch.where(chances < first, 0, later).minimum(lengths - 1)


def _known_codes(loss: PhenakiLossConfig, batch: Batch) -> Tensor:
    """Mask (batch, codes) of known codes: the first latent frames of some clips, so that the model learns to
    continue."""
    codes: Tensor = batch["codes"]
    lengths = latent_frames(codes).sum(1)
    primed = batch.rng.uniform("primed").to(lengths.device) < loss.continuation_prob
    chosen = (batch.rng.uniform("primed moments").to(lengths.device) * (lengths - 1)).long() + 1
    counts = torch.where(primed, chosen.minimum(lengths - 1), 0)
    known = torch.arange(codes.shape[1], device=lengths.device) < counts[:, None]
    return known.repeat_interleave(prod(codes.shape[2:]), 1)
