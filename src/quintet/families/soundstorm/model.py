"""`SoundStorm`: codes of which some are hidden, and conditioning of the clip, to the logits of one level.

Codes are (batch, frames, levels), the coarsest level first. Which are hidden in training is in `masking.py`, how they
are filled in in `decoding.py`.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.soundstorm.conditioning import Conditioner, Conditioning
from quintet.families.soundstorm.config import SoundStormModelConfig
from quintet.nn.codebook import init_from_codebook
from quintet.nn.conformer import Conformer
from quintet.nn.positions import EMBEDDING_SCALE, LearnedPositions

OutputKind = Literal["logits", "scores", "vectors"]

MAX_FRAMES = 1500
"""Where nothing says how long clips are: half a minute of a usual codec."""


class ConformerWrapper(nn.Module):
    """Codes of all levels to one vector a frame: embeddings summed over levels, conditioning, and a conformer.

    Keyword arguments are the keys of `model.*`; see `SoundStormModelConfig`.
    """

    def __init__(self, config: SoundStormModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        config = config or validate(SoundStormModelConfig, keywords)
        if config.num_codes is None or config.num_quantizers is None:
            raise UsageError("model.num_codes and model.num_quantizers are needed where no tokenizer gives them")
        self.num_quantizers: int = config.num_quantizers
        self.mask_id: int = config.num_codes
        self.max_frames = max_frames = config.max_frames or MAX_FRAMES
        self.config = config = config.model_copy(update={"max_frames": max_frames})
        # Rows of its own for each level, the last of them its mask; the sum over levels starts at the usual scale.
        self.embedding = nn.Embedding(self.num_quantizers * (self.mask_id + 1), config.dim)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_SCALE * self.num_quantizers**-0.5)
        # Where nothing is known yet all frames are alike, and distances alone cannot tell the middle ones apart.
        self.positions = LearnedPositions((max_frames,), config.dim) if config.position_embedding else None
        self.conditions = Conditioner(config)
        self.conformer = Conformer(
            config.dim,
            config.depth,
            config.heads,
            config.head_dim,
            config.ff_mult,
            config.conv_kernel_size,
            config.conv_expansion,
            config.dropout,
            max_frames,
        )
        self.from_previous: nn.Linear | None = None
        if config.self_conditioning:
            self.from_previous = nn.Linear(config.dim, config.dim, bias=False)
            # A model starts by not listening to itself.
            nn.init.zeros_(self.from_previous.weight)

    def forward(self, codes: Tensor, conditioning: Conditioning, previous: Tensor | None = None) -> Tensor:
        """`(batch, frames, dim)`; `previous` is what came out for the same clips before, for self-conditioning."""
        frames = conditioning["frames"]
        self._check(codes, frames)
        # What stands in padding need not be a code, and reaches no frame.
        codes = codes.masked_fill(~frames[..., None], self.mask_id)
        ids = codes + (self.mask_id + 1) * torch.arange(self.num_quantizers, device=codes.device)
        x = F.embedding_bag(ids.flatten(0, 1), self.embedding.weight, mode="sum").view(*codes.shape[:2], -1)
        if self.positions is not None:
            x = x + self.positions((codes.shape[1],))
        condition = self.conditions(conditioning)
        if condition is not None:
            x = x + condition
        if self.from_previous is not None:
            if previous is None:
                previous = torch.zeros_like(x)
            x = x + self.from_previous(previous.detach().masked_fill(~frames[..., None], 0).to(x.dtype))
        out: Tensor = self.conformer(x, frames)
        return out

    def _check(self, codes: Tensor, frames: Tensor) -> None:
        if codes.dim() != 3 or codes.shape[:2] != frames.shape or codes.shape[2] != self.num_quantizers:
            raise UsageError(
                f"codes of shape {tuple(codes.shape)} are not (batch, frames, levels) of {tuple(frames.shape)} frames "
                f"and model.num_quantizers={self.num_quantizers}"
            )
        if codes.shape[1] > self.max_frames:
            raise UsageError(f"{codes.shape[1]} frames are more than model.max_frames={self.max_frames}")


class SoundStorm(Pretrained, nn.Module):
    """A net over codes, one head for each level, and a critic's if asked for (Borsos et al. 2023, 2305.09636).

    Made from a `ConformerWrapper`, or from keyword arguments that are the keys of `model.*`; see
    `SoundStormModelConfig`.
    """

    CONFIG = SoundStormModelConfig

    def __init__(self, net: ConformerWrapper | SoundStormModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        if net is not None and keywords:
            raise UsageError(f"SoundStorm takes a net, or the keys of model.* ({', '.join(keywords)}), not both")
        self.net = net if isinstance(net, ConformerWrapper) else ConformerWrapper(net, **keywords)
        self.config = config = self.net.config
        self.num_quantizers, self.mask_id = self.net.num_quantizers, self.net.mask_id
        # One parameter for all levels: every step gives all of it a gradient, whatever levels are drawn.
        self.head_weights = nn.Parameter(torch.empty(self.num_quantizers, self.mask_id, config.dim))
        self.head_biases = nn.Parameter(torch.zeros(self.num_quantizers, self.mask_id))
        nn.init.uniform_(self.head_weights, -(config.dim**-0.5), config.dim**-0.5)
        self.to_score: nn.Linear | None = None
        if config.self_critic:
            self.to_score = nn.Linear(config.dim, 1)
            # A critic starts without an opinion, and does not disturb the generator.
            nn.init.zeros_(self.to_score.weight)
            nn.init.zeros_(self.to_score.bias)

    @torch.no_grad()
    def init_from_codebooks(self, codebooks: Tensor) -> None:
        """Let similar codes of a level start alike: `codebooks` is (levels, codes, code_dim), the codec's vectors."""
        if codebooks.dim() != 3 or codebooks.shape[:2] != (self.num_quantizers, self.mask_id):
            raise UsageError(
                f"codebooks of shape {tuple(codebooks.shape)} are not {self.num_quantizers} levels of {self.mask_id} codes"
            )
        embeddings = self.net.embedding.weight.view(self.num_quantizers, self.mask_id + 1, -1)[:, : self.mask_id]
        for weights, level in zip((*embeddings, *self.head_weights), (*codebooks, *codebooks), strict=True):
            init_from_codebook(weights, level)

    def conditioning(
        self,
        frames: Tensor,
        semantic: Tensor | None = None,
        clip: Tensor | None = None,
        keep: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The conditioning of clips; see `Conditioner.prepare`."""
        return self.net.conditions.prepare(frames, semantic, clip, keep)

    def forward(
        self,
        codes: Tensor,
        conditioning: Conditioning,
        levels: Tensor,
        where: Tensor | None = None,
        previous: Tensor | None = None,
        output: OutputKind = "logits",
    ) -> Tensor:
        """Logits of each row's level, (batch, frames, codes); with `where` (batch, frames) only there, (places, codes).

        The self-critic's scores of each code of that level not being the original one, (batch, frames) or (places,), or
        the net's vectors, come by this method too, because processes that train together see what goes through a
        module's call alone.
        """
        vectors: Tensor = self.net(codes, conditioning, previous)
        if output == "vectors":
            return vectors
        if output == "scores":
            if self.to_score is None:
                raise UsageError("this model has no critic of its own (model.self_critic)")
            scores: Tensor = self.to_score(vectors)[..., 0]
            return scores if where is None else scores[where]
        return self._logits(vectors, levels) if where is None else self._logits_at(vectors, levels, where)

    def logits_of(self, vectors: Tensor, level: int) -> Tensor:
        """The logits of one level for any vectors, (..., codes)."""
        return F.linear(vectors, self.head_weights[level], self.head_biases[level])

    def _logits(self, vectors: Tensor, levels: Tensor) -> Tensor:
        """Each row by the head of its own level.

        A copy of a head for each row, and one product of all of them. The copies are small beside what the product
        makes, every row costs one head whatever the others' levels are, and nothing waits to learn which levels were
        drawn, as sorting rows by level would.
        """
        heads = F.embedding(levels, self.head_weights.flatten(1)).view(-1, *self.head_weights.shape[1:])
        biases = F.embedding(levels, self.head_biases)[:, None]
        return torch.baddbmm(biases.to(vectors.dtype), vectors, heads.transpose(1, 2).to(vectors.dtype))

    def _logits_at(self, vectors: Tensor, levels: Tensor, where: Tensor) -> Tensor:
        """Of some places alone: brought to the front of their rows first, so that no others are multiplied."""
        counts = where.sum(1)
        most = int(counts.max())
        order = where.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        packed = vectors.gather(1, order[..., None].expand(-1, -1, vectors.shape[2]))
        return self._logits(packed, levels)[torch.arange(most, device=where.device) < counts[:, None]]
