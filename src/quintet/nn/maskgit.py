"""`MaskGit`, a masked transformer over a grid of tokens (2-D for images, 3-D for video), and `TokenCritic`.

Masking and decoding are in `sampling/masked.py`, the loss in `training/maskgit_task.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.config.masked import MaskGitConfig
from quintet.errors import UsageError
from quintet.nn.attention import CrossKV
from quintet.nn.chunked_loss import ChunkedLoss, PositionLosses
from quintet.nn.codebook import init_from_codebook
from quintet.nn.conditioning import (
    Conditioning,
    FrozenText,
    LowResolution,
    TextConditioning,
    embeddings_as_text,
    make_text_conditioning,
)
from quintet.nn.positions import EMBEDDING_SCALE, LearnedPositions, Rotary
from quintet.nn.transformer import Transformer

POSITIONS_MULTIPLE = 64
"""The number of requested positions is padded to a multiple of this, to limit the number of shapes."""


class _Encoded(NamedTuple):
    """Encoded conditioning: a context with its mask, and low-resolution embeddings to add to the tokens."""

    context: Tensor | CrossKV | None
    mask: Tensor | None
    low_res: Tensor | None


class _TokenTransformer(nn.Module):
    """Base of generator and critic: tokens, texts and low-resolution codes to hidden vectors on a grid.

    Rows that end early have the conditioning `valid_mask` (batch, tokens); tokens where it is False are ignored.
    """

    def __init__(self, config: MaskGitConfig) -> None:
        super().__init__()
        if config.grid is None or config.num_codes is None:
            raise UsageError("model.grid and model.num_codes are required if there is no tokenizer to take them from")
        self.config = config
        self.grid = config.grid
        self.mask_id = config.num_codes
        self.embedding = nn.Embedding(config.num_codes + 1, config.dim)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_SCALE)
        self.text_encoder: TextConditioning | None = make_text_conditioning(config)
        if config.code_patch_size == "auto":
            raise UsageError("model.code_patch_size=auto is chosen by a run for its tokenizer; give numbers, or null")
        self.merging = CodePatches(config.code_patch_size, config.dim) if config.code_patch_size is not None else None
        position_grid = config.grid if self.merging is None else self.merging.patch_grid(config.grid)
        self.transformer = Transformer(
            config.dim,
            config.depth,
            config.heads,
            config.dim // config.heads,
            context_dim=None if config.text == "none" and config.low_res_grid is None else config.text_dim,
            dropout=config.dropout,
            positions=LearnedPositions(position_grid, config.dim),
            rotary=Rotary(position_grid, config.dim // config.heads, theta=100.0) if config.rotary else None,
        )
        self.low: LowResolution | None = None
        if config.low_res_grid is not None and config.low_res_num_codes is not None:
            self.low = LowResolution(
                config.low_res_grid,
                config.low_res_num_codes,
                config.grid,
                config.dim,
                config.text_dim,
                config.text_heads,
            )

    @property
    def length(self) -> int:
        return math.prod(self.grid)

    def texts(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """Conditioning tensors of texts; where `keep` is False the text is dropped, unlike an empty text."""
        if self.text_encoder is None:
            return {}
        device = self.embedding.weight.device
        return {name: tensor.to(device) for name, tensor in self.text_encoder.prepare(texts, keep).items()}

    def text_vectors(self, vectors: Tensor, mask: Tensor, keep: Tensor | None = None) -> dict[str, Tensor]:
        """The same for precomputed text embeddings (batch, tokens, vector_dim) with `mask` (batch, tokens)."""
        device = self.embedding.weight.device
        prepared = embeddings_as_text(self.text_encoder, vectors, mask, keep)
        return {name: tensor.to(device) for name, tensor in prepared.items()}

    def cache_texts(self, folder: Path | None) -> None:
        """Set the cache folder for embeddings of a frozen text encoder; None disables the cache."""
        if isinstance(self.text_encoder, FrozenText):
            self.text_encoder.encoder.root = folder

    @torch.no_grad()
    def precompute_conditioning(self, conditioning: Conditioning) -> dict[str, Tensor]:
        """Encode texts and low-resolution codes once, for many forward passes.

        Goes through `__call__`: FSDP gathers parameters in forward hooks.
        """
        precomputed: dict[str, Tensor] = self(None, conditioning, precompute=True)
        return precomputed

    def _precompute_conditioning(self, conditioning: Conditioning) -> dict[str, Tensor]:
        context, mask, low_res = self._encode(conditioning)
        if context is None or isinstance(context, CrossKV):
            return dict(conditioning)
        assert mask is not None
        cross_kv = self.transformer.precompute_cross_kv(context, mask)
        precomputed = {"keys": cross_kv.keys, "values": cross_kv.values, "keys_mask": cross_kv.mask}
        precomputed.update({"low_res": low_res} if low_res is not None else {})
        precomputed.update({"valid_mask": conditioning["valid_mask"]} if "valid_mask" in conditioning else {})
        return precomputed

    def hidden(
        self,
        tokens: Tensor,
        conditioning: Conditioning,
        extra: Tensor | None = None,
        where: Tensor | None = None,
    ) -> Tensor:
        """Output of the transformer, (batch, tokens, dim); `extra` (batch, tokens, dim) is added to its input.

        With `where`, flat indices of tokens over the batch, only those: (indices, dim).
        """
        x = self.embedding(tokens)
        if extra is not None:
            x = x + extra
        context, mask, low_res = self._encode(conditioning)
        if low_res is not None:
            x = x + low_res
        valid_mask = conditioning.get("valid_mask")
        if valid_mask is None and self.merging is None:
            direct: Tensor = self.transformer(x, None, context, mask, grid=self._grid_of(x), where=where)
            return direct
        # On a GPU, grouping rows by length would need a synchronisation.
        if valid_mask is None or valid_mask.device.type != "cpu":
            hidden = self._transform(x, valid_mask, context, mask)
        else:
            hidden = self._transform_by_length(x, valid_mask, context, mask)
        return hidden if where is None else hidden.flatten(0, 1).index_select(0, where)

    def _encode(self, conditioning: Conditioning) -> _Encoded:
        if "keys" in conditioning:
            cross_kv = CrossKV(conditioning["keys"], conditioning["values"], conditioning["keys_mask"])
            return _Encoded(cross_kv, None, conditioning.get("low_res"))
        low_res: Tensor | None = None
        contexts: list[Tensor] = []
        masks: list[Tensor] = []
        if "text" in conditioning:
            assert self.text_encoder is not None, "this model takes no text"
            vectors, mask = self.text_encoder(conditioning["text"], conditioning["text_mask"])
            contexts.append(vectors)
            masks.append(mask)
        if "context" in conditioning:
            contexts.append(conditioning["context"])
            masks.append(conditioning["context_mask"])
        if self._has_low(conditioning):
            assert self.low is not None
            vectors, low_res = self.low(conditioning["low"])
            contexts.append(vectors)
            masks.append(torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device))
        return _Encoded(_concat(contexts), _concat(masks), low_res)

    def _transform(
        self, x: Tensor, valid_mask: Tensor | None, context: Tensor | CrossKV | None, context_mask: Tensor | None
    ) -> Tensor:
        """(batch, tokens, dim) through the transformer, in patches if `code_patch_size` is set."""
        grid = self._grid_of(x)
        if self.merging is None:
            direct: Tensor = self.transformer(x, valid_mask, context, context_mask, grid=grid)
            return direct
        patch_mask = None if valid_mask is None else self.merging.patchify(valid_mask[..., None], grid).any(-1)
        patches = self.transformer(
            self.merging(x, grid), patch_mask, context, context_mask, grid=self.merging.patch_grid(grid)
        )
        return self.merging.unpatchify(patches, grid)

    def _transform_by_length(
        self, x: Tensor, valid_mask: Tensor, context: Tensor | CrossKV | None, context_mask: Tensor | None
    ) -> Tensor:
        """The same, separately for rows of each length and truncated to it, so that padding is not computed."""
        slice_size = math.prod(self.grid[1:])
        last = (valid_mask * torch.arange(valid_mask.shape[1])).amax(1)
        ends = (last // slice_size + 1) * slice_size
        parts, indices = [], []
        for end in sorted({*ends.tolist()}):
            rows = (ends == end).nonzero()[:, 0]
            mask = valid_mask.index_select(0, rows)[:, :end]
            own_context = context.select(rows) if isinstance(context, CrossKV) else _of_rows(context, rows)
            own = x.index_select(0, rows)[:, :end]
            hidden = self._transform(own, None if mask.all() else mask, own_context, _of_rows(context_mask, rows))
            parts.append(F.pad(hidden, (0, 0, 0, x.shape[1] - end)))
            indices.append(rows)
        return torch.cat(parts).index_select(0, torch.cat(indices).argsort())

    def _grid_of(self, x: Tensor) -> tuple[int, ...]:
        """The grid of the tokens, which may be shorter than the model's along the first axis (a shorter video)."""
        slice_size = math.prod(self.grid[1:])
        return (x.shape[1] // slice_size, *self.grid[1:])

    def _has_low(self, conditioning: Conditioning) -> bool:
        if self.low is None and "low" in conditioning:
            raise UsageError("low-resolution codes need a super-resolution model (model.low_res_grid)")
        if self.low is not None and "low" not in conditioning:
            raise UsageError("a super-resolution model (model.low_res_grid) needs the low-resolution codes, as `low`")
        return self.low is not None


class CodePatches(nn.Module):
    """Groups neighbouring codes of a grid into patches of `patch_size`, one transformer position per patch.

    One linear layer maps the vectors of the codes of a patch to one vector, another one maps it back. Masks,
    conditioning and predictions are still per code.
    """

    def __init__(self, patch_size: Sequence[int], dim: int) -> None:
        super().__init__()
        self.patch_size = tuple(patch_size)
        count = math.prod(self.patch_size)
        self.together = nn.Linear(count * dim, dim, bias=False)
        self.alone = nn.Linear(dim, count * dim, bias=False)
        for layer in (self.together, self.alone):
            # Keeps the scale of vectors in both directions.
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def patch_grid(self, grid: Sequence[int]) -> tuple[int, ...]:
        """The number of patches along each axis of a grid of codes."""
        return tuple(size // step for size, step in zip(grid, self.patch_size, strict=True))

    def forward(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        """Vectors of codes (batch, codes, dim) to vectors of patches (batch, patches, dim)."""
        out: Tensor = self.together(self.patchify(x, grid))
        return out

    def unpatchify(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        """Vectors of patches (batch, patches, dim) to vectors of codes (batch, codes, dim)."""
        axes, codes = len(self.patch_size), self.alone(x)
        inside = codes.view(len(x), *self.patch_grid(grid), *self.patch_size, -1)
        # Move the axes inside patches next to the axes of the patch grid.
        order = [axis for number in range(axes) for axis in (1 + number, 1 + axes + number)]
        out: Tensor = inside.permute(0, *order, 1 + 2 * axes).reshape(len(x), math.prod(grid), -1)
        return out

    def patchify(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        """(batch, codes, width) to (batch, patches, codes per patch * width)."""
        axes = len(self.patch_size)
        sides = [side for pair in zip(self.patch_grid(grid), self.patch_size, strict=True) for side in pair]
        split = x.view(len(x), *sides, x.shape[-1])
        order = [*range(1, 2 * axes, 2), *range(2, 2 * axes + 1, 2)]
        return split.permute(0, *order, 1 + 2 * axes).reshape(len(x), math.prod(self.patch_grid(grid)), -1)


class MaskGit(Pretrained, _TokenTransformer):
    """Masked transformer: tokens, some of them masked, and conditioning to logits of the codes.

    Keyword arguments are the keys of `model.*`; see `MaskGitConfig`.
    """

    CONFIG = MaskGitConfig

    def __init__(self, config: MaskGitConfig | None = None, **keywords: Any) -> None:
        super().__init__(config or validate(MaskGitConfig, keywords))
        assert self.config.num_codes is not None
        self.to_logits = nn.Linear(self.config.dim, self.config.num_codes)
        self.from_previous = (
            nn.Linear(self.config.num_codes, self.config.dim, bias=False) if self.config.self_conditioning else None
        )
        if self.from_previous is not None:
            # Zero-initialised: self-conditioning has no effect at first.
            nn.init.zeros_(self.from_previous.weight)
        self.to_score = nn.Linear(self.config.dim, 1) if self.config.self_critic else None
        if self.to_score is not None:
            # Zero-initialised: the critic starts neutral and does not disturb the generator.
            nn.init.zeros_(self.to_score.weight)
            nn.init.zeros_(self.to_score.bias)

    def forward(
        self,
        tokens: Tensor | None,
        conditioning: Conditioning,
        where: Tensor | None = None,
        previous: Tensor | None = None,
        scores: bool = False,
        precompute: bool = False,
        loss: ChunkedLoss | None = None,
    ) -> Tensor | dict[str, Tensor] | PositionLosses:
        """Logits (batch, tokens, codes), or with `where` only those of some positions, (positions, codes).

        `where` is a bool mask (batch, tokens), or the flat indices (positions,) of its true values, with which a GPU is
        not waited for. `previous` (batch, tokens, codes) are the logits of the previous pass, for self-conditioning.
        With `scores`, the result is the self-critic's logit that a token is not the original, (batch, tokens) or
        (positions,). With `precompute`, `tokens` is ignored and the result is that of `precompute_conditioning`. With
        `loss`, the result are the losses at the positions `where`. All go through `forward`, because DDP and FSDP work
        in the hooks of `__call__`.
        """
        if precompute:
            return self._precompute_conditioning(conditioning)
        assert tokens is not None
        extra = None
        if self.from_previous is not None:
            if previous is None:
                previous = torch.zeros(*tokens.shape, self.mask_id, device=tokens.device, dtype=self._dtype)
            extra = self.from_previous(previous.detach().softmax(-1).to(self._dtype))
        head = self.to_score if scores else self.to_logits
        if head is None:
            raise UsageError("this model has no self-critic (model.self_critic=false)")
        if where is None:
            out: Tensor = head(self.hidden(tokens, conditioning, extra))
        else:
            indices = where.flatten().nonzero()[:, 0] if where.dtype == torch.bool else where
            # On a CPU in bf16, every new shape of a product compiles and caches a kernel, so the number is padded.
            padded = F.pad(indices, (0, -len(indices) % POSITIONS_MULTIPLE))
            hidden = self.hidden(tokens, conditioning, extra, padded)
            if loss is not None:
                losses: PositionLosses = loss(hidden, self.to_logits)
                return losses
            out = head(hidden)[: len(indices)]
        return out[..., 0] if scores else out

    def score(self, tokens: Tensor, conditioning: Conditioning) -> Tensor:
        """Scores of the self-critic, (batch, tokens), as of a `TokenCritic`."""
        scores: Tensor = self(tokens, conditioning, scores=True)
        return scores

    @torch.no_grad()
    def init_from_codebook(self, codebook: Tensor) -> None:
        """Initialise token embeddings and output weights from the codebook (codes, code_dim) of the tokenizer."""
        if codebook.dim() != 2 or len(codebook) != self.mask_id:
            raise UsageError(f"a codebook of shape {tuple(codebook.shape)} does not have {self.mask_id} codes")
        for weight in (self.embedding.weight[: self.mask_id], self.to_logits.weight):
            init_from_codebook(weight, codebook)

    @property
    def _dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype


class TokenCritic(Pretrained, _TokenTransformer):
    """Token critic: the logit that a token is not the original one (Lezama et al. 2022, 2209.04439)."""

    CONFIG = MaskGitConfig

    def __init__(self, config: MaskGitConfig | None = None, **keywords: Any) -> None:
        super().__init__(config or validate(MaskGitConfig, keywords))
        self.to_score = nn.Linear(self.config.dim, 1)

    def forward(
        self, tokens: Tensor | None, conditioning: Conditioning, precompute: bool = False
    ) -> Tensor | dict[str, Tensor]:
        """Scores (batch, tokens); with `precompute`, the result of `precompute_conditioning` (`tokens` is ignored)."""
        if precompute:
            return self._precompute_conditioning(conditioning)
        assert tokens is not None
        scores: Tensor = self.to_score(self.hidden(tokens, conditioning))
        return scores[..., 0]


def _of_rows(tensor: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if tensor is None else tensor.index_select(0, rows)


def _concat(parts: list[Tensor]) -> Tensor | None:
    return torch.cat(parts, dim=1) if parts else None
