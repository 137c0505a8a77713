"""`MeshTransformer`: an autoregressive transformer over the tokens of meshes, conditioned on text, points, face count.

A mesh is a sequence of faces, and a face is `tokens_per_face` codes of a tokenizer. The end token `num_codes` follows
the last face; it is a target only there, and nothing behind it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quintet.common.precision import as_float64
from quintet.common.rng import ItemRNG
from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.mesh_transformer.config import MeshTransformerModelConfig
from quintet.families.mesh_transformer.grammar import whole_faces
from quintet.families.mesh_transformer.stages import CoarseFine, CoarseFineState, Flat, FlatState, Positions
from quintet.families.mesh_transformer.woven import Woven, init_coordinates, states_of
from quintet.families.mesh_transformer.woven_decoding import WovenDecoding
from quintet.media.mesh_weaving import NUM_OPERATIONS
from quintet.nn.chunked_loss import ChunkedLoss, PositionLosses
from quintet.nn.conditioning import (
    Conditioning,
    FrozenText,
    TextConditioning,
    embeddings_as_text,
    make_text_conditioning,
)
from quintet.nn.points import PointEncoder
from quintet.nn.positions import EMBEDDING_SCALE
from quintet.sampling import autoregressive
from quintet.sampling.autoregressive import Begin, Legal, Rows, Sampling
from quintet.sampling.guidance import encode_prompts

PADDING = -1
"""Padding value of codes; the model ignores the values of padding."""

Kind = type[CoarseFine] | type[Flat] | type[Woven]
KINDS: dict[str, Kind] = {"coarse_fine": CoarseFine, "flat": Flat, "woven": Woven}


class Predicted(NamedTuple):
    """Logits (positions, num_codes + 1) and targets (positions,) of the positions with a loss, row by row."""

    logits: Tensor
    targets: Tensor


class Targets(NamedTuple):
    """Where a batch has a loss, and the target codes there, (positions,)."""

    positions: Positions
    codes: Tensor


class Generated(NamedTuple):
    """Padded codes (batch, faces, tokens_per_face), lengths (batch,) in faces, and which meshes `ended` (batch,) with
    the end token rather than at the maximum length."""

    codes: Tensor
    lengths: Tensor
    ended: Tensor

    @property
    def rows(self) -> list[Tensor]:
        """The codes (faces, tokens_per_face) of each mesh."""
        return unpadded(self.codes, self.lengths)


def unpadded(codes: Tensor, lengths: Tensor) -> list[Tensor]:
    """The codes (faces, tokens_per_face) of each row of a padded batch."""
    return [row[:length] for row, length in zip(codes, lengths.tolist(), strict=True)]


def find_targets(
    config: MeshTransformerModelConfig,
    codes: Tensor,
    lengths: Tensor,
    begins: Tensor,
    ends: Tensor,
    states: Tensor | None = None,
) -> Targets:
    """The targets of a batch, see `MeshTransformer.forward`. On a GPU this waits for the number of positions.

    `states` are those of `states_of`, for woven meshes, if they are known.
    """
    batch, faces, tokens_per_face = codes.shape
    valid, end_id = valid_faces(codes, lengths), config.num_codes
    assert end_id is not None
    targets = codes.new_full((batch, faces + 1, tokens_per_face), end_id)
    targets[:, :-1] = codes.masked_fill(~valid, end_id)
    loss_mask = torch.zeros_like(targets, dtype=torch.bool)
    loss_mask[:, :-1] = valid
    loss_mask[:, 0] &= begins[:, None]
    after = torch.arange(faces + 1, device=codes.device) == lengths[:, None]
    loss_mask[:, :, 0] |= after & ends[:, None]
    positions = KINDS[config.kind].positions(loss_mask)
    if config.kind == "woven" and states is None:
        states = states_of(codes, lengths, end_id - NUM_OPERATIONS)
    return Targets(positions._replace(states=states), targets[loss_mask])


def face_buckets(config: MeshTransformerModelConfig, counts: Tensor, keep: Tensor | None = None) -> Tensor:
    """The bucket (batch,) of each face count (batch,); 0 where `keep` (batch,) is False or the count is 0.

    A bucket is a range of counts on a logarithmic scale, because a few faces matter less in a large mesh.
    """
    fraction = as_float64(counts).clamp(min=1).log() / math.log(config.max_faces + 1)
    buckets = 1 + (fraction * config.face_buckets).long().clamp(max=config.face_buckets - 1)
    known = counts > 0 if keep is None else keep.to(counts.device) & (counts > 0)
    return buckets.to(counts.device).masked_fill(~known, 0)


def valid_faces(codes: Tensor, lengths: Tensor) -> Tensor:
    """Mask (batch, faces, 1) of the faces of codes (batch, faces, tokens_per_face) that are not padding."""
    return (torch.arange(codes.shape[1], device=codes.device) < lengths[:, None])[..., None]


class MeshTransformer(Pretrained, nn.Module):
    """Predicts the logits of the next code from previous faces, a text and a face count.

    Keyword arguments are the keys of `model.*`; see `MeshTransformerModelConfig`.
    """

    CONFIG = MeshTransformerModelConfig

    def __init__(self, config: MeshTransformerModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        config = config or validate(MeshTransformerModelConfig, keywords)
        if config.num_codes is None or config.tokens_per_face is None:
            raise UsageError("set model.num_codes and model.tokens_per_face, or give a tokenizer")
        self.config = config
        self.end_id = config.num_codes
        self.tokens_per_face = config.tokens_per_face
        self.embedding = nn.Embedding(config.num_codes, config.dim)
        # Start embeddings: of a row that starts with the mesh, and of a window from the middle of a mesh.
        self.starts = nn.Embedding(2, config.dim)
        self.face_counts = nn.Embedding(config.face_buckets + 1, config.dim) if config.face_buckets else None
        for table in (self.embedding, self.starts, self.face_counts):
            if table is not None:
                nn.init.normal_(table.weight, std=EMBEDDING_SCALE)
        self.text_encoder: TextConditioning | None = make_text_conditioning(config)
        self.point_encoder: PointEncoder | None = None
        if config.condition == "points":
            sizes = (config.dim, config.text_dim, config.point_latents, config.point_depth)
            self.point_encoder = PointEncoder(*sizes, config.heads)
        self.stages: CoarseFine | Flat | Woven = KINDS[config.kind](config, config.tokens_per_face)
        self.to_logits = nn.Linear(config.dim, config.num_codes + 1)
        if isinstance(self.stages, Woven):
            init_coordinates(self.embedding.weight[: self.stages.bins])
            init_coordinates(self.to_logits.weight[: self.stages.bins])

    # --- conditioning -----------------------------------------------------------------------------------------

    def texts(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """Conditioning on texts; where `keep` (batch,) is False the text is dropped, unlike an empty text."""
        if self.text_encoder is None:
            return {}
        return {name: tensor.to(self._device) for name, tensor in self.text_encoder.prepare(texts, keep).items()}

    def text_vectors(self, vectors: Tensor, mask: Tensor, keep: Tensor | None = None) -> dict[str, Tensor]:
        """The same for text embeddings (batch, words, vector_dim) with `mask` (batch, words)."""
        prepared = embeddings_as_text(self.text_encoder, vectors, mask, keep)
        return {name: tensor.to(self._device) for name, tensor in prepared.items()}

    def points(self, points: Tensor, keep: Tensor | None = None) -> dict[str, Tensor]:
        """Conditioning on point clouds (batch, points, 6); where `keep` (batch,) is False the cloud is dropped."""
        keep = torch.ones(len(points), dtype=torch.bool) if keep is None else keep
        return {"points": points.to(self._device), "points_mask": keep.to(self._device)}

    def faces(self, counts: Tensor, keep: Tensor | None = None) -> dict[str, Tensor]:
        """Conditioning on face counts (batch,); where `keep` (batch,) is False or the count is 0, it is unknown."""
        if self.face_counts is None:
            return {}
        return {"faces": face_buckets(self.config, counts, keep).to(self._device)}

    def cache_texts(self, folder: Path | None) -> None:
        """Set the cache folder for embeddings of a frozen text encoder, by default the user's; None: no cache."""
        if isinstance(self.text_encoder, FrozenText):
            self.text_encoder.encoder.root = folder

    # --- training ---------------------------------------------------------------------------------------------

    def forward(
        self,
        codes: Tensor,
        lengths: Tensor,
        conditioning: Conditioning,
        begins: Tensor | None = None,
        ends: Tensor | None = None,
        targets: Targets | None = None,
        loss: ChunkedLoss | None = None,
    ) -> Predicted | PositionLosses:
        """Logits and targets of `codes` (batch, faces, tokens_per_face), padded behind `lengths` (batch,) in faces.

        For windows of larger meshes, `begins` and `ends` (batch,) say whether a row has the first and the last face of
        its mesh: a window without the last face has no end token, and the first face of a window without the first
        face of the mesh is not predicted. `targets` are those of `find_targets`, if they are known; windows of woven
        meshes need them, because of their states. With a `loss` for these targets, the result are the losses of the
        positions.
        """
        self._check(codes)
        begins = torch.ones_like(lengths, dtype=torch.bool) if begins is None else begins
        ends = torch.ones_like(lengths, dtype=torch.bool) if ends is None else ends
        if targets is None:
            targets = find_targets(self.config, codes, lengths, begins, ends)
        context, context_mask = self._context(conditioning)
        vectors = self.stages(
            self.embedding(codes.masked_fill(~valid_faces(codes, lengths), 0)),
            self.starts((~begins).long()),
            self._face_count_vectors(conditioning, len(codes)),
            targets.positions,
            context,
            context_mask,
        )
        if loss is not None:
            losses: PositionLosses = loss(vectors, self.to_logits)
            return losses
        tokens, _, states = targets.positions
        states = None if states is None else states.flatten(0, 1).index_select(0, tokens)
        return Predicted(self.token_logits(vectors, states), targets.codes)

    def token_logits(self, vectors: Tensor, states: Tensor | None = None) -> Tensor:
        """Logits (positions, num_codes + 1) of vectors (positions, dim); woven: and states (positions, FEATURES)."""
        logits: Tensor = self.to_logits(vectors)
        if states is None or not isinstance(self.stages, Woven):
            return logits
        copies = self.stages.copy_logits(vectors, states)
        return logits + nn.functional.pad(copies, (0, logits.shape[1] - copies.shape[1]))

    def logits(self, codes: Tensor, conditioning: Conditioning) -> Tensor:
        """Logits (batch, tokens + 1, num_codes + 1) of every next token of `codes` (batch, faces, tokens_per_face)."""
        self._check(codes)
        batch, faces = codes.shape[:2]
        if isinstance(self.stages, Woven):
            lengths = (codes[..., 0] >= 0).sum(1)
            rows = self(codes, lengths, conditioning).logits.split((lengths + 1).tolist())
            return nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        everywhere = torch.ones(batch, faces + 1, self.tokens_per_face, dtype=torch.bool, device=codes.device)
        context, context_mask = self._context(conditioning)
        vectors = self.stages(
            self.embedding(codes.clamp(min=0)),
            self.starts(torch.zeros(batch, dtype=torch.int64, device=codes.device)),
            self._face_count_vectors(conditioning, batch),
            self.stages.positions(everywhere),
            context,
            context_mask,
        )
        logits: Tensor = self.to_logits(vectors).view(batch, -1, self.end_id + 1)
        return logits[:, : faces * self.tokens_per_face + 1]

    # --- generation -------------------------------------------------------------------------------------------

    def generate(
        self,
        texts: Sequence[str],
        rng: ItemRNG,
        settings: Sampling | None = None,
        *,
        negative: str | None = None,
        embeddings: tuple[Tensor, Tensor] | None = None,
        points: Tensor | None = None,
        face_counts: Sequence[int] | None = None,
        prompts: Sequence[Tensor] | None = None,
        max_faces: int | None = None,
        window_faces: int | None = None,
        legal: Legal | None = None,
        holes: bool = False,
        name: str = "decode",
    ) -> Generated:
        """One mesh per text; an empty text means no text, and a face count of 0 no face count.

        `embeddings` are text embeddings (batch, words, vector_dim) and their mask, instead of the texts themselves.
        `points` are point clouds (batch, points, 6); guidance steers away from a mesh without text and points.
        `prompts` are the tokens that the meshes start with, each (tokens,) or (faces, tokens_per_face), of any length.
        `legal` is the grammar; by default the end token may follow a complete face only. Woven meshes have a grammar of
        their own, in which `holes` allows open edges. Meshes end after `max_faces` faces at the latest. Woven ones may
        have more than `model.max_faces` with `window_faces`, for models trained with it: then the model sees a sliding
        window of the last tokens.
        """
        tokens, lengths = self._prompts(prompts or [torch.empty(0, dtype=torch.int64)] * len(texts), len(texts))
        cond, uncond = self._encode_prompts(texts, negative, embeddings)
        if self.point_encoder is not None:
            uncond = uncond or {}
        if points is not None:
            cond |= self.points(points)
            uncond = {**(uncond or {}), **self.points(points, torch.zeros(len(points), dtype=torch.bool))}
        if face_counts is not None:
            if self.face_counts is None:
                raise UsageError("this model is not conditioned on face counts (model.face_buckets=0)")
            cond |= self.faces(torch.tensor(face_counts))
        limit = self._face_limit(max_faces, window_faces)
        settings = settings or Sampling()
        begin: Begin = partial(self.begin, max_faces=limit)
        if isinstance(self.stages, Woven):
            window = None if window_faces is None else self.config.max_tokens(window_faces)
            weaving = WovenDecoding(self, limit, holes=holes, is_guided=settings.guidance_scale != 1, window=window)
            begin, legal = weaving.begin, weaving.legal
        decoded = autoregressive.decode(
            begin,
            tokens,
            lengths,
            end_id=self.end_id,
            max_length=self.config.max_tokens(limit),
            rng=rng,
            settings=settings,
            cond=cond,
            uncond=uncond,
            legal=legal or partial(whole_faces, tokens_per_face=self.tokens_per_face, num_codes=self.end_id),
            name=name,
        )
        return self._faces(decoded)

    @torch.no_grad()
    def begin(self, conditioning: Conditioning, batch: int, max_faces: int | None = None) -> Rows:
        """The decoding state of a batch of up to `max_faces`, for `sampling/autoregressive.py`."""
        assert not isinstance(self.stages, Woven)
        limit = self._face_limit(max_faces, None)
        return _DecodingState(self, self.stages.begin(limit, *self.begin_rows(conditioning, batch)))

    def begin_rows(self, conditioning: Conditioning, batch: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The start and face count embeddings (batch, dim) of a batch, and its context with the mask."""
        context, context_mask = self._context(conditioning)
        start = self.starts(torch.zeros(batch, dtype=torch.int64, device=self._device))
        return start, self._face_count_vectors(conditioning, batch), context, context_mask

    def _encode_prompts(
        self, texts: Sequence[str], negative: str | None, embeddings: tuple[Tensor, Tensor] | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """Conditional and unconditional conditioning; the latter is None if the model takes no text."""
        if embeddings is not None:
            if negative:
                raise UsageError("a negative prompt needs texts, but this model takes text embeddings")
            dropped = torch.zeros(len(texts), dtype=torch.bool)
            return self.text_vectors(*embeddings), self.text_vectors(*embeddings, dropped)
        if self.text_encoder is None:
            if any(texts) or negative:
                raise UsageError("this model takes no text (model.text=none)")
            return {}, None
        return encode_prompts(self, texts, negative)

    def _prompts(self, prompts: Sequence[Tensor], count: int) -> tuple[Tensor, Tensor]:
        """The prompts as one padded tensor (batch, tokens), and their lengths (batch,) in tokens."""
        rows = [prompt.flatten().to(self._device, torch.int64) for prompt in prompts]
        if len(rows) != count:
            raise UsageError(f"{len(rows)} prompts for {count} texts; give one for each text, which may be empty")
        longest = max((len(row) for row in rows), default=0)
        most = self.config.max_tokens(self.config.max_faces)
        if longest > most:
            raise UsageError(
                f"a prompt of {longest} tokens is longer than the {most} of model.max_faces={self.config.max_faces}"
            )
        for row in rows:
            if len(row) and not 0 <= int(row.min()) <= int(row.max()) < self.end_id:
                raise UsageError(
                    f"a prompt has tokens outside the codes from 0 to {self.end_id - 1} (model.num_codes={self.end_id})"
                )
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64, device=self._device)
        return nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows else lengths[:, None], lengths

    def _face_limit(self, max_faces: int | None, window_faces: int | None) -> int:
        limit = self.config.max_faces
        if window_faces is not None and (self.config.kind != "woven" or not 1 <= window_faces <= limit):
            raise UsageError(
                f"window_faces={window_faces} needs model.kind=woven and a number between 1 and model.max_faces={limit}"
            )
        if max_faces is None:
            return limit
        if max_faces < 1 or (window_faces is None and max_faces > limit):
            raise UsageError(f"max_faces={max_faces} is not between 1 and model.max_faces={limit}")
        return max_faces

    def _faces(self, decoded: autoregressive.Decoded) -> Generated:
        """The complete faces of decoded tokens; an incomplete last face of a prompt of maximum length is dropped."""
        lengths = decoded.lengths // self.tokens_per_face
        faces = int(lengths.max()) if len(lengths) else 0
        codes = decoded.tokens[:, : faces * self.tokens_per_face].reshape(len(lengths), faces, self.tokens_per_face)
        valid = torch.arange(faces, device=codes.device) < lengths[:, None]
        return Generated(codes.masked_fill(~valid[..., None], PADDING), lengths, decoded.ended)

    # --- shared -----------------------------------------------------------------------------------------------

    def _context(self, conditioning: Conditioning) -> tuple[Tensor | None, Tensor | None]:
        """The text embeddings and the encoded points (batch, length, text_dim) for cross-attention and their mask;
        None without both."""
        parts: list[tuple[Tensor, Tensor]] = []
        if "text" in conditioning:
            if self.text_encoder is None:
                raise UsageError("this model takes no text (model.text=none)")
            parts.append(self.text_encoder(conditioning["text"], conditioning["text_mask"]))
        if "points" in conditioning:
            if self.point_encoder is None:
                raise UsageError("this model takes no points (model.condition=none)")
            vectors = self.point_encoder(conditioning["points"])
            parts.append((vectors, conditioning["points_mask"][:, None].expand(vectors.shape[:2])))
        if len(parts) < 2:
            return parts[0] if parts else (None, None)
        contexts, masks = zip(*parts, strict=True)
        return torch.cat([each.to(contexts[-1].dtype) for each in contexts], dim=1), torch.cat(masks, dim=1)

    def _face_count_vectors(self, conditioning: Conditioning, batch: int) -> Tensor:
        """The embedding of the face count of each row, (batch, dim)."""
        if self.face_counts is None:
            return self.starts.weight.new_zeros(batch, self.config.dim)
        unknown = torch.zeros(batch, dtype=torch.int64, device=self._device)
        vectors: Tensor = self.face_counts(conditioning.get("faces", unknown))
        return vectors

    def _check(self, codes: Tensor) -> None:
        if codes.dim() != 3 or codes.shape[2] != self.tokens_per_face:
            raise UsageError(
                f"codes of shape {tuple(codes.shape)} are not (batch, faces, {self.tokens_per_face}) "
                f"(model.tokens_per_face)"
            )
        if codes.shape[1] * self.tokens_per_face > self.config.max_tokens(self.config.max_faces):
            rows = "tokens" if self.config.kind == "woven" else "faces"
            raise UsageError(f"{codes.shape[1]} {rows} are more than fit into model.max_faces={self.config.max_faces}")

    @property
    def _device(self) -> torch.device:
        return self.embedding.weight.device


class _DecodingState:
    """KV-cached decoding: embeds tokens, advances the stages and returns logits."""

    def __init__(self, model: MeshTransformer, stages: CoarseFineState | FlatState) -> None:
        self.model = model
        self.stages = stages

    def advance(self, tokens: Tensor) -> Tensor:
        """Logits (batch, num_codes + 1) of the next token after new tokens (batch, new)."""
        logits: Tensor = self.model.to_logits(self.stages.advance(self.model.embedding(tokens)))
        return logits

    def select(self, indices: Tensor) -> None:
        """Keep only these rows of the batch."""
        self.stages.select(indices)
