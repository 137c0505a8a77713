"""`Woven`: the transformer over the tokens of woven meshes, which sees the state of their automaton at every position.

Each position is the previous token and the state in which the next one is predicted. Coordinates often repeat one of a
vertex around the gate, so the logits of these bins get scores of their own (a copy mechanism, as in pointer networks).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from quintet.families.mesh_transformer.config import MeshTransformerModelConfig
from quintet.families.mesh_transformer.stages import Positions, text_transformer
from quintet.families.mesh_transformer.woven_states import COORDINATES, COUNTS, VERTICES, read_row
from quintet.media.mesh_weaving import NUM_OPERATIONS
from quintet.nn.attention import MAX_BF16_LENGTH
from quintet.nn.positions import EMBEDDING_SCALE, waves

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
