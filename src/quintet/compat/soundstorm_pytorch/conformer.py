"""`Conformer` and `ConformerWrapper` of soundstorm-pytorch: quintet's conformer over the codes of a codec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from quintet.compat.model import CompatModel, notify, refuse_unless
from quintet.errors import UsageError
from quintet.families.soundstorm.config import SoundStormModelConfig
from quintet.families.soundstorm.model import ConformerWrapper as OwnConformerWrapper
from quintet.families.soundstorm.model import SoundStorm as OwnSoundStorm
from quintet.nn.conformer import Conformer as OwnConformer

MAX_FRAMES = 8192
"""Frames of a clip for which rotary positions are computed; they have no parameters."""


class Conformer(CompatModel):
    """Conformer blocks over (batch, frames, dim)."""

    def __init__(
        self,
        dim: int,
        *,
        depth: int,
        dim_head: int = 64,
        heads: int = 8,
        ff_mult: float = 4,
        conv_expansion_factor: int = 2,
        conv_kernel_size: int = 31,
        attn_dropout: float = 0.0,
        ff_dropout: float = 0.0,
        conv_dropout: float = 0.0,
        conv_causal: bool = False,
        attn_flash: bool = True,
        t5_rel_pos_bias: bool = False,
        num_residual_streams: int = 4,
    ) -> None:
        super().__init__()
        refuse_unless("Conformer", "conv_causal", conv_causal, (False,), "all frames are predicted together")
        refuse_unless(
            "Conformer", "t5_rel_pos_bias", t5_rel_pos_bias, (False,), "positions are rotary embeddings; leave it out"
        )
        if len({attn_dropout, ff_dropout, conv_dropout}) > 1:
            raise UsageError("Conformer: attn_dropout, ff_dropout and conv_dropout must be the same here")
        if num_residual_streams != 1:
            notify("Conformer", f"num_residual_streams={num_residual_streams} has no effect: there is one stream")
        self.dim = dim
        self.keys = {
            "dim": dim,
            "depth": depth,
            "heads": heads,
            "head_dim": dim_head,
            "ff_mult": float(ff_mult),
            "conv_kernel_size": conv_kernel_size,
            "conv_expansion": conv_expansion_factor,
            "dropout": attn_dropout,
            # The original has rotary positions only.
            "position_embedding": False,
            "max_frames": MAX_FRAMES,
        }
        self.model = OwnConformer(
            dim,
            depth,
            heads,
            dim_head,
            float(ff_mult),
            conv_kernel_size,
            conv_expansion_factor,
            attn_dropout,
            MAX_FRAMES,
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Vectors of the same shape; `mask` (batch, frames) is true at valid frames."""
        out: Tensor = self.model(x, mask)
        return out


class ConformerWrapper(CompatModel):
    """Codes (batch, frames * quantizers) to logits (batch, frames * quantizers, codebook_size).

    Grouped quantizers are further quantizers, whose embeddings are summed; codes of a frame are ordered by group.
    """

    def __init__(
        self,
        *,
        codebook_size: int,
        num_quantizers: int,
        conformer: Conformer | Mapping[str, Any],
        grouped_quantizers: int = 1,
    ) -> None:
        super().__init__()
        conformer = conformer if isinstance(conformer, Conformer) else Conformer(**conformer)
        self.dim = conformer.dim
        self.codebook_size = codebook_size
        self.num_quantizers, self.grouped_quantizers = num_quantizers, grouped_quantizers
        self.num_effective_quantizers = num_quantizers * grouped_quantizers
        self.num_codes_with_mask = codebook_size + 1
        keys: dict[str, Any] = {
            **conformer.keys,
            "num_codes": codebook_size,
            "num_quantizers": self.num_effective_quantizers,
        }
        # In a tuple, so that the weights of the conformer are in the state once, as those of `model`.
        self._conformer = (conformer,)
        self.model = OwnSoundStorm(**keys)
        self.model.net.conformer = conformer.model
        if grouped_quantizers > 1:
            notify("ConformerWrapper", "the embeddings of grouped quantizers are summed, not concatenated")

    @property
    def conformer(self) -> Conformer:
        return self._conformer[0]

    def extend(self, **keys: Any) -> None:
        """Add conditioning, self-conditioning or a critic; all existing weights remain."""
        config: SoundStormModelConfig = self.model.config
        previous, self.model = self.model, OwnSoundStorm(config.model_copy(update=keys))
        net: OwnConformerWrapper = self.model.net
        net.embedding, net.conformer = previous.net.embedding, previous.net.conformer
        self.model.head_weights, self.model.head_biases = previous.head_weights, previous.head_biases
        self.model.to(previous.head_weights.device, previous.head_weights.dtype)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cond: Tensor | None = None,
        sum_embeds: Tensor | None = None,
        return_embeddings: bool = False,
        return_logits_and_embeddings: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits of all quantizers, or the vectors of the frames, repeated for each quantizer, or both.

        `cond` (batch, dim) or (batch, frames, dim) and `sum_embeds` (batch, frames * quantizers, dim) are added to the
        vectors of the frames before the conformer.
        """
        quantizers = self.num_effective_quantizers
        if x.ndim != 2 or x.shape[1] % quantizers:
            raise UsageError(f"codes of shape {tuple(x.shape)} are not (batch, frames * {quantizers} quantizers)")
        codes = rearrange(x, "b (n q) -> b n q", q=quantizers)
        frames = torch.ones(codes.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        with self.adding(sum_embeds, cond):
            vectors = self.model.net(codes, self.model.conditioning(frames))
        embeddings: Tensor = repeat(vectors, "b n d -> b (n q) d", q=quantizers)
        if return_embeddings:
            return embeddings
        logits = torch.stack([self.model.logits_of(vectors, level) for level in range(quantizers)], dim=2).flatten(1, 2)
        return (logits, embeddings) if return_logits_and_embeddings else logits

    def adding(self, sum_embeds: Tensor | None, cond: Tensor | None = None) -> AbstractContextManager[None]:
        """Add these to the vectors of the frames in all forward passes inside of the context."""
        return _added(self.model.net.conformer, self._additions(cond, sum_embeds))

    def _additions(self, cond: Tensor | None, sum_embeds: Tensor | None) -> list[Tensor]:
        added = []
        if cond is not None:
            added.append(cond[:, None] if cond.ndim == 2 else cond)
        if sum_embeds is not None:
            quantizers = self.num_effective_quantizers
            added.append(rearrange(sum_embeds, "b (n q) d -> b n q d", q=quantizers).sum(2))
        return added


@contextmanager
def _added(module: nn.Module, vectors: list[Tensor]) -> Iterator[None]:
    """Add vectors to the input of a module."""

    def add(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (sum(vectors, arguments[0]), *arguments[1:])

    handle = module.register_forward_pre_hook(add)
    try:
        yield
    finally:
        handle.remove()
