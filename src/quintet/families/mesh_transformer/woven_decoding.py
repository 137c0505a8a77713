"""`WovenDecoding`: KV-cached decoding of woven meshes, each with its automaton, from all tokens or a sliding window.

With a window of N tokens, the next token is predicted from the tokens of the window, at most N - 1. When it is full, it
begins anew, as in training: with the last N // 2 tokens, their states in the full mesh, and the start embedding of a
row from the middle of a mesh. Their keys and values are computed in one pass. So a token takes the same time and memory
however long the mesh is, besides the automaton, which knows the whole mesh.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from quintet.families.mesh_transformer.woven import Woven
from quintet.families.mesh_transformer.woven_grammar import WovenRow
from quintet.families.mesh_transformer.woven_states import StateReader
from quintet.nn.attention import KVCache
from quintet.sampling.guidance import Conditioning

if TYPE_CHECKING:
    from quintet.families.mesh_transformer.model import MeshTransformer

State = list[int]


def window_start(length: int, window: int | None) -> int:
    """The first token of the window in which the token behind `length` tokens is predicted.

    It depends on the length alone, so that a result does not depend on the prompts of other rows.
    """
    if window is None or length < window:
        return 0
    kept = window // 2
    return (length - kept) // (window - kept) * (window - kept)


class _Row:
    """A row: its automaton, and its last tokens, each with the state behind it."""

    def __init__(self, automaton: WovenRow, window: int | None) -> None:
        self.automaton = automaton
        self.reader = StateReader(automaton.walk)
        self.recent: deque[tuple[int, State]] = deque(maxlen=window or 0)

    def push(self, tokens: Sequence[int]) -> list[State]:
        """Append tokens; returns the state behind each."""
        found = []
        for token in tokens:
            self.automaton.push(token)
            found.append(self.reader.state())
            self.recent.append((token, found[-1]))
        return found


class WovenDecoding:
    """The automata are on the CPU, so a GPU is waited for at every token."""

    def __init__(
        self, model: MeshTransformer, max_faces: int, *, holes: bool, is_guided: bool, window: int | None = None
    ) -> None:
        self.model = model
        self.copies = 2 if is_guided else 1
        self.max_faces, self.holes = max_faces, holes
        self.window = window
        self.rows: list[_Row] = []

    def begin(self, conditioning: Conditioning, batch: int) -> WovenDecoding:
        """The start of a batch, for `sampling/autoregressive.py`; of a guided one both halves have the same rows."""
        stages, limit = self.stages, self.model.config.max_tokens(self.max_faces)
        count = batch // self.copies
        self.rows = [_Row(WovenRow(stages.bins, self.max_faces, limit, self.holes), self.window) for _ in range(count)]
        self.length = self.first = 0  # the number of tokens, and the first one of the window
        self.start, self.face_count, context, context_mask = self.model.begin_rows(conditioning, batch)
        longest = min(self.window or limit + 1, limit + 1)
        self.cache: KVCache = stages.transformer.start(batch, longest, context, context_mask)
        return self

    @property
    def stages(self) -> Woven:
        assert isinstance(self.model.stages, Woven)
        return self.model.stages

    def advance(self, tokens: Tensor) -> Tensor:
        """Logits (batch, num_codes + 1) of the next token after new tokens (batch, new)."""
        before = [[row.reader.state()] if not self.cache.length else [] for row in self.rows]
        found = [row.push(new) for row, new in zip(self.rows, tokens.tolist(), strict=False)]
        states = [[*first, *new] for first, new in zip(before, found, strict=True)]
        self.length += tokens.shape[1]
        first = window_start(self.length, self.window)
        if first > self.first:
            self.first = first
            tokens, states = self._restart(self.length - first)
        known = torch.tensor(states * self.copies, device=tokens.device)
        x = self.model.embedding(tokens)
        if not self.cache.length:
            x = torch.cat([self.start[:, None], x], dim=1)
        x = x + self.stages.state_vectors(known) + self.face_count[:, None]
        vectors = self.stages.transformer.step(x, self.cache)[:, -1]
        return self.model.token_logits(vectors, known[:, -1])

    def _restart(self, count: int) -> tuple[Tensor, list[list[State]]]:
        """Begin a window with the last `count` tokens (batch, count); their states, (rows, count + 1)."""
        self.cache.rewind()
        device = self.start.device
        self.start = self.model.starts(torch.ones(len(self.start), dtype=torch.int64, device=device))
        recent = [[*row.recent][-count - 1 :] for row in self.rows]
        tokens = [[token for token, _ in pairs[1:]] for pairs in recent]
        return torch.tensor(tokens * self.copies, device=device), [[state for _, state in pairs] for pairs in recent]

    def select(self, indices: Tensor) -> None:
        """Keep only these rows of the batch."""
        kept: Sequence[int] = indices[: len(indices) // self.copies].tolist()
        self.rows = [self.rows[row] for row in kept]
        self.start, self.face_count = self.start[indices], self.face_count[indices]
        self.cache.select(indices)

    def legal(self, tokens: Tensor) -> Tensor:
        """The legal next tokens (batch, num_codes + 1) after tokens (batch, length), which `advance` has seen."""
        ended = (tokens[:, -1:] == self.model.end_id).any(1).tolist()
        automata = [row.automaton for row in self.rows]
        for automaton, has_ended in zip(automata, ended, strict=True):
            automaton.ended |= has_ended
        return torch.from_numpy(np.stack([automaton.legal() for automaton in automata])).to(tokens.device)
