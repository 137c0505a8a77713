"""Owns `MaskGit`, a masked transformer over a grid of tokens (2-D for pictures, 3-D for video), and `TokenCritic`.

Which tokens are masked, what is minimised and how tokens are decoded are not here: see `sampling/masked.py` and the
families' recipes.
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
from quintet.nn.codebook import init_from_codebook
from quintet.nn.conditioning import (
    Conditioning,
    FrozenText,
    LowResolution,
    PrecomputedText,
    TextConditioning,
    make_text_conditioning,
)
from quintet.nn.positions import EMBEDDING_SCALE, LearnedPositions, Rotary
from quintet.nn.text import mask_dropped
from quintet.nn.transformer import Transformer

FEW_SHAPES = 64
"""Tokens asked for alone come in multiples of so many."""


class _Read(NamedTuple):
    """Texts and low-resolution codes as the transformer takes them: a context and its mask, and what covers tokens."""

    context: Tensor | CrossKV | None
    mask: Tensor | None
    covering: Tensor | None


class _Tokens(nn.Module):
    """What generator and critic share: tokens, a text and the codes of a smaller picture into vectors on a grid.

    Rows that end early come with the conditioning `there`, (batch, tokens): where it is False nothing is seen.
    """

    def __init__(self, config: MaskGitConfig) -> None:
        super().__init__()
        if config.grid is None or config.num_codes is None:
            raise UsageError("model.grid and model.num_codes are needed where no tokenizer gives them")
        self.config = config
        self.grid = config.grid
        self.mask_id = config.num_codes
        self.embedding = nn.Embedding(config.num_codes + 1, config.dim)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_SCALE)
        self.text_encoder: TextConditioning | None = make_text_conditioning(config)
        self.merging = CodePatches(config.code_patch_size, config.dim) if config.code_patch_size is not None else None
        seen = config.grid if self.merging is None else self.merging.merged(config.grid)
        self.transformer = Transformer(
            config.dim,
            config.depth,
            config.heads,
            config.dim // config.heads,
            context_dim=None if config.text == "none" and config.low_res_grid is None else config.text_dim,
            dropout=config.dropout,
            positions=LearnedPositions(seen, config.dim),
            rotary=Rotary(seen, config.dim // config.heads, theta=100.0) if config.rotary else None,
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
        """Texts as conditioning; where `keep` is False the text is dropped, which is not the same as an empty one."""
        if self.text_encoder is None:
            return {}
        device = self.embedding.weight.device
        return {name: made.to(device) for name, made in self.text_encoder.prepare(texts, keep).items()}

    def text_vectors(self, vectors: Tensor, mask: Tensor, keep: Tensor | None = None) -> dict[str, Tensor]:
        """The same of texts that somebody else has embedded, (batch, words, width), and which words there are."""
        encoder = self.text_encoder
        if not isinstance(encoder, FrozenText | PrecomputedText):
            raise UsageError(f"text embeddings are for model.text=vectors, not for model.text={self.config.text}")
        if vectors.shape[-1] != encoder.project.in_features:
            raise UsageError(
                f"text embeddings {vectors.shape[-1]} wide are not those of this model, which takes "
                f"{encoder.project.in_features}"
            )
        device = self.embedding.weight.device
        return {"text": vectors.to(device), "text_mask": mask_dropped(mask, keep).to(device)}

    def cache_texts(self, folder: Path | None) -> None:
        """Where a frozen text encoder's embeddings are kept, if not in the user's cache folder; None: nowhere."""
        if isinstance(self.text_encoder, FrozenText):
            self.text_encoder.encoder.root = folder

    @torch.no_grad()
    def precompute_conditioning(self, conditioning: Conditioning) -> dict[str, Tensor]:
        """The conditioning for many passes: texts and low-resolution codes are encoded here, and not in each of them.

        Goes through `__call__`: FSDP gathers parameters in forward hooks.
        """
        made: dict[str, Tensor] = self(None, conditioning, once=True)
        return made

    def _precompute_conditioning(self, conditioning: Conditioning) -> dict[str, Tensor]:
        context, mask, covering = self._read(conditioning)
        if context is None or isinstance(context, CrossKV):
            return dict(conditioning)
        assert mask is not None
        seen = self.transformer.precompute_cross_kv(context, mask)
        made = {"keys": seen.keys, "values": seen.values, "keys_mask": seen.mask}
        made.update({"covering": covering} if covering is not None else {})
        made.update({"valid_mask": conditioning["valid_mask"]} if "valid_mask" in conditioning else {})
        return made

    def hidden(
        self,
        tokens: Tensor,
        conditioning: Conditioning,
        extra: Tensor | None = None,
        where: Tensor | None = None,
    ) -> Tensor:
        """The last vectors of the transformer; `extra` is added to its input.

        With `where`, numbers of tokens counted over the whole batch, of those alone.
        """
        x = self.embedding(tokens)
        if extra is not None:
            x = x + extra
        context, mask, covering = self._read(conditioning)
        if covering is not None:
            x = x + covering
        there = conditioning.get("valid_mask")
        if there is None and self.merging is None:
            alone: Tensor = self.transformer(x, None, context, mask, grid=self._shown(x), where=where)
            return alone
        # On a GPU it would have to be read from there which rows are how long.
        if there is None or there.device.type != "cpu":
            made = self._through(x, there, context, mask)
        else:
            made = self._through_by_length(x, there, context, mask)
        return made if where is None else made.flatten(0, 1).index_select(0, where)

    def _read(self, conditioning: Conditioning) -> _Read:
        if "keys" in conditioning:
            seen = CrossKV(conditioning["keys"], conditioning["values"], conditioning["keys_mask"])
            return _Read(seen, None, conditioning.get("covering"))
        covering: Tensor | None = None
        contexts: list[Tensor] = []
        masks: list[Tensor] = []
        if "text" in conditioning:
            assert self.text_encoder is not None, "this model takes no text"
            vectors, mask = self.text_encoder(conditioning["text"], conditioning["text_mask"])
            contexts.append(vectors)
            masks.append(mask)
        if self._has_low(conditioning):
            assert self.low is not None
            vectors, covering = self.low(conditioning["low"])
            contexts.append(vectors)
            masks.append(torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device))
        return _Read(_joined(contexts), _joined(masks), covering)

    def _through(
        self, x: Tensor, there: Tensor | None, context: Tensor | CrossKV | None, context_mask: Tensor | None
    ) -> Tensor:
        shown = self._shown(x)
        if self.merging is None:
            alone: Tensor = self.transformer(x, there, context, context_mask, grid=shown)
            return alone
        groups = None if there is None else self.merging.group(there[..., None], shown).any(-1)
        made = self.transformer(self.merging(x, shown), groups, context, context_mask, grid=self.merging.merged(shown))
        return self.merging.apart(made, shown)

    def _through_by_length(
        self, x: Tensor, there: Tensor, context: Tensor | CrossKV | None, context_mask: Tensor | None
    ) -> Tensor:
        """The same, rows of one length together and cut there: what a row lacks costs nothing."""
        slice_of_it = math.prod(self.grid[1:])
        last = (there * torch.arange(there.shape[1])).amax(1)
        ends = (last // slice_of_it + 1) * slice_of_it
        parts, numbers = [], []
        for end in sorted({*ends.tolist()}):
            rows = (ends == end).nonzero()[:, 0]
            seen = there.index_select(0, rows)[:, :end]
            own_context = context.select(rows) if isinstance(context, CrossKV) else _of_rows(context, rows)
            own = x.index_select(0, rows)[:, :end]
            made = self._through(own, None if seen.all() else seen, own_context, _of_rows(context_mask, rows))
            parts.append(F.pad(made, (0, 0, 0, x.shape[1] - end)))
            numbers.append(rows)
        return torch.cat(parts).index_select(0, torch.cat(numbers).argsort())

    def _shown(self, x: Tensor) -> tuple[int, ...]:
        """How tokens lie: of a grid its beginning along the first axis will do, as of a video that is shorter."""
        slice_of_it = math.prod(self.grid[1:])
        return (x.shape[1] // slice_of_it, *self.grid[1:])

    def _has_low(self, conditioning: Conditioning) -> bool:
        if self.low is None and "low" in conditioning:
            raise UsageError("low-resolution codes are for a super-resolution model (model.low_res_grid)")
        if self.low is not None and "low" not in conditioning:
            raise UsageError("a super-resolution model (model.low_res_grid) needs the low-resolution codes, as `low`")
        return self.low is not None


class CodePatches(nn.Module):
    """Neighbouring codes as one token: their vectors side by side through one layer, and through another one apart.

    What is masked, told and guessed are still single codes.
    """

    def __init__(self, merge: Sequence[int], dim: int) -> None:
        super().__init__()
        self.merge = tuple(merge)
        count = math.prod(self.merge)
        self.together = nn.Linear(count * dim, dim, bias=False)
        self.alone = nn.Linear(dim, count * dim, bias=False)
        for layer in (self.together, self.alone):
            # Tokens start at the scale of single codes, and codes at that of tokens.
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def merged(self, grid: Sequence[int]) -> tuple[int, ...]:
        return tuple(size // step for size, step in zip(grid, self.merge, strict=True))

    def forward(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        """(batch, codes, dim) to (batch, tokens, dim)"""
        out: Tensor = self.together(self.group(x, grid))
        return out

    def apart(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        """(batch, tokens, dim) to (batch, codes, dim)"""
        axes, codes = len(self.merge), self.alone(x)
        inside = codes.view(len(x), *self.merged(grid), *self.merge, -1)
        # The places inside of tokens back to their axes.
        order = [axis for number in range(axes) for axis in (1 + number, 1 + axes + number)]
        out: Tensor = inside.permute(0, *order, 1 + 2 * axes).reshape(len(x), math.prod(grid), -1)
        return out

    def group(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        """(batch, codes, width) to (batch, tokens, width of all its codes)"""
        axes = len(self.merge)
        sides = [side for pair in zip(self.merged(grid), self.merge, strict=True) for side in pair]
        apart = x.view(len(x), *sides, x.shape[-1])
        order = [*range(1, 2 * axes, 2), *range(2, 2 * axes + 1, 2)]
        return apart.permute(0, *order, 1 + 2 * axes).reshape(len(x), math.prod(self.merged(grid)), -1)


class MaskGit(Pretrained, _Tokens):
    """Tokens with some of them masked, and a text, to the logits of the codes.

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
            # A model starts by not listening to itself.
            nn.init.zeros_(self.from_previous.weight)
        self.to_score = nn.Linear(self.config.dim, 1) if self.config.self_critic else None
        if self.to_score is not None:
            # A critic starts without an opinion, and does not disturb the generator.
            nn.init.zeros_(self.to_score.weight)
            nn.init.zeros_(self.to_score.bias)

    def forward(
        self,
        tokens: Tensor | None,
        conditioning: Conditioning,
        where: Tensor | None = None,
        previous: Tensor | None = None,
        scores: bool = False,
        once: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """Logits (batch, tokens, codes); with `where` (batch, tokens) of those places alone, (places, codes).

        `previous` are the logits of an earlier pass over the same tokens, for self-conditioning. With `scores` the
        self-critic's logits of each token not being the original one come instead, (batch, tokens) or (places,); by
        this method, because processes that train together see what goes through a module's call alone. With `once` no
        tokens are needed, and the result is that of `precompute_conditioning`.
        """
        if once:
            return self._precompute_conditioning(conditioning)
        assert tokens is not None
        extra = None
        if self.from_previous is not None:
            if previous is None:
                previous = torch.zeros(*tokens.shape, self.mask_id, device=tokens.device, dtype=self._dtype)
            extra = self.from_previous(previous.detach().softmax(-1).to(self._dtype))
        head = self.to_score if scores else self.to_logits
        if head is None:
            raise UsageError("this model has no critic of its own (model.self_critic)")
        if where is None:
            made: Tensor = head(self.hidden(tokens, conditioning, extra))
        else:
            asked = where.flatten().nonzero()[:, 0]
            # A CPU makes a kernel for every shape of a product in bf16, and keeps it: some more are asked for in vain.
            rounded = F.pad(asked, (0, -len(asked) % FEW_SHAPES))
            made = head(self.hidden(tokens, conditioning, extra, rounded))[: len(asked)]
        return made[..., 0] if scores else made

    def score(self, tokens: Tensor, conditioning: Conditioning) -> Tensor:
        """The self-critic's opinion, as a `TokenCritic` gives it."""
        scores: Tensor = self(tokens, conditioning, scores=True)
        return scores

    @torch.no_grad()
    def init_from_codebook(self, codebook: Tensor) -> None:
        """Let similar codes start alike: `codebook` is (codes, code_dim), the vectors of the tokenizer's codes."""
        if codebook.dim() != 2 or len(codebook) != self.mask_id:
            raise UsageError(f"a codebook of shape {tuple(codebook.shape)} is not that of {self.mask_id} codes")
        for weight in (self.embedding.weight[: self.mask_id], self.to_logits.weight):
            init_from_codebook(weight, codebook)

    @property
    def _dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype


class TokenCritic(Pretrained, _Tokens):
    """Tokens and a text to the logit of each token not being the original one (Lezama et al. 2022, 2209.04439)."""

    CONFIG = MaskGitConfig

    def __init__(self, config: MaskGitConfig | None = None, **keywords: Any) -> None:
        super().__init__(config or validate(MaskGitConfig, keywords))
        self.to_score = nn.Linear(self.config.dim, 1)

    def forward(
        self, tokens: Tensor | None, conditioning: Conditioning, once: bool = False
    ) -> Tensor | dict[str, Tensor]:
        """With `once` no tokens are needed, and the result is that of `precompute_conditioning`."""
        if once:
            return self._precompute_conditioning(conditioning)
        assert tokens is not None
        scores: Tensor = self.to_score(self.hidden(tokens, conditioning))
        return scores[..., 0]


def _of_rows(tensor: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if tensor is None else tensor.index_select(0, rows)


def _joined(parts: list[Tensor]) -> Tensor | None:
    return torch.cat(parts, dim=1) if parts else None
