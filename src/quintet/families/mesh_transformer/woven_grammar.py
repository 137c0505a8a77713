"""`WovenRow`: which tokens may come next in a woven mesh, updated token by token.

Every row that ends is a manifold mesh: vertices at different positions, faces with an area, no edge of more than two
faces, and, without holes, no open edge. Before the limits of faces or tokens are reached, only what closes the surface
is legal: a loop of n half-edges can always be closed by n faces, a fan around one new vertex (the apex). So a row ends
in time, unless it is not even given the four faces of a tetrahedron.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from quintet.media.mesh_surface import NONE, Vertex
from quintet.media.mesh_weaving import GATE, LINKED_VERTEX, NUMBER, Walk

Mask = npt.NDArray[np.bool_]

COMPONENT_FACES, COMPONENT_TOKENS = 4, 17
"""The smallest closed component, a tetrahedron, and the end token."""
VERTEX_TOKENS = 3
LINK_TOKENS = 6
JOIN_FACES = 8
"""Faces kept in reserve for each link between two loops: its vertices are in one loop twice, and one fan may not do."""


class WovenRow:
    """One row in decoding. `end_id` is the end token, the last one."""

    def __init__(self, bins: int, max_faces: int, max_tokens: int, holes: bool) -> None:
        self.walk = Walk(bins)
        self.bins = bins
        self.max_faces, self.max_tokens = max_faces, max_tokens
        self.holes = holes
        self.end_id = self.walk.words.size
        self.ended = False
        self._edges: set[tuple[Vertex, Vertex]] = set()
        self._rows: dict[tuple[int, int], set[int]] = {}  # the x of vertices by z and y
        self._num_vertices = self._num_faces = 0  # that are noted in `_edges` and `_rows`
        self._num_links = 0
        self._apex = NONE
        self._forced: list[int] = []

    def push(self, token: int) -> None:
        """Append a token; the end token, and any behind it, changes nothing."""
        if self.ended or token == self.end_id:
            self.ended = True
            return
        walk = self.walk
        self._forced = self._forced[1:]
        self._num_links += token == walk.words.link and walk.phase == GATE
        walk.push(token)
        surface = walk.surface
        for z, y, x in surface.positions[self._num_vertices :]:
            self._rows.setdefault((z, y), set()).add(x)
        for face in surface.faces[self._num_faces :]:
            corners = [surface.positions[vertex] for vertex in face]
            self._edges.update(itertools.permutations(corners, 2))
        self._num_vertices, self._num_faces = len(surface.positions), len(surface.faces)

    # --- the legal tokens -------------------------------------------------------------------------------------

    def legal(self) -> Mask:
        """Mask (num_codes + 1,) of the tokens that may come next; at least one is."""
        mask = np.zeros(self.end_id + 1, bool)
        phase, bins = self.walk.phase, self.bins
        if self.ended:
            mask[self.end_id] = True
        elif self._forced:
            mask[self._forced[0]] = True
        elif phase == GATE:
            self._at_gate(mask)
        elif phase == NUMBER:
            position = self.walk.partial
            mask[: min(len(self.walk.surface.at[position[0], position[1], position[2]]), bins - 1)] = True
        elif phase >= LINKED_VERTEX:
            known = self.walk.partial
            mask[[target[len(known)] for target in self._linkable() if list(target[: len(known)]) == known]] = True
        else:
            mask[:bins] = self._coordinates()
            if phase == 0:
                self._between_components(mask)
        if not mask.any():  # only on a tiny grid whose positions are taken
            mask[self.walk.words.hole if phase == GATE else slice(0, bins)] = True
        return mask

    def _between_components(self, mask: Mask) -> None:
        if not self.walk.surface.faces:
            return
        mask[self.end_id] = True
        if self._faces_left < COMPONENT_FACES or self._tokens_left < COMPONENT_TOKENS or self._is_crowded:
            mask[: self.bins] = False

    def _at_gate(self, mask: Mask) -> None:
        words = self.walk.words
        closing = self._closing()
        mask[closing] = True
        if self.holes:
            mask[words.hole] = True
        if self._has_room(VERTEX_TOKENS):
            mask[: self.bins] = self._coordinates()
            if self._has_room(LINK_TOKENS):
                mask[words.link] = next(self._linkable(), None) is not None
        elif not self.holes:
            self._close_loop(mask, closing)

    @property
    def _faces_left(self) -> int:
        return self.max_faces - len(self.walk.surface.faces)

    @property
    def _tokens_left(self) -> int:
        return self.max_tokens - self.walk.num_tokens

    @property
    def _is_crowded(self) -> bool:
        """Whether half of all positions are taken; else there is one for any face."""
        return 2 * len(self.walk.surface.positions) > self.bins**3

    def _has_room(self, tokens: int) -> bool:
        """Whether the surface can still be closed after a face with two open sides, written in so many tokens."""
        if self._is_crowded:
            return False
        num_open = self.walk.surface.num_open + 1
        if self.holes:
            return self._faces_left > 0 and self._tokens_left - tokens > num_open
        reserve = JOIN_FACES * self._num_links
        return self._faces_left - 1 >= num_open + reserve and self._tokens_left - tokens > 2 * (num_open + reserve)

    # --- vertices that are there --------------------------------------------------------------------------------

    def _closing(self) -> list[int]:
        """The operations at the gate that close more half-edges than they open."""
        surface, words = self.walk.surface, self.walk.words
        gate = surface.gate
        after, before = surface.succ[gate], surface.pred[gate]
        size = surface.loop_size(gate)
        if size < 3 or self._faces_left < 1:
            return []
        a, b = surface.first[gate], surface.first[after]
        x, y = surface.last_vertex(after), surface.first[before]
        found = []
        if size == 3:
            if surface.is_open[after] and surface.is_open[before] and self._is_face(gate, a, b, x):
                found.append(words.close)
            return found
        if surface.is_open[after] and self._is_face(gate, a, b, x) and not self._has_edge(a, x):
            found.append(words.next)
        if surface.is_open[before] and self._is_face(gate, a, b, y) and not self._has_edge(b, y):
            found.append(words.prev)
        return found

    def _is_face(self, gate: int, a: int, b: int, c: int) -> bool:
        """Whether a face has an area and is not the one on the other side of the gate."""
        positions, opposite = self.walk.surface.positions, self.walk.surface.opposite[gate]
        return positions[c] != positions[opposite] and not is_collinear(positions[a], positions[b], positions[c])

    def _has_edge(self, one: int, other: int) -> bool:
        positions = self.walk.surface.positions
        return (positions[one], positions[other]) in self._edges

    def _linkable(self) -> Iterator[Vertex]:
        """The positions of boundary vertices for a face at the gate with two new edges."""
        surface, edges = self.walk.surface, self._edges
        gate = surface.gate
        a, b = surface.positions[surface.first[gate]], surface.positions[surface.last_vertex(gate)]
        for c in reversed(surface.at):
            if c not in (a, b) and (a, c) not in edges and (b, c) not in edges and not is_collinear(a, b, c):
                yield c

    # --- new vertices -------------------------------------------------------------------------------------------

    def _coordinates(self) -> Mask:
        """The legal next coordinates (bins,) of a new vertex: a position that is free, and gives the face an area."""
        known, line = self.walk.partial, self._line()
        mask = np.ones(self.bins, bool)
        if len(known) == 2:
            z, y = known
            mask[list(self._rows.get((z, y), ())) + [x for _, _, x in self.walk.corners[-1:] if self._in_row(z, y)]] = (
                False
            )
            taken = self._collinear(z, y, line)
            mask[slice(None) if taken is None else taken] = False
        elif len(known) == 1:
            mask = self._rows_with_room(known[0], line)
        elif len(self.walk.surface.positions) + len(self.walk.corners) + self.bins + 1 >= self.bins**2:
            mask = np.array([bool(self._rows_with_room(z, line).any()) for z in range(self.bins)])
        return mask

    def _in_row(self, z: int, y: int) -> bool:
        """Whether the vertex before is in this row; those of an unfinished first face are not noted yet."""
        return bool(self.walk.corners) and self.walk.corners[-1][:2] == (z, y)

    def _rows_with_room(self, z: int, line: tuple[Vertex, Vertex] | None) -> Mask:
        """The y (bins,) of rows with a legal position at this z."""
        mask = np.ones(self.bins, bool)
        for y in range(self.bins):
            row = self._rows.get((z, y), set())
            if len(row) + 3 < self.bins and (line is None or line[0][:2] != (z, y)):
                continue
            taken = {*row, *(x for _, _, x in self.walk.corners if self._in_row(z, y))}
            on_line = self._collinear(z, y, line)
            mask[y] = on_line is not None and len(taken.union(on_line)) < self.bins
        return mask

    def _line(self) -> tuple[Vertex, Vertex] | None:
        """The edge to which the new vertex may not be collinear."""
        corners, surface = self.walk.corners, self.walk.surface
        if self.walk.phase >= GATE:
            gate = surface.gate
            return surface.positions[surface.first[gate]], surface.positions[surface.last_vertex(gate)]
        return (corners[0], corners[1]) if len(corners) == 2 else None

    def _collinear(self, z: int, y: int, line: tuple[Vertex, Vertex] | None) -> list[int] | None:
        """The x of this row that are on a line; None: all of them."""
        if line is None:
            return []
        (z0, y0, x0), (z1, y1, x1) = line
        dz, dy, dx = z1 - z0, y1 - y0, x1 - x0
        if dz == dy == 0:
            return None if (z, y) == (z0, y0) else []
        if dz * (y - y0) != dy * (z - z0):
            return []
        step, along = (dz, z - z0) if dz else (dy, y - y0)
        x, rest = divmod(dx * along, step)
        return [x0 + x] if not rest and 0 <= x0 + x < self.bins else []

    # --- closing in time ----------------------------------------------------------------------------------------

    def _close_loop(self, mask: Mask, closing: list[int]) -> None:
        """Allow only what closes the loop of the gate in as many faces as it has half-edges."""
        surface, words = self.walk.surface, self.walk.words
        gate = surface.gate
        mask[:] = False
        if surface.last_vertex(gate) == self._apex and words.prev in closing:
            mask[words.prev] = True
        elif closing:
            mask[closing] = True
        elif (apex := self._free_apex(gate)) is not None:
            self._apex = len(surface.positions)
            mask[apex[0]] = True
            self._forced = [*apex]
        else:
            mask[words.hole] = True

    def _free_apex(self, gate: int) -> Vertex | None:
        """A free position near the middle of the loop that is on the line of none of its edges."""
        surface = self.walk.surface
        corners = [surface.positions[surface.first[gate]]]
        here = surface.succ[gate]
        while here != gate:
            corners.append(surface.positions[surface.first[here]])
            here = surface.succ[here]
        lines = [*zip(corners, corners[1:] + corners[:1], strict=True)]
        middle = np.mean(corners, axis=0)
        for reach in range(self.bins):
            for around in itertools.product(range(-reach, reach + 1), repeat=3):
                if max(map(abs, around)) < reach:
                    continue
                z, y, x = (int(value) + step for value, step in zip(middle, around, strict=True))
                if min(z, y, x) < 0 or max(z, y, x) >= self.bins or x in self._rows.get((z, y), ()):
                    continue
                if not any(is_collinear(one, other, (z, y, x)) for one, other in lines):
                    return z, y, x
        return None


def is_collinear(a: Vertex, b: Vertex, c: Vertex) -> bool:
    z, y, x = b[0] - a[0], b[1] - a[1], b[2] - a[2]
    w, v, u = c[0] - a[0], c[1] - a[1], c[2] - a[2]
    return y * u == x * v and x * w == z * u and z * v == y * w
