"""`MuLaN`: a joint embedding of audio and text (Huang et al. 2022, 2208.12415)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.precision import at_least_fp32
from quintet.common.statistics import Statistics
from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.mulan.config import MuLaNModelConfig
from quintet.families.mulan.frozen_audio import FrozenAudioTower, make_audio_tower
from quintet.families.mulan.towers import AudioSpectrogramTransformer, Prepared, SpecAugmentNoise, TextTransformer
from quintet.nn.quantize import make_quantizer

__all__ = ["AudioSpectrogramTransformer", "MuLaN", "MuLaNEmbedQuantizer", "TextTransformer", "Vectors"]

INITIAL_BIAS = -10.0
"""Initial bias of the sigmoid loss, for which nearly all pairs are negatives (2303.15343)."""
DEAD_FRACTION = 0.05
"""A code that is used less often than this fraction of the mean is dead."""


class Vectors(NamedTuple):
    """Unit embeddings of clips and texts, each (batch, states, latent_dim), and logit `scale` and `bias` (states,).

    A state is the output of a block with a contrastive loss; the last state is the embedding to use. `negative`
    (batch, states, latent_dim) are those of hard negatives of the texts, zero where a text has none; None: no text has.
    """

    audio: Tensor
    text: Tensor
    scale: Tensor
    bias: Tensor
    negative: Tensor | None = None


class MuLaN(Pretrained, nn.Module):
    """An audio tower and a text tower with projections into a joint embedding space.

    MuLaN(audio_transformer=AudioSpectrogramTransformer(dim=512), text_transformer=TextTransformer(dim=512)), or
    keyword arguments that are the keys of `model.*`; see `MuLaNModelConfig`.
    """

    CONFIG = MuLaNModelConfig

    def __init__(
        self,
        config: MuLaNModelConfig | None = None,
        *,
        audio_transformer: AudioSpectrogramTransformer | None = None,
        text_transformer: TextTransformer | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__()
        for name, tower in (("audio", audio_transformer), ("text", text_transformer)):
            if tower is not None:
                if name in keywords or config is not None:
                    raise UsageError(f"MuLaN takes {name}_transformer, or the keys of model.{name}, not both")
                keywords[name] = tower.config.model_dump(mode="json")
        self.config = config = config or validate(MuLaNModelConfig, keywords)
        self.audio: AudioSpectrogramTransformer | FrozenAudioTower = audio_transformer or make_audio_tower(config.audio)
        self.text = text_transformer or TextTransformer(config.text)
        states = config.intermediate_losses + 1
        self.audio_to_latent = _projections(config.audio.dim, config.latent_dim, states)
        self.text_to_latent = _projections(config.text.dim, config.latent_dim, states)
        self.log_scale = nn.Parameter(torch.full((states,), -math.log(config.temperature)))
        self.bias = nn.Parameter(torch.full((states,), INITIAL_BIAS)) if config.contrastive_loss == "sigmoid" else None

    @property
    def sample_rate(self) -> int:
        """Sampling rate of its input, in Hz."""
        return self.config.audio.sample_rate

    @property
    def latent_dim(self) -> int:
        return self.config.latent_dim

    def forward(
        self,
        waves: Tensor,
        lengths: Tensor,
        text: Tensor,
        mask: Tensor,
        noise: SpecAugmentNoise | None,
        swapped: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Vectors:
        """Embeddings of a training batch: `waves` (batch, samples), `text` and `mask` as returned by `prepare`.

        `swapped` are the same of the hard negatives, and the mask (batch,) of the texts that have one.
        """
        config = self.config
        audio = self.audio(waves, lengths, noise, _evenly(config.audio.depth, config.intermediate_losses))
        after = _evenly(config.text.depth, config.intermediate_losses)
        texts = self.text(text, mask, after)
        vectors = _latents(self.audio_to_latent, audio), _latents(self.text_to_latent, texts)
        negative = None
        if swapped is not None:
            other, other_mask, is_swapped = swapped
            negative = _latents(self.text_to_latent, self.text(other, other_mask, after))
            negative = negative * is_swapped[:, None, None]
        return Vectors(*vectors, *self._scale_and_bias(), negative)

    def embed_audio(self, waves: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Unit embeddings (batch, latent_dim) of waveforms (batch, samples)."""
        if lengths is None:
            lengths = torch.full((len(waves),), waves.shape[1], device=waves.device)
        return _latents(self.audio_to_latent[-1:], self.audio(waves, lengths)[:, -1:])[:, 0]

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Unit embeddings (batch, latent_dim) of texts."""
        return self.embed_prepared(self.text.prepare(texts))

    def embed_prepared(self, prepared: Prepared) -> Tensor:
        """Unit embeddings (batch, latent_dim) of texts as returned by `prepare`."""
        device = self.log_scale.device
        text, mask = (tensor.to(device) for tensor in prepared)
        return _latents(self.text_to_latent[-1:], self.text(text, mask)[:, -1:])[:, 0]

    def _scale_and_bias(self) -> tuple[Tensor, Tensor]:
        scale = self.log_scale.exp()
        return scale, torch.zeros_like(scale) if self.bias is None else self.bias


def _projections(dim: int, latent_dim: int, states: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(dim, latent_dim, bias=False) for _ in range(states))


def _latents(projections: nn.ModuleList, states: Tensor) -> Tensor:
    """Unit embeddings (batch, states, latent_dim) of states (batch, states, dim).

    In full precision: autocast is too coarse for small angles between embeddings.
    """
    with torch.autocast(states.device.type, enabled=False):
        exact = at_least_fp32(states)
        vectors = [project(state) for project, state in zip(projections, exact.unbind(1), strict=True)]
        return F.normalize(torch.stack(vectors, dim=1), dim=-1)


def _evenly(depth: int, count: int) -> tuple[int, ...]:
    """The indices of `count` evenly spaced blocks, without the last one."""
    return tuple(depth * number // (count + 1) - 1 for number in range(1, count + 1))


class MuLaNEmbedQuantizer(nn.Module):
    """Residual quantizer of embeddings: (batch, latent_dim) to codes (batch, num_quantizers) and back.

    For generators that are conditioned on the codes (MusicLM, 2301.11325). Its codebooks are moving averages.
    `positions` is the number of embeddings per training step.
    """

    def __init__(
        self,
        latent_dim: int,
        num_quantizers: int = 8,
        codebook_size: int = 1024,
        *,
        positions: int = 1024,
    ) -> None:
        super().__init__()
        if num_quantizers < 1:
            raise UsageError(f"MuLaNEmbedQuantizer needs num_quantizers of at least 1, not {num_quantizers}")
        # The embeddings get no gradient from the quantizer, so there is no commitment loss.
        self.quantizer = make_quantizer(
            "vq",
            latent_dim,
            codebook_size,
            num_quantizers,
            commitment_weight=0.0,
            revive_below=DEAD_FRACTION * positions / codebook_size,
        )

    def encode(self, vectors: Tensor) -> Tensor:
        """Codes (batch, num_quantizers) of embeddings (batch, latent_dim)."""
        codes: Tensor = self.quantizer.encode(vectors[None])[0]
        return codes if self.quantizer.code_axes else codes[:, None]

    def decode(self, codes: Tensor) -> Tensor:
        """Unit embeddings (batch, latent_dim) of codes (batch, num_quantizers)."""
        inner = codes if self.quantizer.code_axes else codes[:, 0]
        return F.normalize(self.quantizer.codes_to_vectors(inner[None])[0], dim=-1)

    def forward(self, views: Tensor, return_candidates: bool) -> Statistics:
        """Codebook statistics of the embeddings of a batch, (batch, views, latent_dim)."""
        statistics: Statistics = self.quantizer(views, return_candidates=return_candidates).statistics
        return statistics
