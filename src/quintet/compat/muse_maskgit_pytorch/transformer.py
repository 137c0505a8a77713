"""`Transformer`, `MaskGitTransformer` and `TokenCritic` of muse-maskgit-pytorch: quintet's masked transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.compat.model import CompatModel, notify, refuse_unknown, refuse_unless
from quintet.compat.text import DEFAULT_T5_NAME, EmbeddingProjection, take_over, text_conditioning, text_source
from quintet.config import validate
from quintet.config.masked import MaskGitConfig
from quintet.errors import UsageError
from quintet.nn.conditioning import FrozenText
from quintet.nn.maskgit import MaskGit as OwnMaskGit
from quintet.nn.maskgit import TokenCritic as OwnTokenCritic

TEXT_LENGTH = 256
"""Tokens of a T5, as in the original, or bytes of a text."""


class Transformer(CompatModel):
    """A transformer over `seq_len` image tokens, conditioned on texts.

    Attention heads have the dimension `dim / heads`. Without labels the result is logits (batch, tokens, dim_out).
    """

    def __init__(
        self,
        *,
        num_tokens: int,
        dim: int,
        seq_len: int,
        dim_out: int | None = None,
        t5_name: str = DEFAULT_T5_NAME,
        self_cond: bool = False,
        add_mask_id: bool = False,
        depth: int = 0,
        dim_head: int = 64,
        heads: int = 8,
        ff_mult: float = 4,
        flash: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        refuse_unknown(name, kwargs)
        if not depth:
            raise UsageError(f"{name} needs depth, the number of blocks")
        refuse_unless(name, "dim_out", dim_out, (None, num_tokens, 1), "outputs are logits of the tokens, or one score")
        refuse_unless(name, "ff_mult", float(ff_mult), (4.0,), "feed-forward layers have a fixed width; leave it out")
        source = text_source(t5_name)
        notices = list(source.notices)
        if dim_head * heads != dim:
            notices.append(f"attention heads have the dimension dim / heads = {dim / heads:g}, not dim_head={dim_head}")
        self.dim, self.num_tokens, self.seq_len = dim, num_tokens, seq_len
        self.dim_out = num_tokens if dim_out is None else dim_out
        self.self_cond = self_cond
        self.mask_id = num_tokens if add_mask_id else None
        side = math.isqrt(seq_len)
        config = validate(
            MaskGitConfig,
            {
                "grid": [side, side] if side * side == seq_len else [seq_len, 1],
                "num_codes": num_tokens,
                "dim": dim,
                "depth": depth,
                "heads": heads,
                "self_conditioning": self_cond,
                "text": source.text,
                "text_dim": dim,
                "text_heads": heads,
                "text_length": TEXT_LENGTH,
            },
        )
        self.model = self._build(config)
        self.text_embed_proj = EmbeddingProjection(source.embed_dim, dim)
        notify(name, *notices)

    def _build(self, config: MaskGitConfig) -> OwnMaskGit | OwnTokenCritic:
        return OwnTokenCritic(config) if self.dim_out == 1 else OwnMaskGit(config)

    def adapt(self, **keys: Any) -> None:
        """Change keys of the model that only the owner of this transformer knows, such as the grid; weights stay."""
        config = validate(MaskGitConfig, {**self.model.config.model_dump(mode="json"), **keys})
        if config != self.model.config:
            model = self._build(config)
            take_over(self.model, model)
            self.model = model

    def encode_text(self, texts: str | Sequence[str]) -> Tensor:
        """Embeddings (batch, tokens, dim) of a frozen T5, 0 at padding."""
        encoder = self.model.text_encoder
        if not isinstance(encoder, FrozenText):
            raise UsageError("the byte-level text encoder is trained with the model: pass texts instead of text_embeds")
        prepared = encoder.prepare([texts] if isinstance(texts, str) else list(texts))
        vectors: Tensor = prepared["text"].masked_fill(~prepared["text_mask"][..., None], 0)
        return vectors.to(self.device)

    def conditioning(
        self,
        texts: Sequence[str] | None,
        text_embeds: Tensor | None,
        keep: Tensor | None = None,
        conditioning_token_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Conditioning of quintet's model; texts are dropped where `keep` (batch,) is False."""
        if (texts is None) == (text_embeds is None):
            raise UsageError(f"{type(self).__name__}: pass either texts or text_embeds")
        chosen = None if texts is None else list(texts)
        conditioning = text_conditioning(self.model, self.text_embed_proj, chosen, text_embeds, keep)
        if conditioning_token_ids is not None:
            ids = conditioning_token_ids.flatten(1).to(self.device)
            if self.model.low is not None:
                return {**conditioning, "low": ids}
            vectors = self.model.embedding(ids)
            mask = torch.ones(ids.shape, dtype=torch.bool, device=self.device)
            parts = [
                (conditioning[name], conditioning[f"{name}_mask"]) for name in ("context",) if name in conditioning
            ]
            conditioning["context"] = torch.cat([*(part for part, _ in parts), vectors], 1)
            conditioning["context_mask"] = torch.cat([*(part for _, part in parts), mask], 1)
        return conditioning

    def forward_with_cond_scale(
        self, *args: Any, cond_scale: float = 3.0, return_embed: bool = False, **kwargs: Any
    ) -> Any:
        """Logits with classifier-free guidance; with `return_embed` also the embeddings with text."""
        logits, embed = self(*args, return_embed=True, cond_drop_prob=0.0, **kwargs)
        if cond_scale != 1:
            null_logits = self(*args, cond_drop_prob=1.0, **kwargs)
            logits = null_logits + (logits - null_logits) * cond_scale
        return (logits, embed) if return_embed else logits

    def forward_with_neg_prompt(
        self,
        *args: Any,
        text_embed: Tensor,
        neg_text_embed: Tensor,
        cond_scale: float = 3.0,
        return_embed: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Logits that guidance steers away from a negative prompt."""
        negative = self(*args, text_embeds=neg_text_embed, cond_drop_prob=0.0, **kwargs)
        positive, embed = self(*args, text_embeds=text_embed, return_embed=True, cond_drop_prob=0.0, **kwargs)
        logits = negative + (positive - negative) * cond_scale
        return (logits, embed) if return_embed else logits

    def forward(
        self,
        x: Tensor,
        return_embed: bool = False,
        return_logits: bool = False,
        labels: Tensor | None = None,
        ignore_index: int = 0,
        self_cond_embed: Tensor | None = None,
        cond_drop_prob: float = 0.0,
        conditioning_token_ids: Tensor | None = None,
        texts: Sequence[str] | None = None,
        text_embeds: Tensor | None = None,
    ) -> Any:
        """Logits of tokens (batch, tokens); the loss if there are `labels`, with `return_logits` both."""
        if self_cond_embed is not None:
            raise UsageError("self_cond_embed is refused: self-conditioning feeds back predictions; MaskGit does that")
        if x.shape[1] > self.model.length:
            raise UsageError(f"{x.shape[1]} tokens exceed seq_len={self.seq_len}")
        keep = None if cond_drop_prob == 0 else self.new_rng(len(x)).uniform("keep text") >= cond_drop_prob
        conditioning = self.conditioning(texts, text_embeds, keep, conditioning_token_ids)
        embed = self.model.hidden(x.to(self.device), conditioning)
        head = self.model.to_score if isinstance(self.model, OwnTokenCritic) else self.model.to_logits
        logits: Tensor = head(embed)
        if return_embed:
            return logits, embed
        if labels is None:
            return logits
        if self.dim_out == 1:
            loss = F.binary_cross_entropy_with_logits(logits[..., 0], labels.to(logits))
        else:
            loss = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=ignore_index)
        return (loss, logits) if return_logits else loss


class MaskGitTransformer(Transformer):
    """A `Transformer` with a mask token, for `MaskGit`."""

    def __init__(self, **kwargs: Any) -> None:
        if "add_mask_id" in kwargs:
            raise UsageError("MaskGitTransformer always has a mask token; leave add_mask_id out")
        super().__init__(add_mask_id=True, **kwargs)


class TokenCritic(Transformer):
    """A `Transformer` with one logit per token: whether it is not the original one."""

    def __init__(self, **kwargs: Any) -> None:
        if "dim_out" in kwargs:
            raise UsageError("TokenCritic has one output per token; leave dim_out out")
        super().__init__(dim_out=1, **kwargs)
