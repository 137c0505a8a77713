"""`Woven`: the transformer over the tokens of woven meshes, which sees the state of their automaton at every position.

Each position is the previous token and the state in which the next one is predicted. Coordinates often repeat one of a
vertex around the gate, so the logits of these bins get scores of their own (a copy mechanism, as in pointer networks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from quintet.families.mesh_transformer.config import MeshTransformerModelConfig
from quintet.families.mesh_transformer.stages import Positions, text_transformer
from quintet.families.mesh_transformer.woven_grammar import WovenRow
from quintet.families.mesh_transformer.woven_states import COORDINATES, COUNTS, VERTICES, StateReader, read_row
from quintet.media.mesh_weaving import NUM_OPERATIONS
from quintet.nn.attention import MAX_BF16_LENGTH, KVCache
from quintet.nn.positions import EMBEDDING_SCALE, waves
from quintet.sampling.guidance import Conditioning

if TYPE_CHECKING:
    from quintet.families.mesh_transformer.model import MeshTransformer

COORDINATE_DIM = 64
"""Dimension of the embedding of a coordinate of the state."""


def states_of(codes: Tensor, lengths: Tensor, bins: int) -> Tensor:
    """The states (batch, tokens + 1, FEATURES) of padded codes (batch, tokens, 1); on a GPU this waits for them."""
    rows = [row[:length] for row, length in zip(codes[..., 0].tolist(), lengths.tolist(), strict=True)]
    states = [torch.from_numpy(read_row(row, bins)[0]) for row in rows]
    longest = codes.new_zeros(codes.shape[1] + 1, states[0].shape[1], device="cpu")
    return nn.utils.rnn.pad_sequence([*states, longest], batch_first=True)[:-1].to(codes.device)


class Woven(nn.Module):
    """Token embeddings of rows to the output vectors of the predicted positions."""

    def __init__(self, config: MeshTransformerModelConfig, tokens_per_face: int) -> None:
        super().__init__()
        assert config.num_codes is not None
        self.bins = config.num_codes - NUM_OPERATIONS
        self.coordinates = nn.Embedding(self.bins + 1, COORDINATE_DIM)
        nn.init.normal_(self.coordinates.weight, std=EMBEDDING_SCALE)
        init_coordinates(self.coordinates.weight[1:])
        self.counts = nn.Embedding(sum(COUNTS), config.dim)
        nn.init.normal_(self.counts.weight, std=EMBEDDING_SCALE / len(COUNTS) ** 0.5)
        self.register_buffer("offsets", torch.tensor([0, *np.cumsum(COUNTS[:-1])]), persistent=False)
        self.from_state = nn.Linear(COORDINATES * COORDINATE_DIM, config.dim)
        self.to_copies = nn.Linear(config.dim, 2 * VERTICES)
        self.transformer = text_transformer(config, config.max_tokens(config.max_faces) + 1)

    offsets: Tensor

    def forward(
        self,
        codes: Tensor,
        start: Tensor,
        face_count: Tensor,
        positions: Positions,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Vectors (positions, dim), as `Flat.forward`, of rows of tokens (batch, tokens, 1, dim)."""
        assert positions.states is not None
        x = torch.cat([start[:, None], codes[:, :, 0]], dim=1) + self.state_vectors(positions.states)
        x = x + face_count[:, None]
        # On a CPU in bf16, products with a mask take half the time of torch's causal kernel (nn/attention.py).
        is_short = x.shape[1] <= MAX_BF16_LENGTH and x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if is_short else None
        vectors: Tensor = self.transformer(x, mask, context, context_mask)
        return vectors.flatten(0, 1).index_select(0, positions.tokens)

    @staticmethod
    def positions(loss_mask: Tensor) -> Positions:
        """As `CoarseFine.positions`; the states are still missing. A row is the start and all tokens."""
        return Positions(loss_mask.flatten().nonzero()[:, 0])

    def state_vectors(self, states: Tensor) -> Tensor:
        """The embeddings (batch, tokens, dim) of states (batch, tokens, FEATURES)."""
        counts, coordinates = states[..., : len(COUNTS)], states[..., len(COUNTS) :]
        around: Tensor = self.from_state(self.coordinates(coordinates).flatten(2))
        progress: Tensor = self.counts(counts + self.offsets).sum(2)
        return around + progress

    def copy_logits(self, vectors: Tensor, states: Tensor) -> Tensor:
        """What is added to the logits of coordinates, (positions, bins), for vectors (positions, dim) and their states
        (positions, FEATURES): a score for each vertex around the gate, at its coordinate on the axis of this token, and
        one at the mirrored coordinate, since meshes are centred and most things are symmetric."""
        axis = states[:, :1] % 3
        columns = len(COUNTS) + 3 * torch.arange(VERTICES, device=states.device) + axis
        candidates = states.gather(1, columns)
        mirrored = torch.where(candidates > 0, self.bins + 1 - candidates, 0)
        candidates = torch.cat([candidates, mirrored], dim=1)
        is_there = candidates[..., None] == torch.arange(1, self.bins + 1, device=states.device)
        scores: Tensor = self.to_copies(vectors)
        return (scores[..., None] * is_there).sum(1)


