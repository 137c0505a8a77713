"""`SoundStorm`: a masked conformer that predicts the codes of one quantizer level, given conditioning.

Codes are (batch, frames, num_quantizers), the coarsest level first. `masking.py` masks codes in training, and
`decoding.py` generates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.soundstorm.conditioning import Conditioner, Conditioning
from quintet.families.soundstorm.config import SoundStormModelConfig
from quintet.families.soundstorm.masking import MaskedPositions
from quintet.nn.attention import CrossKV
from quintet.nn.codebook import init_from_codebook
from quintet.nn.conditioning import FrozenText, TextConditioning, embeddings_as_text, make_text_conditioning
from quintet.nn.conformer import Conformer
from quintet.nn.positions import EMBEDDING_SCALE, LearnedPositions

OutputKind = Literal["logits", "scores", "vectors"]

MAX_FRAMES = 1500
"""Default maximum length of a clip: half a minute with 50 frames per second."""


class ConformerWrapper(nn.Module):
    """Codes of all levels to one vector per frame: embeddings summed over levels, conditioning, and a conformer, which
    attends to the words of a text (`model.text`).

    Keyword arguments are the keys of `model.*`; see `SoundStormModelConfig`.
    """

    def __init__(self, config: SoundStormModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        config = config or validate(SoundStormModelConfig, keywords)
        if config.num_codes is None or config.num_quantizers is None:
            raise UsageError("set model.num_codes and model.num_quantizers, or give a tokenizer")
        if config.text == "auto":
            raise UsageError("model.text=auto is chosen by a run for its data; name a text encoder, or none")
        self.num_quantizers: int = config.num_quantizers
        self.mask_id: int = config.num_codes
        self.max_frames = max_frames = config.max_frames or MAX_FRAMES
        self.config = config = config.model_copy(update={"max_frames": max_frames})
        # Each level has its own rows, the last of which is its mask token; the scale is that of the sum over levels.
        self.embedding = nn.Embedding(self.num_quantizers * (self.mask_id + 1), config.dim)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_SCALE * self.num_quantizers**-0.5)
        # When all codes are masked, relative positions alone cannot distinguish the frames in the middle of a clip.
        self.positions = LearnedPositions((max_frames,), config.dim) if config.position_embedding else None
        self.conditions = Conditioner(config)
        self.text_encoder: TextConditioning | None = make_text_conditioning(config)
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
            None if self.text_encoder is None else config.text_dim,
        )
        self.from_previous: nn.Linear | None = None
        if config.self_conditioning:
            self.from_previous = nn.Linear(config.dim, config.dim, bias=False)
            # Zero initialisation: training starts without self-conditioning.
            nn.init.zeros_(self.from_previous.weight)

    def forward(
        self,
        codes: Tensor,
        conditioning: Conditioning,
        previous: Tensor | None = None,
        has_padding: bool = True,
    ) -> Tensor:
        """Vectors (batch, frames, dim) of codes (batch, frames, num_quantizers).

        `previous` (batch, frames, dim) is the output of the previous step, for self-conditioning. `has_padding` may be
        False if all frames are valid: attention without a mask has faster kernels on a GPU.
        """
        frames = conditioning["frames"]
        self._check(codes, frames)
        # Padding may hold any value; it does not affect valid frames.
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
        context, context_mask = self._context(conditioning)
        out: Tensor = self.conformer(x, frames if has_padding else None, context, context_mask)
        return out

    def texts(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """The conditioning of texts; where `keep` is False the text is dropped, unlike an empty text."""
        if self.text_encoder is None:
            return {}
        return self._on_device(self.text_encoder.prepare(texts, keep))

    def text_vectors(self, vectors: Tensor, mask: Tensor, keep: Tensor | None = None) -> dict[str, Tensor]:
        """The same for precomputed text embeddings (batch, words, vector_dim) with `mask` (batch, words)."""
        return self._on_device(embeddings_as_text(self.text_encoder, vectors, mask, keep))

    def cache_texts(self, folder: Path | None) -> None:
        """Set the cache folder for embeddings of a frozen text encoder; None disables the cache."""
        if isinstance(self.text_encoder, FrozenText):
            self.text_encoder.encoder.root = folder

    @torch.no_grad()
    def precompute_conditioning(self, conditioning: Conditioning) -> dict[str, Tensor]:
        """The conditioning with the keys and values of its text, encoded once for many forward passes."""
        context, mask = self._context(conditioning)
        if context is None or mask is None or isinstance(context, CrossKV):
            return dict(conditioning)
        cross_kv = self.conformer.precompute_cross_kv(context, mask)
        others = {name: value for name, value in conditioning.items() if name not in ("text", "text_mask")}
        return {**others, "keys": cross_kv.keys, "values": cross_kv.values, "keys_mask": cross_kv.mask}

    def _context(self, conditioning: Conditioning) -> tuple[Tensor | CrossKV | None, Tensor | None]:
        """What the conformer attends to, with its mask (batch, words), which a `CrossKV` has itself."""
        if "keys" in conditioning:
            return CrossKV(conditioning["keys"], conditioning["values"], conditioning["keys_mask"]), None
        if self.text_encoder is None or "text" not in conditioning:
            return None, None
        vectors, mask = self.text_encoder(conditioning["text"], conditioning["text_mask"])
        return vectors, mask

    def _on_device(self, prepared: dict[str, Tensor]) -> dict[str, Tensor]:
        device = self.embedding.weight.device
        return {name: tensor.to(device) for name, tensor in prepared.items()}

    def _check(self, codes: Tensor, frames: Tensor) -> None:
        if codes.dim() != 3 or codes.shape[:2] != frames.shape or codes.shape[2] != self.num_quantizers:
            raise UsageError(
                f"codes of shape {tuple(codes.shape)} are not (batch, frames, quantizers) of {tuple(frames.shape)} "
                f"frames and model.num_quantizers={self.num_quantizers}"
            )
        if codes.shape[1] > self.max_frames:
            raise UsageError(f"{codes.shape[1]} frames are more than model.max_frames={self.max_frames}")


class SoundStorm(Pretrained, nn.Module):
    """A conformer over codes, one output head per level, and optionally a self-critic (Borsos et al. 2023, 2305.09636).

    Built from a `ConformerWrapper`, or from keyword arguments that are the keys of `model.*`; see
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
        # One parameter for all levels, so that every parameter has a gradient at every step, as DDP requires.
        self.head_weights = nn.Parameter(torch.empty(self.num_quantizers, self.mask_id, config.dim))
        self.head_biases = nn.Parameter(torch.zeros(self.num_quantizers, self.mask_id))
        nn.init.uniform_(self.head_weights, -(config.dim**-0.5), config.dim**-0.5)
        self.to_score: nn.Linear | None = None
        if config.self_critic:
            self.to_score = nn.Linear(config.dim, 1)
            # Zero initialisation: the critic does not disturb the generator at the start of training.
            nn.init.zeros_(self.to_score.weight)
            nn.init.zeros_(self.to_score.bias)

    @torch.no_grad()
    def init_from_codebooks(self, codebooks: Tensor) -> None:
        """Initialise embeddings and heads from the codec's codebooks (num_quantizers, num_codes, code_dim).

        Codes with similar vectors then start with similar weights.
        """
        if codebooks.dim() != 3 or codebooks.shape[:2] != (self.num_quantizers, self.mask_id):
            raise UsageError(
                f"codebooks of shape {tuple(codebooks.shape)} are not those of {self.num_quantizers} quantizers with "
                f"{self.mask_id} codes"
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
        aligned: Tensor | None = None,
        text: Conditioning | None = None,
    ) -> dict[str, Tensor]:
        """The conditioning of clips, with the tensors of their `texts`; see `Conditioner.prepare`.

        `keep` does not apply to the texts.
        """
        return {**self.net.conditions.prepare(frames, semantic, clip, keep, aligned), **(text or {})}

    def texts(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """The conditioning of texts, nothing for a model without text; where `keep` is False the text is dropped."""
        return self.net.texts(texts, keep)

    def forward(
        self,
        codes: Tensor,
        conditioning: Conditioning,
        levels: Tensor,
        where: Tensor | MaskedPositions | None = None,
        previous: Tensor | None = None,
        output: OutputKind = "logits",
        has_padding: bool = True,
    ) -> Tensor:
        """Logits (batch, frames, num_codes) of the level of each row, `levels` (batch,).

        With `where` (batch, frames), or its indices, only those of these positions, (positions, num_codes);
        `has_padding` is that of `ConformerWrapper`. `output="scores"` returns
        the logits of the self-critic that a code of that level is not the original, (batch, frames) or (positions,);
        `output="vectors"` returns the conformer output (batch, frames, dim). All go through __call__: DDP and FSDP
        hook into it.
        """
        vectors: Tensor = self.net(codes, conditioning, previous, has_padding)
        if output == "vectors":
            return vectors
        if output == "scores":
            if self.to_score is None:
                raise UsageError("this model has no self-critic (model.self_critic is false)")
            scores: Tensor = self.to_score(vectors)[..., 0]
            return scores if where is None else scores.flatten().index_select(0, _positions(where).flat)
        return self._logits(vectors, levels) if where is None else self._logits_at(vectors, levels, _positions(where))

    def logits_of(self, vectors: Tensor, level: int) -> Tensor:
        """Logits (..., num_codes) of one level for vectors (..., dim)."""
        return F.linear(vectors, self.head_weights[level], self.head_biases[level])

    def _logits(self, vectors: Tensor, levels: Tensor) -> Tensor:
        """Logits of each row by the head of its level.

        Gathers a copy of the head for each row, then one batched product. The copies are small compared with the
        logits, and unlike sorting rows by level this does not synchronise to read which levels were drawn.
        """
        heads = F.embedding(levels, self.head_weights.flatten(1)).view(-1, *self.head_weights.shape[1:])
        biases = F.embedding(levels, self.head_biases)[:, None]
        return torch.baddbmm(biases.to(vectors.dtype), vectors, heads.transpose(1, 2).to(vectors.dtype))

    def _logits_at(self, vectors: Tensor, levels: Tensor, positions: MaskedPositions) -> Tensor:
        """Logits of some positions alone: they are moved to the front of their rows, so that no others are computed."""
        order = positions.order
        packed = vectors.gather(1, order[..., None].expand(-1, -1, vectors.shape[2]))
        return self._logits(packed, levels).flatten(0, 1).index_select(0, positions.packed)


def _positions(where: Tensor | MaskedPositions) -> MaskedPositions:
    return where if isinstance(where, MaskedPositions) else MaskedPositions.of(where)
