"""Grammars for constrained decoding: which tokens may come next in the sequence of a mesh.

`whole_faces` holds for the codes of any tokenizer: a mesh has at least one face, and ends after a complete one.

`CanonicalCoordinates` is for quantized coordinates, nine per face: z, y and x of three vertices. In canonical order
each face starts with its lowest vertex, and faces are distinct and sorted, all by (z, y, x). With a vertex as one
index, z * bins^2 + y * bins + x, the vertices that may come next are a range of indices; in addition the third vertex
must not be collinear with the first two. A token is legal if some legal vertex starts with it, and a vertex is legal
if some legal face starts with it, so that decoding never reaches a dead end. An earlier face with the opposite
winding is not legal, unless only its last token is left and there is no other legal one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COORDINATES = 9
"""Tokens of a triangle."""


def whole_faces(tokens: Tensor, tokens_per_face: int, num_codes: int) -> Tensor:
    """Legal tokens (batch, num_codes + 1) after tokens (batch, length): any code, and the end token `num_codes`
    after one or more complete faces."""
    legal = torch.ones(len(tokens), num_codes + 1, dtype=torch.bool, device=tokens.device)
    length = tokens.shape[1]
    legal[:, num_codes] = length > 0 and length % tokens_per_face == 0
    return legal


@dataclass(frozen=True)
class CanonicalCoordinates:
    """Tokens are bin indices below `bins`; `bins` is the end token."""

    bins: int

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ValueError(f"a triangle needs at least 2 bins, not {self.bins}")

    def __call__(self, tokens: Tensor) -> Tensor:
        """Legal next tokens (batch, bins + 1) after tokens (batch, length)."""
        legal = whole_faces(tokens, COORDINATES, self.bins)
        done = tokens.shape[1] % COORDINATES
        started = tokens[:, tokens.shape[1] - done :]
        vertices = self._indices(started[:, : done - done % 3])
        lowest, highest = self._vertex_range(vertices, self._face_before(tokens, done))

        # The first and the last vertex of that range that starts with the tokens so far and each possible next token.
        size = self.bins ** (2 - done % 3)
        prefix = started[:, done - done % 3 :]
        base = sum(
            (prefix[:, at] * self.bins ** (2 - at) for at in range(prefix.shape[1])), lowest.new_zeros(len(lowest))
        )
        firsts = base[:, None] + size * torch.arange(self.bins, device=tokens.device)
        lasts = (firsts + size - 1).minimum(highest[:, None])
        firsts = firsts.maximum(lowest[:, None])
        fits = firsts <= lasts
        if vertices.shape[1] == 2:
            # If these three are collinear with the edge, so is everything between them: two adjacent indices are
            # either in one row of x, or so far apart in space that no third vertex is on their line.
            ends = torch.stack([firsts, (firsts + 1).minimum(lasts), lasts], dim=-1)
            fits &= ~self._is_collinear(vertices, ends.flatten(1)).view_as(ends).all(-1)
        if done == COORDINATES - 1:
            new = fits & ~self._is_flipped(tokens[:, :-done], vertices, firsts)
            fits = torch.where(new.any(1, keepdim=True), new, fits)
        # Only a prompt that violates the grammar leaves no legal token; then all codes are legal until the next face.
        legal[:, : self.bins] = fits | ~(fits.any(1) | legal[:, self.bins])[:, None]
        return legal

    def _vertex_range(self, vertices: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """The lowest and highest index (batch,) of the next vertex of the face, given the face before it."""
        last = self.bins**3 - 1
        if before is None:
            before = vertices.new_full((len(vertices), 3), -1)
        zero, one, two = before.unbind(1)
        # Whether a later third vertex exists for the first two vertices of the face before.
        corner = vertices.new_full((len(vertices), 1), last)
        more = (two < last - 1) | ((two == last - 1) & ~self._is_collinear(before[:, :2], corner)[:, 0])
        count = vertices.shape[1]
        if count == 0:
            # All vertices of the last row of x are collinear.
            has_later = (one < last) | more
            return torch.where(has_later, zero, zero + 1).clamp(min=0), torch.full_like(zero, last - self.bins)
        lowest = vertices[:, 0] + 1
        if count == 1:
            same = vertices[:, 0] == zero
            after = torch.where(more, one, one + 1)
        else:
            same = (vertices == before[:, :2]).all(1)
            after = two + 1
        return torch.where(same, lowest.maximum(after), lowest), torch.full_like(lowest, last)

    def _is_flipped(self, tokens: Tensor, two: Tensor, thirds: Tensor) -> Tensor:
        """Which of `thirds` (batch, bins) would complete two vertices to an earlier face with opposite winding."""
        zero, one, last = (self._indices(tokens)[:, at::3] for at in range(3))
        same = (zero == two[:, :1]) & (last == two[:, 1:])
        return (thirds[:, :, None] == one.masked_fill(~same, -1)[:, None]).any(-1)

    def _face_before(self, tokens: Tensor, done: int) -> Tensor | None:
        """The vertices (batch, 3) of the last complete face; None if there is none."""
        end = tokens.shape[1] - done
        return self._indices(tokens[:, end - COORDINATES : end]) if end else None

    def _indices(self, tokens: Tensor) -> Tensor:
        """Vertex indices (batch, vertices) of tokens (batch, 3 * vertices)."""
        z, y, x = (tokens[:, at::3] for at in range(3))
        return (z * self.bins + y) * self.bins + x

    def _is_collinear(self, two: Tensor, others: Tensor) -> Tensor:
        """Which of `others` (batch, vertices) lie on the line through two vertices (batch, 2)."""
        first, second = self._coordinates(two).unbind(1)
        along = (second - first)[:, None]
        away = self._coordinates(others) - first[:, None]
        product: Tensor = torch.linalg.cross(along.expand_as(away), away)
        return (product == 0).all(-1)

    def _coordinates(self, indices: Tensor) -> Tensor:
        """Coordinates (..., 3), z, y and x, of vertex indices (...)."""
        return torch.stack([indices // self.bins**2, indices // self.bins % self.bins, indices % self.bins], dim=-1)
