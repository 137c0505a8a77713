"""Weaving: triangle meshes as rows of tokens in which each vertex is written once.

A mesh is a walk over its faces, see `Surface`. At the gate, the next tokens say how the face is closed: the three
coordinates of a new vertex (z, y, x), or one token for a vertex that is there, or that the edge stays open. Components
follow each other without a separator: where nothing is open, coordinates begin a face of three new vertices. Nothing is
lost: `unweave` returns the same faces, with the same winding.

Non-manifold edges and vertices are split into manifold pieces, and rejoined because their positions are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quintet.media.mesh_manifold import NONE, after, before, twins, umbrellas
from quintet.media.mesh_surface import Surface, Vertex
from quintet.media.mesh_text import Faces

NUM_OPERATIONS = 5


@dataclass(frozen=True)
class Vocabulary:
    """The tokens: `bins` coordinates, then the operations."""

    bins: int

    @property
    def next(self) -> int:
        return self.bins

    @property
    def prev(self) -> int:
        return self.bins + 1

    @property
    def close(self) -> int:
        return self.bins + 2

    @property
    def link(self) -> int:
        """Followed by the position of a boundary vertex. If several half-edges start there, their number follows:
        as often as possible `bins` - 1, and the rest."""
        return self.bins + 3

    @property
    def hole(self) -> int:
        return self.bins + 4

    @property
    def size(self) -> int:
        return self.bins + NUM_OPERATIONS


def number_tokens(number: int, bins: int) -> list[int]:
    """The tokens of the number of a half-edge among those at one position."""
    whole, rest = divmod(number, bins - 1)
    return [bins - 1] * whole + [rest]


def weave(positions: Faces, faces: Faces, bins: int) -> list[int]:
    """The tokens of a mesh with positions (n, 3) in bins, x, y and z, and faces (m, 3) of distinct positions."""
    keys = (positions[:, 2] * bins + positions[:, 1]) * bins + positions[:, 0]
    faces = _sorted_faces(faces, keys)
    return _Weaver(positions[faces], keys[faces], bins).tokens


def _sorted_faces(faces: Faces, keys: Faces) -> Faces:
    """Each face from its lowest position, and the faces in order, so that tokens do not depend on the file's order."""
    ranked = keys[faces]
    turned = (ranked.argmin(axis=1)[:, None] + np.arange(3)) % 3
    faces, ranked = np.take_along_axis(faces, turned, axis=1), np.take_along_axis(ranked, turned, axis=1)
    return faces[np.lexsort(ranked.T[::-1])]


class _Weaver:
    """Walks over the faces of a mesh, and writes the tokens."""

    def __init__(self, corners: Faces, keys: Faces, bins: int) -> None:
        self.bins, self.words = bins, Vocabulary(bins)
        twin = twins(keys, corners)
        self.twin: list[int] = twin.tolist()
        self.positions: list[Vertex] = list(map(tuple, corners.reshape(-1, 3)[:, ::-1].tolist()))
        self.umbrella = umbrellas(self.twin)
        self.is_seen = [False] * (max(self.umbrella, default=NONE) + 1)
        # The boundary half-edge at which each half-edge of the mesh will be attached, and the reverse.
        self.boundary: list[int] = [NONE] * len(self.twin)
        self.half_edges: list[int] = []
        self.surface = Surface()
        self.tokens: list[int] = []
        is_done = self.is_done = [False] * len(corners)
        for face in range(len(corners)):
            if not is_done[face]:
                self._component(face)

    def _component(self, face: int) -> None:
        first, surface = 3 * face, self.surface
        corners = self.positions[first : first + 3]
        for number, position in enumerate(corners):
            self.tokens += position
            self.is_seen[self.umbrella[first + number]] = True
        surface.seed(corners[0], corners[1], corners[2])
        self._attached(face, (first, first + 2, first + 1))
        while (gate := surface.gate) != NONE:
            self._step(gate)

    def _step(self, gate: int) -> None:
        half_edge, surface, words = self.half_edges[gate], self.surface, self.words
        if half_edge == NONE:
            self.tokens.append(words.hole)
            surface.hole()
            return
        beyond, closing = after(half_edge), before(half_edge)
        is_next = self.half_edges[surface.succ[gate]] == beyond
        is_prev = self.half_edges[surface.pred[gate]] == closing
        face = half_edge // 3
        if is_next and is_prev:
            self.tokens.append(words.close)
            surface.close()
            self._attached(face, ())
        elif is_next:
            self.tokens.append(words.next)
            surface.next()
            self._attached(face, (closing,))
        elif is_prev:
            self.tokens.append(words.prev)
            surface.prev()
            self._attached(face, (beyond,))
        elif self.is_seen[self.umbrella[closing]]:
            self._link(closing)
            self._attached(face, (beyond, closing))
        else:
            self.is_seen[self.umbrella[closing]] = True
            self.tokens += self.positions[closing]
            surface.new(self.positions[closing])
            self._attached(face, (beyond, closing))

    def _link(self, corner: int) -> None:
        position, surface = self.positions[corner], self.surface
        target = self._target(corner)
        there = surface.at[position]
        self.tokens += (self.words.link, *position)
        if len(there) > 1:
            self.tokens += number_tokens(list(there).index(target), self.bins)
        surface.link(target)

    def _target(self, corner: int) -> int:
        """The boundary half-edge that starts at a corner, on the side of the corner's face."""
        here = corner
        while (other := self.twin[here]) != NONE:  # rotate until the next face is on the surface
            if self.boundary[here] != NONE:
                return self.boundary[here]
            here = after(other)
        here = before(corner)
        while self.boundary[here] == NONE:  # the other way round
            here = before(self.twin[here])
        return self.surface.succ[self.boundary[here]]

    def _attached(self, face: int, sides: Sequence[int]) -> None:
        """Note that a face is on the surface, and which of its half-edges the new boundary half-edges are twins of."""
        self.is_done[face] = True
        for side in sides:
            other = self.twin[side]
            if other != NONE:
                self.boundary[other] = len(self.half_edges)
            self.half_edges.append(other)


