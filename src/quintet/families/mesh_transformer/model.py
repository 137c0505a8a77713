"""`MeshTransformer`: texts and a number of faces to the tokens of meshes, face by face.

A mesh is a row of faces, and a face `tokens_per_face` codes of a tokenizer. After the last face comes the end token,
`num_codes`; it is a target there alone, and nothing after it is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quintet.common.rng import ItemRNG
from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.mesh_transformer.config import MeshTransformerModelConfig
from quintet.families.mesh_transformer.grammar import whole_faces
from quintet.families.mesh_transformer.stages import CoarseFine, CoarseFineRows, Flat, FlatRows
from quintet.nn.conditioning import Conditioning, FrozenText, TextConditioning, make_text_conditioning
from quintet.nn.positions import EMBEDDING_SCALE
from quintet.sampling import autoregressive
from quintet.sampling.autoregressive import Legal, Sampling
from quintet.sampling.guidance import encode_prompts

PADDING = -1
"""Fills the codes of faces that are not there; what stands there is never looked at."""

KINDS: dict[str, type[CoarseFine] | type[Flat]] = {"coarse_fine": CoarseFine, "flat": Flat}


class Predicted(NamedTuple):
    """Logits (places, num_codes + 1) and targets (places,) of the places that count, row by row and no other."""

    logits: Tensor
    targets: Tensor


class Generated(NamedTuple):
    """Codes (batch, faces, tokens_per_face) with padding behind, lengths (batch,) in faces, and which rows have ended
    by themselves rather than by being as long as they may."""

    codes: Tensor
    lengths: Tensor
    ended: Tensor

    @property
    def rows(self) -> list[Tensor]:
        """The codes (faces, tokens_per_face) of each mesh."""
        return unpadded(self.codes, self.lengths)


def unpadded(codes: Tensor, lengths: Tensor) -> list[Tensor]:
    """Of each row of a padded batch its own codes."""
    return [row[:length] for row, length in zip(codes, lengths.tolist(), strict=True)]


class MeshTransformer(Pretrained, nn.Module):
    """Faces so far, a text and a number of faces to the logits of the next code.

    Keyword arguments are the keys of `model.*`; see `MeshTransformerModelConfig`.
    """

    CONFIG = MeshTransformerModelConfig

    def __init__(self, config: MeshTransformerModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        config = config or validate(MeshTransformerModelConfig, keywords)
        if config.num_codes is None or config.tokens_per_face is None:
            raise UsageError("model.num_codes and model.tokens_per_face are needed where no tokenizer gives them")
        self.config = config
        self.end_id = config.num_codes
        self.tokens_per_face = config.tokens_per_face
        self.embedding = nn.Embedding(config.num_codes, config.dim)
        # A row begins with the mesh, or, where it is cut out of a longer one, in the middle of it.
        self.starts = nn.Embedding(2, config.dim)
        self.face_counts = nn.Embedding(config.face_buckets + 1, config.dim) if config.face_buckets else None
        for table in (self.embedding, self.starts, self.face_counts):
            if table is not None:
                nn.init.normal_(table.weight, std=EMBEDDING_SCALE)
        self.text_encoder: TextConditioning | None = make_text_conditioning(config)
        self.stages: CoarseFine | Flat = KINDS[config.kind](config, config.tokens_per_face)
        self.to_logits = nn.Linear(config.dim, config.num_codes + 1)

    # --- conditioning -----------------------------------------------------------------------------------------

    def texts(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """Texts as conditioning; where `keep` is False the text is dropped, which is not the same as an empty one."""
        if self.text_encoder is None:
            return {}
        return {name: made.to(self._device) for name, made in self.text_encoder.prepare(texts, keep).items()}

    def faces(self, counts: Tensor, keep: Tensor | None = None) -> dict[str, Tensor]:
        """Numbers of faces as conditioning; where `keep` is False, or the number is 0, it is unknown.

        A bucket is a range of counts; the ranges grow with the counts, because a few faces more matter less then.
        """
        if self.face_counts is None:
            return {}
        share = counts.double().clamp(min=1).log() / math.log(self.config.max_faces + 1)
        buckets = 1 + (share * self.config.face_buckets).long().clamp(max=self.config.face_buckets - 1)
        known = counts > 0 if keep is None else keep.to(counts.device) & (counts > 0)
        return {"faces": buckets.masked_fill(~known, 0).to(self._device)}

    def cache_texts(self, folder: Path | None) -> None:
        """Where a frozen text encoder's embeddings are kept, if not in the user's cache folder; None: nowhere."""
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
    ) -> Predicted:
        """`codes` (batch, faces, tokens_per_face) with any padding behind `lengths` (batch,) faces.

        Of rows that are cut out of a longer mesh, `begins` and `ends` (batch,) tell which have its first face and which
        its last: without the last there is no end token to predict, and without the first nothing to predict it from.
        """
        self._check(codes)
        batch, faces = codes.shape[:2]
        begins = torch.ones_like(lengths, dtype=torch.bool) if begins is None else begins
        ends = torch.ones_like(lengths, dtype=torch.bool) if ends is None else ends
        there = torch.arange(faces, device=codes.device) < lengths[:, None]
        codes = codes.masked_fill(~there[..., None], 0)
        targets = codes.new_full((batch, faces + 1, self.tokens_per_face), self.end_id)
        targets[:, :-1] = codes.masked_fill(~there[..., None], self.end_id)
        wanted = torch.zeros_like(targets, dtype=torch.bool)
        wanted[:, :-1] = there[..., None]
        wanted[:, 0] &= begins[:, None]
        after = torch.arange(faces + 1, device=codes.device) == lengths[:, None]
        wanted[:, :, 0] |= after & ends[:, None]
        context, context_mask = self._context(conditioning)
        vectors = self.stages(
            self.embedding(codes),
            self.starts((~begins).long()),
            self._face_count_vectors(conditioning, batch),
            wanted,
            context,
            context_mask,
        )
        return Predicted(self.to_logits(vectors), targets[wanted])

    # --- generation -------------------------------------------------------------------------------------------

    def generate(
        self,
        texts: Sequence[str],
        rng: ItemRNG,
        settings: Sampling | None = None,
        *,
        negative: str | None = None,
        face_counts: Sequence[int] | None = None,
        prompts: Sequence[Tensor] | None = None,
        max_faces: int | None = None,
        legal: Legal | None = None,
        name: str = "decode",
    ) -> Generated:
        """One mesh for each text; an empty text is none, and so is a face count of 0.

        `prompts` are the tokens that rows begin with, each (tokens,) or (faces, tokens_per_face) and of any length. By
        `legal` the end token may come after a whole face alone; a stricter grammar can be given. Rows end after
        `max_faces` faces at the latest.
        """
        tokens, lengths = self._prompts(prompts or [torch.empty(0, dtype=torch.int64)] * len(texts), len(texts))
        cond, uncond = self._encode_prompts(texts, negative)
        if face_counts is not None:
            if self.face_counts is None:
                raise UsageError("this model knows no numbers of faces (model.face_buckets=0)")
            cond |= self.faces(torch.tensor(face_counts))
        most = self._most(max_faces)
        decoded = autoregressive.decode(
            self.begin,
            tokens,
            lengths,
            end_id=self.end_id,
            max_length=most * self.tokens_per_face,
            rng=rng,
            settings=settings or Sampling(),
            cond=cond,
            uncond=uncond,
            legal=legal or partial(whole_faces, tokens_per_face=self.tokens_per_face, num_codes=self.end_id),
            name=name,
        )
        return self._faces(decoded)

    @torch.no_grad()
    def begin(self, conditioning: Conditioning, batch: int) -> _Tokens:
        """Rows of tokens, as `sampling/autoregressive.py` grows them."""
        context, context_mask = self._context(conditioning)
        start = self.starts(torch.zeros(batch, dtype=torch.int64, device=self._device))
        return _Tokens(
            self, self.stages.begin(start, self._face_count_vectors(conditioning, batch), context, context_mask)
        )

    def _encode_prompts(
        self, texts: Sequence[str], negative: str | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """As `encode_prompts`; nothing to lead away from where the model takes no text."""
        if self.text_encoder is None:
            if any(texts) or negative:
                raise UsageError("this model takes no text (model.text=none)")
            return {}, None
        return encode_prompts(self, texts, negative)

    def _prompts(self, prompts: Sequence[Tensor], count: int) -> tuple[Tensor, Tensor]:
        """In one tensor, with their lengths in tokens."""
        rows = [prompt.flatten().to(self._device, torch.int64) for prompt in prompts]
        if len(rows) != count:
            raise UsageError(f"{len(rows)} prompts for {count} texts; give one for each, which may be empty")
        longest = max((len(row) for row in rows), default=0)
        if longest > self.config.max_faces * self.tokens_per_face:
            raise UsageError(
                f"a prompt of {longest} tokens is longer than model.max_faces={self.config.max_faces} faces"
            )
        for row in rows:
            if len(row) and not 0 <= int(row.min()) <= int(row.max()) < self.end_id:
                raise UsageError(f"a prompt has tokens that are no codes below model.num_codes={self.end_id}")
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64, device=self._device)
        return nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows else lengths[:, None], lengths

    def _most(self, max_faces: int | None) -> int:
        if max_faces is None:
            return self.config.max_faces
        if not 1 <= max_faces <= self.config.max_faces:
            raise UsageError(f"{max_faces} faces are not between 1 and model.max_faces={self.config.max_faces}")
        return max_faces

    def _faces(self, decoded: autoregressive.Decoded) -> Generated:
        """Whole faces; of a prompt that was as long as may be, the part of a face at its end is left out."""
        lengths = decoded.lengths // self.tokens_per_face
        faces = int(lengths.max()) if len(lengths) else 0
        codes = decoded.tokens[:, : faces * self.tokens_per_face].reshape(len(lengths), faces, self.tokens_per_face)
        there = torch.arange(faces, device=codes.device) < lengths[:, None]
        return Generated(codes.masked_fill(~there[..., None], PADDING), lengths, decoded.ended)

    # --- both -------------------------------------------------------------------------------------------------

    def _context(self, conditioning: Conditioning) -> tuple[Tensor | None, Tensor | None]:
        if "text" not in conditioning:
            return None, None
        if self.text_encoder is None:
            raise UsageError("this model takes no text (model.text=none)")
        vectors, mask = self.text_encoder(conditioning["text"], conditioning["text_mask"])
        return vectors, mask

    def _face_count_vectors(self, conditioning: Conditioning, batch: int) -> Tensor:
        """The embedding of each row's number of faces, (batch, dim)."""
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
        if codes.shape[1] > self.config.max_faces:
            raise UsageError(f"{codes.shape[1]} faces are more than model.max_faces={self.config.max_faces}")

    @property
    def _device(self) -> torch.device:
        return self.embedding.weight.device


class _Tokens:
    """Rows of tokens in the making, on rows of vectors."""

    def __init__(self, model: MeshTransformer, rows: CoarseFineRows | FlatRows) -> None:
        self.model = model
        self.rows = rows

    def advance(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model.to_logits(self.rows.advance(self.model.embedding(tokens)))
        return logits

    def select(self, numbers: Tensor) -> None:
        self.rows.select(numbers)
