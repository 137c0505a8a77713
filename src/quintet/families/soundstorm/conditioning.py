"""`Conditioner`: conditioning of SoundStorm on semantic tokens per frame, or on one embedding per clip.

Conditioning is a mapping of names to tensors, batch first:

- `frames` (batch, frames), always present: the valid mask of the frames.
- `semantic` (batch, frames, tokens): the semantic tokens that overlap each frame.
- `clip` (batch, condition_dim): the embedding of the clip; `clip_valid` (batch,): whether the clip has one.
- `text` and `text_mask` (batch, words), which the conformer attends to; `model.py` encodes them.

Dropped conditioning, for classifier-free guidance, is a learned null embedding, not zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.families.soundstorm.config import SoundStormModelConfig
from quintet.nn.positions import EMBEDDING_SCALE

Conditioning = Mapping[str, Tensor]

NO_TOKEN = -2
"""A position whose semantic token is unknown; the null embedding takes its place."""

SLACK = 2
"""Tolerance between the two lengths of a clip, in semantic tokens or frames: encoders pad the ends differently."""


class Conditioner(nn.Module):
    """Embeds conditioning into vectors that are added to the vectors of the frames."""

    def __init__(self, config: SoundStormModelConfig) -> None:
        super().__init__()
        self.config = config
        self.semantic: nn.Embedding | None = None
        self.clip: nn.Linear | None = None
        if config.semantic_codes is not None:
            if config.frame_rate is None:
                raise UsageError("model.semantic_rate needs model.frame_rate if there is no tokenizer")
            self.semantic = nn.Embedding(config.semantic_codes + 1, config.dim)  # the last one is the null token
            nn.init.normal_(self.semantic.weight, std=EMBEDDING_SCALE)
        if config.condition_dim is not None:
            self.clip = nn.Linear(config.condition_dim, config.dim)
            self.no_clip = nn.Parameter(torch.randn(config.dim) * EMBEDDING_SCALE)

    def prepare(
        self,
        frames: Tensor,
        semantic: Tensor | None = None,
        clip: Tensor | None = None,
        keep: Tensor | None = None,
        aligned: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The conditioning of a batch with the valid mask `frames` (batch, frames).

        `semantic` (batch, tokens) is at the rate of the semantic tokens, padded with -1, and `NO_TOKEN` where a token
        is unknown; `clip` (batch, condition_dim). Rows where `keep` (batch,) is False get null conditioning. `aligned`
        are the semantic tokens after `align_semantic`, instead of `semantic`.
        """
        conditioning = {"frames": frames}
        rows, device = len(frames), frames.device
        keep = torch.ones(rows, dtype=torch.bool, device=device) if keep is None else keep.to(device)
        if self.config.semantic_codes is not None:
            null_token = self.config.semantic_codes
            if semantic is not None:
                aligned = align_semantic(self.config, frames, semantic)
            elif aligned is None:
                aligned = torch.full((*frames.shape, _tokens_per_frame(self.config)), null_token, device=device)
            conditioning["semantic"] = aligned.masked_fill(~(frames & keep[:, None])[..., None], null_token)
        elif semantic is not None:
            raise UsageError("this model takes no semantic tokens (model.semantic_codes is null)")
        if self.config.condition_dim is not None:
            if clip is None:
                clip, keep = torch.zeros(rows, self.config.condition_dim, device=device), torch.zeros_like(keep)
            if clip.shape != (rows, self.config.condition_dim):
                raise UsageError(
                    f"clip embeddings of shape {tuple(clip.shape)} do not fit {rows} clips with "
                    f"model.condition_dim={self.config.condition_dim}"
                )
            conditioning.update(clip=clip.to(device), clip_valid=keep)
        elif clip is not None:
            raise UsageError("this model takes no clip embeddings (model.condition_dim is null)")
        return conditioning

    def null_conditioning(self, conditioning: Conditioning) -> dict[str, Tensor]:
        """Null conditioning of the same clips, for classifier-free guidance."""
        null = self.prepare(conditioning["frames"])
        return null | ({"text_mask": torch.zeros_like(conditioning["text_mask"])} if "text" in conditioning else {})

    def forward(self, conditioning: Conditioning) -> Tensor | None:
        """Vectors (batch, frames or 1, dim); None for a model without conditioning."""
        parts: list[Tensor] = []
        if self.semantic is not None:
            parts.append(self.semantic(conditioning["semantic"]).mean(2))
        if self.clip is not None:
            valid = conditioning["clip_valid"][:, None]
            # Layer norm: embeddings of different sources have different norms.
            clip = conditioning["clip"].masked_fill(~valid, 0).to(self.clip.weight.dtype)
            vectors = self.clip(F.layer_norm(clip, clip.shape[-1:]))
            parts.append(torch.where(valid, vectors, self.no_clip.to(vectors.dtype))[:, None])
        return sum(parts[1:], parts[0]) if parts else None


def _ratio(config: SoundStormModelConfig) -> float:
    assert config.semantic_rate is not None
    assert config.frame_rate is not None
    return config.semantic_rate / config.frame_rate


def _tokens_per_frame(config: SoundStormModelConfig) -> int:
    """Semantic tokens per frame; 1 if they are slower than frames, so that one overlaps several frames."""
    return math.ceil(_ratio(config))


def align_semantic(config: SoundStormModelConfig, frames: Tensor, semantic: Tensor) -> Tensor:
    """Semantic tokens (batch, frames, tokens per frame) that overlap each frame of `frames` (batch, frames)."""
    assert config.semantic_codes is not None
    counts, lengths = (semantic != -1).sum(1), frames.sum(1)
    _check_semantic(config, semantic, counts, lengths)
    parts = _tokens_per_frame(config)
    middles = torch.arange(frames.shape[1] * parts, dtype=torch.float64).add_(0.5) * (_ratio(config) / parts)
    positions = middles.long().to(semantic.device).minimum((counts - 1).clamp(min=0)[:, None])
    aligned = semantic.gather(1, positions).view(*frames.shape, parts)
    return aligned.masked_fill(aligned == NO_TOKEN, config.semantic_codes)


def _check_semantic(config: SoundStormModelConfig, semantic: Tensor, counts: Tensor, lengths: Tensor) -> None:
    assert config.semantic_codes is not None
    if semantic.dim() != 2 or len(semantic) != len(lengths) or not semantic.shape[1]:
        raise UsageError(
            f"semantic tokens must have the shape (batch, tokens) with a batch of {len(lengths)}, "
            f"not {tuple(semantic.shape)}"
        )
    if int(semantic.min()) < NO_TOKEN or int(semantic.max()) >= config.semantic_codes:
        raise UsageError(
            f"semantic tokens from {int(semantic.min())} to {int(semantic.max())} are outside the vocabulary of "
            f"model.semantic_codes={config.semantic_codes}"
        )
    for tokens, frames in zip(counts.tolist(), lengths.tolist(), strict=True):
        if reason := length_mismatch(config, tokens, frames):
            raise UsageError(reason)


def length_mismatch(config: SoundStormModelConfig, tokens: int, frames: int) -> str | None:
    """An error message if a clip cannot have this many semantic tokens and frames; None if it can."""
    assert config.semantic_rate is not None
    assert config.frame_rate is not None
    ratio = config.semantic_rate / config.frame_rate
    if abs(tokens - frames * ratio) <= SLACK * max(1.0, ratio):
        return None
    return (
        f"{tokens} semantic tokens do not fit {frames} frames: with {config.semantic_rate:g} tokens and "
        f"{config.frame_rate:g} frames per second, {round(frames * ratio)} are expected"
    )
