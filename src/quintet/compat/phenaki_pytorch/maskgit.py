"""`MaskGit` and `TokenCritic` of phenaki-pytorch: quintet's masked transformers over a grid of video codes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from quintet.compat.model import CompatModel, notify, refuse_unknown, refuse_unless
from quintet.compat.text import EmbeddingProjection, take_over, text_conditioning
from quintet.config import validate
from quintet.config.masked import MaskGitConfig
from quintet.errors import UsageError
from quintet.nn.maskgit import MaskGit as OwnMaskGit
from quintet.nn.maskgit import TokenCritic as OwnTokenCritic


class _VideoTransformer(CompatModel):
    """What generator and critic share: quintet's transformer, and a projection of text embeddings."""

    def __init__(
        self,
        *,
        dim: int,
        num_tokens: int,
        max_seq_len: int,
        heads: int,
        dim_head: int,
        conditional: bool,
        dropout: float,
        depth: int = 0,
        dim_context: int | None = None,
        ff_mult: float = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        refuse_unknown(name, kwargs)
        if not depth:
            raise UsageError(f"{name} needs depth, the number of blocks")
        refuse_unless(name, "ff_mult", float(ff_mult), (4.0,), "feed-forward layers have a fixed width; leave it out")
        self.dim, self.max_seq_len = dim, max_seq_len
        self._grid_is_known = False
        keys = {
            "grid": [max_seq_len, 1, 1],
            "num_codes": num_tokens,
            "dim": dim,
            "depth": depth,
            "heads": heads,
            "dropout": dropout,
            "text": "bytes" if conditional else "none",
            "text_dim": dim,
            "text_heads": heads,
        }
        self.model = self._build(validate(MaskGitConfig, keys))
        self.project: EmbeddingProjection | None = None
        if conditional:
            self.project = EmbeddingProjection(dim if dim_context is None else dim_context, dim)
        if dim_head * heads != dim:
            notify(name, f"attention heads have the dimension dim / heads = {dim / heads:g}, not dim_head={dim_head}")

    def _build(self, config: MaskGitConfig) -> OwnMaskGit | OwnTokenCritic:
        raise NotImplementedError

    @property
    def mask_id(self) -> int:
        return self.model.mask_id

    def adapt(self, **keys: Any) -> None:
        """Change keys of the model that only its owner knows, such as the grid; weights of the same shape stay."""
        self._grid_is_known = self._grid_is_known or "grid" in keys
        config = validate(MaskGitConfig, {**self.model.config.model_dump(mode="json"), **keys})
        if config != self.model.config:
            model = self._build(config)
            take_over(self.model, model)
            self.model = model

    def set_context_dim(self, dim: int) -> None:
        """Replace the projection of text embeddings by one of another dimension."""
        assert self.project is not None
        project = EmbeddingProjection(dim, self.dim)
        take_over(self.project, project)
        self.project = project

    def conditioning(
        self, texts: list[str] | None, text_embeds: Tensor | None, keep: Tensor | None = None
    ) -> dict[str, Tensor]:
        if self.project is None:
            return {}
        return text_conditioning(self.model, self.project, texts, text_embeds, keep)

    def hidden(
        self,
        x: Tensor,
        cond_drop_prob: float,
        context: Tensor | None,
        text_mask: Tensor | None,
        video_mask: Tensor | None,
        video_patch_shape: tuple[int, int, int] | None,
    ) -> Tensor:
        """Hidden vectors (batch, codes, dim) of codes (batch, frames, rows, columns), or flat with their shape."""
        shape = tuple(x.shape[1:]) if x.ndim == 4 else video_patch_shape
        if shape is None:
            raise UsageError(f"{type(self).__name__}: pass codes (batch, frames, rows, columns), or video_patch_shape")
        if math.prod(shape) > self.max_seq_len:
            raise UsageError(f"{type(self).__name__}: {math.prod(shape)} codes exceed max_seq_len={self.max_seq_len}")
        if not self._grid_is_known:
            self.adapt(grid=[self.max_seq_len // (shape[1] * shape[2]), *shape[1:]])
        conditioning: dict[str, Tensor] = {}
        if context is not None and self.project is not None:
            keep = None if not cond_drop_prob else self.new_rng(len(x)).uniform("keep text") >= cond_drop_prob
            context = context if text_mask is None else context * text_mask[..., None].to(context)
            conditioning = self.project.conditioning(self.model, context, keep)
        elif self.project is not None:
            conditioning = self.model.texts([""] * len(x), torch.zeros(len(x), dtype=torch.bool))
        if video_mask is not None and not video_mask.all():
            conditioning["valid_mask"] = video_mask.to(self.device)
        return self.model.hidden(x.flatten(1).to(self.device), conditioning)

    def forward_with_cond_scale(self, *args: Any, cond_scale: float = 3, **kwargs: Any) -> Tensor:
        """Logits with classifier-free guidance."""
        logits: Tensor = self(*args, cond_drop_prob=0.0, **kwargs)
        if cond_scale == 1:
            return logits
        null_logits: Tensor = self(*args, cond_drop_prob=1.0, **kwargs)
        return null_logits + (logits - null_logits) * cond_scale


class MaskGit(_VideoTransformer):
    """A masked transformer over video codes. `Phenaki` sets its grid to that of the tokenizer."""

    def __init__(
        self,
        *,
        dim: int,
        num_tokens: int,
        max_seq_len: int,
        gradient_shrink_alpha: float = 0.1,
        heads: int = 8,
        dim_head: int = 64,
        unconditional: bool = False,
        attn_dropout: float = 0.0,
        ff_dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dim=dim,
            num_tokens=num_tokens,
            max_seq_len=max_seq_len,
            heads=heads,
            dim_head=dim_head,
            conditional=not unconditional,
            dropout=one_dropout("MaskGit", attn_dropout, ff_dropout),
            **kwargs,
        )
        # Embeddings start small enough to need no shrinking of their gradients.
        if gradient_shrink_alpha not in (0.1, 1.0):
            raise UsageError(
                f"MaskGit: gradient_shrink_alpha={gradient_shrink_alpha} is refused: gradients of embeddings are not "
                "shrunk; leave it out"
            )
        self.unconditional = unconditional

    def _build(self, config: MaskGitConfig) -> OwnMaskGit:
        return OwnMaskGit(config)

    def forward(
        self,
        x: Tensor,
        cond_drop_prob: float = 0.0,
        text_mask: Tensor | None = None,
        video_mask: Tensor | None = None,
        video_patch_shape: tuple[int, int, int] | None = None,
        return_embeds: bool = False,
        context: Tensor | None = None,
    ) -> Tensor:
        """Logits (batch, codes, num_tokens) of codes; `context` (batch, words, dim_context) are text embeddings."""
        embeds = self.hidden(x, cond_drop_prob, context, text_mask, video_mask, video_patch_shape)
        assert isinstance(self.model, OwnMaskGit)
        logits: Tensor = embeds if return_embeds else self.model.to_logits(embeds)
        return logits


class TokenCritic(_VideoTransformer):
    """Scores codes: the logit that a code is not the original one. `has_cross_attn` conditions it on texts."""

    def __init__(
        self,
        *,
        dim: int,
        num_tokens: int,
        max_seq_len: int,
        has_cross_attn: bool = False,
        attn_dropout: float = 0.0,
        ff_dropout: float = 0.0,
        heads: int = 8,
        dim_head: int = 64,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dim=dim,
            num_tokens=num_tokens,
            max_seq_len=max_seq_len,
            heads=heads,
            dim_head=dim_head,
            conditional=has_cross_attn,
            dropout=one_dropout("TokenCritic", attn_dropout, ff_dropout),
            **kwargs,
        )
        self.has_cross_attn = has_cross_attn

    def _build(self, config: MaskGitConfig) -> OwnTokenCritic:
        return OwnTokenCritic(config)

    def forward(
        self,
        x: Tensor,
        text_mask: Tensor | None = None,
        cond_drop_prob: float | None = None,
        context: Tensor | None = None,
        video_mask: Tensor | None = None,
        video_patch_shape: tuple[int, int, int] | None = None,
    ) -> Tensor:
        """Logits (batch, codes)."""
        embeds = self.hidden(x, cond_drop_prob or 0.0, context, text_mask, video_mask, video_patch_shape)
        assert isinstance(self.model, OwnTokenCritic)
        scores: Tensor = self.model.to_score(embeds)
        return scores[..., 0]


def one_dropout(owner: str, attn_dropout: float, ff_dropout: float) -> float:
    """quintet drops the output of every residual branch with one probability."""
    if attn_dropout != ff_dropout:
        raise UsageError(f"{owner}: attn_dropout={attn_dropout} and ff_dropout={ff_dropout} differ; set them equal")
    return float(attn_dropout)