def init_coordinates(rows: Tensor) -> None:
    """Initialise the rows (bins, dim) of coordinates, so that adjacent ones are similar."""
    with torch.no_grad():
        rows.copy_(rows.std() * waves(*rows.shape))


class WovenDecoding:
    """KV-cached decoding of a batch of rows, each with its automaton, which gives the states and the legal tokens.

    The automata are on the CPU, so a GPU is waited for at every token.
    """

    def __init__(self, model: MeshTransformer, max_faces: int, *, holes: bool, is_guided: bool) -> None:
        self.model = model
        self.copies = 2 if is_guided else 1
        self.max_faces, self.holes = max_faces, holes
        self.rows: list[WovenRow] = []

    def begin(self, conditioning: Conditioning, batch: int) -> WovenDecoding:
        """The start of a batch, for `sampling/autoregressive.py`; of a guided one both halves have the same rows."""
        stages, limit = self.stages, self.model.config.max_tokens(self.max_faces)
        count = batch // self.copies
        self.rows = [WovenRow(stages.bins, self.max_faces, limit, self.holes) for _ in range(count)]
        self.readers = [StateReader(row.walk) for row in self.rows]
        self.start, self.face_count, context, context_mask = self.model.begin_rows(conditioning, batch)
        self.cache: KVCache = stages.transformer.start(batch, limit + 1, context, context_mask)
        return self

    @property
    def stages(self) -> Woven:
        assert isinstance(self.model.stages, Woven)
        return self.model.stages

    def advance(self, tokens: Tensor) -> Tensor:
        """Logits (batch, num_codes + 1) of the next token after new tokens (batch, new)."""
        states = []
        for row, reader, new in zip(self.rows, self.readers, tokens.tolist(), strict=False):
            found = [reader.state()] if not self.cache.length else []
            for token in new:
                row.push(token)
                found.append(reader.state())
            states.append(found)
        known = torch.tensor(states * self.copies, device=tokens.device)
        x = self.model.embedding(tokens)
        if not self.cache.length:
            x = torch.cat([self.start[:, None], x], dim=1)
        x = x + self.stages.state_vectors(known) + self.face_count[:, None]
        vectors = self.stages.transformer.step(x, self.cache)[:, -1]
        return self.model.token_logits(vectors, known[:, -1])

    def select(self, indices: Tensor) -> None:
        """Keep only these rows of the batch."""
        kept: Sequence[int] = indices[: len(indices) // self.copies].tolist()
        self.rows, self.readers = [self.rows[row] for row in kept], [self.readers[row] for row in kept]
        self.start, self.face_count = self.start[indices], self.face_count[indices]
        self.cache.select(indices)

    def legal(self, tokens: Tensor) -> Tensor:
        """The legal next tokens (batch, num_codes + 1) after tokens (batch, length), which `advance` has seen."""
        ended = (tokens[:, -1:] == self.model.end_id).any(1).tolist()
        for row, has_ended in zip(self.rows, ended, strict=True):
            row.ended |= has_ended
        return torch.from_numpy(np.stack([row.legal() for row in self.rows])).to(tokens.device)