# --- reading ------------------------------------------------------------------------------------------------------

GATE, NEW_VERTEX, LINKED_VERTEX, NUMBER = 9, 9, 12, 15
"""Phases from `GATE` on: the next token is an operation or the first coordinate of a new vertex; its other coordinates;
the coordinates of a linked vertex; and its number. Below are the nine coordinates of the first face of a component."""
NUM_PHASES = 16


class Walk:
    """The automaton that reads tokens one by one; `surface` is what they have built so far."""

    __slots__ = ("bins", "corners", "num_tokens", "partial", "phase", "rank", "surface", "words")

    def __init__(self, bins: int) -> None:
        self.bins = bins
        self.words = Vocabulary(bins)
        self.surface = Surface()
        self.phase = 0
        self.corners: list[Vertex] = []  # of an unfinished first face
        self.partial: list[int] = []  # coordinates of an unfinished vertex
        self.rank = 0
        self.num_tokens = 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing is open and no face is unfinished."""
        return self.phase == 0 and bool(self.surface.faces)

    def push(self, token: int) -> None:
        """Read the next token. ValueError if it cannot come here."""
        phase = self.phase
        self.num_tokens += 1
        if phase == NUMBER:
            self._number(token)
        elif 0 <= token < self.bins:
            self._coordinate(token)
        elif phase == GATE:
            self._operation(token)
        else:
            raise ValueError(f"token {token} is not a coordinate")

    def _coordinate(self, token: int) -> None:
        self.partial.append(token)
        self.phase += 1
        if len(self.partial) < 3:
            return
        position = (self.partial[0], self.partial[1], self.partial[2])
        self.partial = []
        if self.phase <= GATE:
            self.corners.append(position)
            if self.phase == GATE:
                self.surface.seed(*self.corners)
                self.corners = []
        elif self.phase == LINKED_VERTEX:
            self.surface.new(position)
            self.phase = GATE
        else:
            self._position_of_link(position)

    def _position_of_link(self, position: Vertex) -> None:
        there = self.surface.at.get(position)
        if not there:
            raise ValueError(f"no boundary vertex is at {position}")
        if len(there) > 1:
            self.phase, self.partial, self.rank = NUMBER, list(position), 0
        else:
            self._link(position, 0)

    def _number(self, token: int) -> None:
        self.rank += token
        if token != self.bins - 1:
            position, self.partial = (self.partial[0], self.partial[1], self.partial[2]), []
            self._link(position, self.rank)

    def _link(self, position: Vertex, rank: int) -> None:
        there = list(self.surface.at[position])
        if not 0 <= rank < len(there):
            raise ValueError(f"there is no half-edge {rank} at {position}")
        self.surface.link(there[rank])
        self.phase = GATE

    def _operation(self, token: int) -> None:
        surface, words = self.surface, self.words
        gate = surface.gate
        size = surface.loop_size(gate)
        next_open, prev_open = surface.is_open[surface.succ[gate]], surface.is_open[surface.pred[gate]]
        if token == words.link:
            self.phase = LINKED_VERTEX
            return
        if token == words.hole:
            surface.hole()
        elif token == words.close and size == 3 and next_open and prev_open:
            surface.close()
        elif token == words.next and size > 2 and next_open:
            surface.next()
        elif token == words.prev and size > 2 and prev_open:
            surface.prev()
        else:
            raise ValueError(f"operation {token} cannot be used here")
        if not surface.num_open:
            self.phase = 0


def unweave(tokens: Sequence[int], bins: int) -> tuple[Faces, Faces]:
    """Positions (n, 3) in bins, x, y and z, and faces (m, 3) of the complete faces of a row of tokens.

    Vertices at one position are one vertex. ValueError if a token cannot stand where it does.
    """
    walk = Walk(bins)
    for token in tokens:
        walk.push(token)
    return merged(walk.surface)


def merged(surface: Surface) -> tuple[Faces, Faces]:
    """The positions (n, 3), x, y and z, and faces (m, 3) of a surface, without vertices at equal positions."""
    positions = np.array(surface.positions, np.int64).reshape(-1, 3)[:, ::-1]
    faces = np.array(surface.faces, np.int64).reshape(-1, 3)
    distinct, numbers = np.unique(positions, axis=0, return_inverse=True)
    return distinct, numbers.reshape(-1)[faces]
