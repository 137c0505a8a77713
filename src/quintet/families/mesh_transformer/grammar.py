"""Owns which token may come next in the row of a mesh: the grammars that generation can be held to.

`whole_faces` is what any tokenizer's codes keep: a mesh has a face, and ends after a whole one.

`CanonicalCoordinates` is for quantised coordinates, nine a face: three vertices of z, y and x. Faces in canonical order
begin with their lowest vertex, are all different, and each comes after the one before it, all by the order of
(z, y, x). Written as one number, z * bins^2 + y * bins + x, vertices are a line from 0 to the last, and what may come
next is a stretch of it; the third vertex besides must not lie on the line through the first two in space. A token
may come if some vertex that begins with it may, and a vertex if some face that begins with it may, so that a row
never comes to a place from which there is no way on. An earlier face does not come again wound the other way, unless
all that is left of it is its last token and there is no other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COORDINATES = 9
"""Tokens of a triangle."""


def whole_faces(tokens: Tensor, tokens_per_face: int, num_codes: int) -> Tensor:
    """Any code anywhere; the end token, which is `num_codes`, after one whole face or more."""
    legal = torch.ones(len(tokens), num_codes + 1, dtype=torch.bool, device=tokens.device)
    length = tokens.shape[1]
    legal[:, num_codes] = length > 0 and length % tokens_per_face == 0
    return legal


@dataclass(frozen=True)
class CanonicalCoordinates:
    """Tokens are the numbers of bins, `bins` of them, and `bins` itself is the end token."""

    bins: int

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ValueError(f"{self.bins} bins leave no room for a triangle")

    def __call__(self, tokens: Tensor) -> Tensor:
        """(batch, tokens) so far to (batch, bins + 1), which may come next."""
        legal = whole_faces(tokens, COORDINATES, self.bins)
        done = tokens.shape[1] % COORDINATES
        started = tokens[:, tokens.shape[1] - done :]
        vertices = self._numbers(started[:, : done - done % 3])
        lowest, highest = self._stretch(vertices, self._face_before(tokens, done))

        # The first and the last vertex of that stretch that begins with what is there and with each of the tokens.
        size = self.bins ** (2 - done % 3)
        begun = started[:, done - done % 3 :]
        base = sum(
            (begun[:, at] * self.bins ** (2 - at) for at in range(begun.shape[1])), lowest.new_zeros(len(lowest))
        )
        firsts = base[:, None] + size * torch.arange(self.bins, device=tokens.device)
        lasts = (firsts + size - 1).minimum(highest[:, None])
        firsts = firsts.maximum(lowest[:, None])
        fits = firsts <= lasts
        if vertices.shape[1] == 2:
            # If these three lie on one line in space, then so does all between them: two neighbours are either in
            # one row of x, or so far apart in space that no third vertex is on their line.
            ends = torch.stack([firsts, (firsts + 1).minimum(lasts), lasts], dim=-1)
            fits &= ~self._on_line(vertices, ends.flatten(1)).view_as(ends).all(-1)
        if done == COORDINATES - 1:
            new = fits & ~self._turned_over(tokens[:, :-done], vertices, firsts)
            fits = torch.where(new.any(1, keepdim=True), new, fits)
        # Only a prompt that breaks the grammar leaves nothing; such a row is free until its next face.
        legal[:, : self.bins] = fits | ~(fits.any(1) | legal[:, self.bins])[:, None]
        return legal

    def _stretch(self, vertices: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """The lowest and the highest vertex that may follow those of the face, given the face before it."""
        last = self.bins**3 - 1
        if before is None:
            before = vertices.new_full((len(vertices), 3), -1)
        zero, one, two = before.unbind(1)
        # After its own two vertices, the face before could have gone on, if not to the very last vertex of all.
        corner = vertices.new_full((len(vertices), 1), last)
        more = (two < last - 1) | ((two == last - 1) & ~self._on_line(before[:, :2], corner)[:, 0])
        number = vertices.shape[1]
        if number == 0:
            # In the last row of x there are no three vertices that are not on one line.
            goes_on = (one < last) | more
            return torch.where(goes_on, zero, zero + 1).clamp(min=0), torch.full_like(zero, last - self.bins)
        lowest = vertices[:, 0] + 1
        if number == 1:
            same = vertices[:, 0] == zero
            after = torch.where(more, one, one + 1)
        else:
            same = (vertices == before[:, :2]).all(1)
            after = two + 1
        return torch.where(same, lowest.maximum(after), lowest), torch.full_like(lowest, last)

    def _turned_over(self, tokens: Tensor, two: Tensor, thirds: Tensor) -> Tensor:
        """Which of `thirds` (batch, bins) would with two vertices make an earlier face, wound the other way."""
        zero, one, last = (self._numbers(tokens)[:, at::3] for at in range(3))
        same = (zero == two[:, :1]) & (last == two[:, 1:])
        return (thirds[:, :, None] == one.masked_fill(~same, -1)[:, None]).any(-1)

    def _face_before(self, tokens: Tensor, done: int) -> Tensor | None:
        end = tokens.shape[1] - done
        return self._numbers(tokens[:, end - COORDINATES : end]) if end else None

    def _numbers(self, tokens: Tensor) -> Tensor:
        """(batch, 3 * vertices) to (batch, vertices)."""
        z, y, x = (tokens[:, at::3] for at in range(3))
        return (z * self.bins + y) * self.bins + x

    def _on_line(self, two: Tensor, others: Tensor) -> Tensor:
        """Which of `others` (batch, many) lie on the line through two vertices (batch, 2)."""
        first, second = self._places(two).unbind(1)
        along = (second - first)[:, None]
        away = self._places(others) - first[:, None]
        product: Tensor = torch.linalg.cross(along.expand_as(away), away)
        return (product == 0).all(-1)

    def _places(self, numbers: Tensor) -> Tensor:
        """(..., 3) of z, y and x."""
        return torch.stack([numbers // self.bins**2, numbers // self.bins % self.bins, numbers % self.bins], dim=-1)
