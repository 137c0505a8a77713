"""Owns `MaskGit`, a masked transformer over a grid of tokens (2-D for pictures, 3-D for video), and `TokenCritic`.

Which tokens are masked, what is minimised and how tokens are decoded are not here: see `generate/masked.py` and the
families' recipes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quintet.config import validate
from quintet.errors import UsageError
from quintet.nn.maskgit_config import MaskGitConfig
from quintet.nn.pretrained import Pretrained
from quintet.nn.text import ByteTextEncoder, encode_bytes
from quintet.nn.transformer import LearnedPositions, Transformer

Conditioning = Mapping[str, Tensor]
"""What a text becomes, batch first: `text`, its bytes as symbols, and `text_mask`."""


class _Tokens(nn.Module):
    """What generator and critic share: tokens and text into vectors on a grid."""

    def __init__(self, config: MaskGitConfig) -> None:
        super().__init__()
        if config.grid is None or config.num_codes is None:
            raise UsageError("model.grid and model.num_codes are needed where no tokenizer gives them")
        self.config = config
        self.grid = config.grid
        self.mask_id = config.num_codes
        self.embedding = nn.Embedding(config.num_codes + 1, config.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.text_encoder: ByteTextEncoder | None = None
        if config.text == "bytes":
            self.text_encoder = ByteTextEncoder(
                config.text_dim, config.text_depth, config.text_heads, config.text_length
            )
        self.transformer = Transformer(
            config.dim,
            config.depth,
            config.heads,
            config.dim // config.heads,
            context_dim=None if config.text == "none" else config.text_dim,
            dropout=config.dropout,
            positions=LearnedPositions(config.grid, config.dim),
        )

    @property
    def length(self) -> int:
        return math.prod(self.grid)

    def texts(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """Texts as conditioning; where `keep` is False the text is dropped, which is not the same as an empty one."""
        if self.text_encoder is None:
            return {}
        ids, mask, _ = encode_bytes(texts, self.config.text_length)
        if keep is not None:
            mask = mask & keep[:, None]
        device = self.embedding.weight.device
        return {"text": ids.to(device), "text_mask": mask.to(device)}

    def hidden(self, tokens: Tensor, conditioning: Conditioning, extra: Tensor | None = None) -> Tensor:
        x = self.embedding(tokens)
        if extra is not None:
            x = x + extra
        context, mask = self._context(conditioning)
        made: Tensor = self.transformer(x, context=context, context_mask=mask)
        return made

    def _context(self, conditioning: Conditioning) -> tuple[Tensor | None, Tensor | None]:
        if "text" not in conditioning:
            return None, None
        assert self.text_encoder is not None, "this model takes no text"
        vectors, mask = self.text_encoder(conditioning["text"], conditioning["text_mask"])
        return vectors, mask


class MaskGit(Pretrained, _Tokens):
    """Tokens with some of them masked, and a text, to the logits of the codes.

    Keyword arguments are the keys of `model.*`; see `MaskGitConfig`.
    """

    def __init__(self, config: MaskGitConfig | None = None, **keywords: Any) -> None:
        super().__init__(config or validate(MaskGitConfig, keywords))
        assert self.config.num_codes is not None
        self.to_logits = nn.Linear(self.config.dim, self.config.num_codes)
        self.from_previous = (
            nn.Linear(self.config.num_codes, self.config.dim, bias=False) if self.config.self_conditioning else None
        )
        if self.from_previous is not None:
            # A model starts by not listening to itself.
            nn.init.zeros_(self.from_previous.weight)

    def forward(
        self,
        tokens: Tensor,
        conditioning: Conditioning,
        where: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """Logits (batch, tokens, codes); with `where` (batch, tokens) of those places alone, (places, codes).

        `previous` are the logits of an earlier pass over the same tokens, for self-conditioning.
        """
        extra = None
        if self.from_previous is not None:
            if previous is None:
                previous = torch.zeros(*tokens.shape, self.mask_id, device=tokens.device, dtype=self._dtype)
            extra = self.from_previous(previous.detach().softmax(-1).to(self._dtype))
        hidden = self.hidden(tokens, conditioning, extra)
        logits: Tensor = self.to_logits(hidden if where is None else hidden[where])
        return logits

    @property
    def _dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype


class TokenCritic(Pretrained, _Tokens):
    """Tokens and a text to the logit of each token not being the original one (Lezama et al. 2022, 2209.04439)."""

    def __init__(self, config: MaskGitConfig | None = None, **keywords: Any) -> None:
        super().__init__(config or validate(MaskGitConfig, keywords))
        self.to_score = nn.Linear(self.config.dim, 1)

    def forward(self, tokens: Tensor, conditioning: Conditioning) -> Tensor:
        scores: Tensor = self.to_score(self.hidden(tokens, conditioning))
        return scores[..., 0]
