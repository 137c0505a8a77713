"""The state of the automaton of a woven mesh as numbers that the model sees at every position.

They follow from the tokens before, so they tell the model nothing new, but it does not have to work them out: at which
edge the next face is attached, and what is around it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quintet.media.mesh_surface import NONE
from quintet.media.mesh_weaving import GATE, NUM_PHASES, Walk

States = npt.NDArray[np.int64]

COUNTS = (NUM_PHASES, 6, 4, 32, 32, 16)
"""Numbers of values of the phase, the size of the loop, which neighbours of the gate are holes, the numbers of open
half-edges and of vertices of the component, and the number of components; the largest stands for all above it."""
VERTICES = 8
"""The two vertices of the gate, the third one of the face behind it, the next and the previous one of the loop, those
behind them, and the fourth corner of the parallelogram with the face behind the gate."""
COORDINATES = 3 * VERTICES + 2
"""Their coordinates, and those of the unfinished vertex; each is 1 more than its bin, and 0 if there is none."""
FEATURES = len(COUNTS) + COORDINATES


class StateReader:
    """Reads the tokens of a row, and knows the state (FEATURES,) in which the next one is predicted."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self._components = 0
        self._first_vertex = 0
        self._gate: list[int] = []
        self._known: tuple[int, int] = (NONE, NONE)

    def state(self) -> list[int]:
        walk = self.walk
        surface, phase = walk.surface, walk.phase
        if phase < GATE:
            self._components += phase == 0
            self._first_vertex = len(surface.positions)
            around = self._seed()
        else:
            known = (surface.gate, len(surface.faces))
            if known != self._known:
                self._known, self._gate = known, self._around_gate(known[0])
            around = self._gate
        partial = [value + 1 for value in walk.partial[:2]] if phase < NUM_PHASES - 1 else []
        return [phase, *around, *partial, *(0,) * (2 - len(partial))]

    def _seed(self) -> list[int]:
        counts = [0, 0, 0, 3 * len(self.walk.corners), min(self._components, COUNTS[5] - 1)]
        known = [value + 1 for corner in self.walk.corners for value in corner]
        return counts + known + [0] * (3 * VERTICES - len(known))

    def _around_gate(self, gate: int) -> list[int]:
        surface = self.walk.surface
        positions, first, is_open = surface.positions, surface.first, surface.is_open
        after, before = surface.succ[gate], surface.pred[gate]
        vertices = (first[gate], first[after], surface.opposite[gate], surface.last_vertex(after), first[before])
        beyond = (surface.last_vertex(surface.succ[after]), first[surface.pred[before]])
        a, b, c, x, y, x2, y2 = (positions[vertex] for vertex in (*vertices, *beyond))
        top = self.walk.bins - 1
        fourth = [min(max(a[axis] + b[axis] - c[axis], 0), top) for axis in range(3)]
        counts = [
            surface.loop_size(gate),
            2 * is_open[after] + is_open[before],
            min(surface.num_open, COUNTS[3] - 1),
            min(len(positions) - self._first_vertex, COUNTS[4] - 1),
            min(self._components, COUNTS[5] - 1),
        ]
        return counts + [value + 1 for vertex in (a, b, c, x, y, x2, y2, fourth) for value in vertex]


def read_row(tokens: Sequence[int], bins: int, start: int = 0, stop: int | None = None) -> tuple[States, int]:
    """The states (tokens + 1, FEATURES) in which each token, and the one behind the last, is predicted, and the number
    of faces. Of a long row, only the states of the tokens from `start` to before `stop` are returned."""
    walk = Walk(bins)
    reader = StateReader(walk)
    stop = len(tokens) if stop is None else stop
    states = [reader.state()]
    for number, token in enumerate(tokens, start=1):
        walk.push(token)
        # The reader counts components and their vertices before the first gate of each.
        if walk.phase < GATE or start <= number <= stop:
            states.append(reader.state())
        else:
            states.append(states[-1])
    return np.array(states[start : stop + 1], np.int64), len(walk.surface.faces)
