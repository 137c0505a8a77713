"""`Conditioner`: what SoundStorm is conditioned on: semantic tokens, frame by frame, or one vector of a whole clip.

Conditioning is named tensors, batch first. `frames (batch, frames)` is always among them and says which frames are
there. `semantic (batch, frames, tokens)` are the semantic tokens that lie over each frame. `clip (batch, condition_dim)`
is the vector, `clip_valid (batch,)` whether there is one. What is dropped, for guidance, is not zero but a learned
vector of its own.
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

SLACK = 2
"""By how many semantic tokens, or frames, a clip's two lengths may differ: encoders treat its ends differently."""


class Conditioner(nn.Module):
    """Makes vectors of conditioning, to be added to every frame's."""

    def __init__(self, config: SoundStormModelConfig) -> None:
        super().__init__()
        self.config = config
        self.semantic: nn.Embedding | None = None
        self.clip: nn.Linear | None = None
        if config.semantic_codes is not None:
            if config.frame_rate is None:
                raise UsageError("model.semantic_rate needs model.frame_rate where no tokenizer gives it")
            self.semantic = nn.Embedding(config.semantic_codes + 1, config.dim)  # the last one is for no token
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
    ) -> dict[str, Tensor]:
        """The conditioning of a batch. `semantic (batch, tokens)` are at their own rate, -1 behind a row's last one.

        Where `keep` is False the row has none.
        """
        conditioning = {"frames": frames}
        rows, device = len(frames), frames.device
        keep = torch.ones(rows, dtype=torch.bool, device=device) if keep is None else keep.to(device)
        if self.config.semantic_codes is not None:
            nothing = self.config.semantic_codes
            if semantic is None:
                laid = torch.full((*frames.shape, self._tokens_a_frame), nothing, device=device)
            else:
                laid = self._laid_over(frames, semantic)
            conditioning["semantic"] = laid.masked_fill(~(frames & keep[:, None])[..., None], nothing)
        elif semantic is not None:
            raise UsageError("this model is told no semantic tokens (model.semantic_codes)")
        if self.config.condition_dim is not None:
            if clip is None:
                clip, keep = torch.zeros(rows, self.config.condition_dim, device=device), torch.zeros_like(keep)
            if clip.shape != (rows, self.config.condition_dim):
                raise UsageError(
                    f"vectors of shape {tuple(clip.shape)} are not {rows} of model.condition_dim={self.config.condition_dim}"
                )
            conditioning.update(clip=clip.to(device), clip_valid=keep)
        elif clip is not None:
            raise UsageError("this model is told no vector of a clip (model.condition_dim)")
        return conditioning

    def null_conditioning(self, conditioning: Conditioning) -> dict[str, Tensor]:
        """The same clips with everything dropped: what guidance leads away from."""
        return self.prepare(conditioning["frames"])

    def forward(self, conditioning: Conditioning) -> Tensor | None:
        """`(batch, frames or 1, dim)`; None for a model without conditioning."""
        parts: list[Tensor] = []
        if self.semantic is not None:
            parts.append(self.semantic(conditioning["semantic"]).mean(2))
        if self.clip is not None:
            there = conditioning["clip_valid"][:, None]
            # Where vectors come from decides their length; the model should not feel it.
            clip = conditioning["clip"].masked_fill(~there, 0).to(self.clip.weight.dtype)
            vectors = self.clip(F.layer_norm(clip, clip.shape[-1:]))
            parts.append(torch.where(there, vectors, self.no_clip.to(vectors.dtype))[:, None])
        return sum(parts[1:], parts[0]) if parts else None

    @property
    def _ratio(self) -> float:
        assert self.config.semantic_rate is not None
        assert self.config.frame_rate is not None
        return self.config.semantic_rate / self.config.frame_rate

    @property
    def _tokens_a_frame(self) -> int:
        """Where semantic tokens are the slower ones one lies over several frames, and a frame has one."""
        return math.ceil(self._ratio)

    def _laid_over(self, frames: Tensor, semantic: Tensor) -> Tensor:
        counts, lengths = (semantic >= 0).sum(1), frames.sum(1)
        # Not on a GPU: reading from it would hold up every step.
        if semantic.device.type == "cpu":
            self._check(semantic, counts, lengths)
        parts = self._tokens_a_frame
        middles = torch.arange(frames.shape[1] * parts, dtype=torch.float64).add_(0.5) * (self._ratio / parts)
        places = middles.long().to(semantic.device).minimum((counts - 1).clamp(min=0)[:, None])
        return semantic.gather(1, places).view(*frames.shape, parts)

    def _check(self, semantic: Tensor, counts: Tensor, lengths: Tensor) -> None:
        assert self.config.semantic_codes is not None
        if semantic.dim() != 2 or len(semantic) != len(lengths) or not semantic.shape[1]:
            raise UsageError(
                f"semantic tokens of shape {tuple(semantic.shape)} are not (batch, tokens) of {len(lengths)} clips"
            )
        if int(semantic.min()) < -1 or int(semantic.max()) >= self.config.semantic_codes:
            raise UsageError(
                f"semantic tokens from {int(semantic.min())} to {int(semantic.max())} are not all in the vocabulary "
                f"of model.semantic_codes={self.config.semantic_codes}"
            )
        for tokens, frames in zip(counts.tolist(), lengths.tolist(), strict=True):
            if reason := misfit(self.config, tokens, frames):
                raise UsageError(reason)


def misfit(config: SoundStormModelConfig, tokens: int, frames: int) -> str | None:
    """Why so many semantic tokens cannot be those of so many frames; none where they can."""
    assert config.semantic_rate is not None
    assert config.frame_rate is not None
    ratio = config.semantic_rate / config.frame_rate
    if abs(tokens - frames * ratio) <= SLACK * max(1.0, ratio):
        return None
    return (
        f"{tokens} semantic tokens do not fit {frames} frames: at {config.semantic_rate:g} and {config.frame_rate:g} a "
        f"second there would be {round(frames * ratio)}"
    )
