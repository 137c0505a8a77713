"""`Surface`: a triangle mesh that is built face by face across its open boundary.

A boundary half-edge is a side of an existing face where another face can be attached. It is directed as in the face to
come, a -> b for a face (a, b, c). Boundary half-edges form loops, which are linked lists. The gate is the half-edge
where the next face is attached. The operations at the gate replace half-edges in constant time:

    new(c)     a face with a new vertex c
    next()     a face with the next vertex of the loop: b -> c is closed too
    prev()     a face with the previous vertex of the loop: c -> a is closed too
    close()    a face that closes a loop of three
    link(t)    a face with the first vertex of a boundary half-edge t of any loop, which splits a loop or joins two
    hole()     no face: the edge stays open for ever

Every surface that is built in this way is an oriented manifold; it is closed if no half-edge is open and there are no
holes.
"""

from __future__ import annotations

Vertex = tuple[int, int, int]
"""The bins of a vertex: z, y, x."""

NONE = -1


class Surface:
    """Vertices, faces and boundary loops; half-edges, vertices and faces are numbered in the order they are made."""

    __slots__ = ("_stack", "at", "faces", "first", "is_open", "num_open", "opposite", "positions", "pred", "succ")

    def __init__(self) -> None:
        self.positions: list[Vertex] = []
        self.faces: list[tuple[int, int, int]] = []
        # Of each half-edge: its first vertex, its neighbours in the loop, and the third vertex of the existing face.
        self.first: list[int] = []
        self.succ: list[int] = []
        self.pred: list[int] = []
        self.opposite: list[int] = []
        self.is_open: list[bool] = []
        self.num_open = 0
        self.at: dict[Vertex, dict[int, None]] = {}
        """The boundary half-edges, including holes, that start at a position, in the order of their creation."""
        self._stack: list[int] = []

    @property
    def gate(self) -> int:
        """The youngest open half-edge; `NONE` if there is none."""
        stack, is_open = self._stack, self.is_open
        while stack and not is_open[stack[-1]]:
            stack.pop()
        return stack[-1] if stack else NONE

    def last_vertex(self, half_edge: int) -> int:
        return self.first[self.succ[half_edge]]

    def loop_size(self, half_edge: int) -> int:
        """The number of half-edges of a loop; 5 if it is larger than 4."""
        here, size = self.succ[half_edge], 1
        while here != half_edge and size < 5:
            here, size = self.succ[here], size + 1
        return size

    # --- operations -------------------------------------------------------------------------------------------

    def seed(self, a: Vertex, b: Vertex, c: Vertex) -> None:
        """The first face of a component, with three new vertices."""
        one = len(self.positions)
        self.positions += [a, b, c]
        self.faces.append((one, one + 1, one + 2))
        # The loop around a face runs against its winding.
        half_edges = [self._add(one + 1, one + 2), self._add(one, one + 1), self._add(one + 2, one)]
        for here, after in zip(half_edges, half_edges[1:] + half_edges[:1], strict=True):
            self._join(here, after)

    def new(self, position: Vertex) -> None:
        self.positions.append(position)
        self._attach(self.gate, len(self.positions) - 1)

    def next(self) -> None:
        gate = self.gate
        after = self.succ[gate]
        beyond = self.succ[after]
        a, b, c = self.first[gate], self.first[after], self.first[beyond]
        self.faces.append((a, b, c))
        before = self.pred[gate]
        self._remove(gate)
        self._remove(after)
        side = self._add(a, b)
        self._join(before, side)
        self._join(side, beyond)

    def prev(self) -> None:
        gate = self.gate
        before, after = self.pred[gate], self.succ[gate]
        a, b, c = self.first[gate], self.first[after], self.first[before]
        self.faces.append((a, b, c))
        beyond = self.pred[before]
        self._remove(gate)
        self._remove(before)
        side = self._add(c, a)
        self._join(beyond, side)
        self._join(side, after)

    def close(self) -> None:
        gate = self.gate
        before, after = self.pred[gate], self.succ[gate]
        self.faces.append((self.first[gate], self.first[after], self.first[before]))
        for each in (gate, after, before):
            self._remove(each)

    def link(self, target: int) -> None:
        self._attach(self.gate, self.first[target], target, self.pred[target])

    def hole(self) -> None:
        self.is_open[self.gate] = False
        self.num_open -= 1

    def _attach(self, gate: int, c: int, target: int | None = None, arriving: int | None = None) -> None:
        """A face at the gate with two open sides: a -> c, which leads to `target`, and c -> b, behind `arriving`.

        Without them, for a new vertex, one leads to the other.
        """
        before, after = self.pred[gate], self.succ[gate]
        a, b = self.first[gate], self.first[after]
        self.faces.append((a, b, c))
        self._remove(gate)
        right, left = self._add(c, a), self._add(a, b)  # the left one is the next gate: faces turn around a
        self._join(before, left)
        self._join(left, right if target is None else target)
        self._join(left if arriving is None else arriving, right)
        self._join(right, after)

    # --- half-edges -------------------------------------------------------------------------------------------

    def _add(self, first: int, opposite: int) -> int:
        """A new open half-edge, the gate."""
        half_edge = len(self.first)
        self.first.append(first)
        self.opposite.append(opposite)
        self.succ.append(NONE)
        self.pred.append(NONE)
        self.is_open.append(True)
        self.num_open += 1
        self.at.setdefault(self.positions[first], {})[half_edge] = None
        self._stack.append(half_edge)
        return half_edge

    def _remove(self, half_edge: int) -> None:
        self.is_open[half_edge] = False
        self.num_open -= 1
        position = self.positions[self.first[half_edge]]
        there = self.at[position]
        del there[half_edge]
        if not there:
            del self.at[position]

    def _join(self, here: int, after: int) -> None:
        self.succ[here] = after
        self.pred[after] = here
