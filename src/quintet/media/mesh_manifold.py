"""Which sides of the faces of a mesh are joined, so that the surface is an oriented manifold.

Half-edge 3 f + i goes from corner i of face f to the next corner. Two half-edges between the same positions in opposite
directions can be twins. Where an edge has more than two faces, the two faces around each piece of solid matter are
joined, so that solids that touch in an edge stay closed. Faces of opposite orientation are not joined: a Moebius strip
is cut.
"""

from __future__ import annotations

import numpy as np

from quintet.media.mesh_text import Faces

NONE = -1


def twins(keys: Faces, positions: Faces) -> Faces:
    """The twin of each half-edge, (3 m,), or `NONE`.

    `keys` (m, 3) are one number for the position of each corner; `positions` (m, 3, 3) are the positions, integers.
    """
    starts, ends = keys.reshape(-1), np.roll(keys, -1, axis=1).reshape(-1)
    low, high = np.minimum(starts, ends), np.maximum(starts, ends)
    order = np.lexsort((starts > ends, high, low))
    low, high = low[order], high[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    bounds = np.flatnonzero(np.append(is_first, True))
    sizes = np.diff(bounds)
    found = np.full(len(starts), NONE, np.int64)
    pairs = bounds[:-1][sizes == 2]
    one, other = order[pairs], order[pairs + 1]
    opposed = starts[one] != starts[other]
    found[one[opposed]], found[other[opposed]] = other[opposed], one[opposed]
    for group in np.flatnonzero(sizes > 2).tolist():
        _join_around_edge(order[bounds[group] : bounds[group + 1]], starts, positions, found)
    return found


def _join_around_edge(half_edges: Faces, starts: Faces, positions: Faces, found: Faces) -> None:
    """Join the faces of one edge in pairs that enclose matter: sorted by their angle around the edge, they match like
    brackets."""
    corners = positions[half_edges // 3]
    rows, side = np.arange(len(half_edges)), half_edges % 3
    start, end, third = (corners[rows, (side + step) % 3].astype(np.float64) for step in range(3))
    is_forward = starts[half_edges] == starts[half_edges[0]]
    origin = start[0]
    axis = (end[0] - start[0]) / np.linalg.norm(end[0] - start[0])
    across = third - origin
    across -= (across @ axis)[:, None] * axis
    right = across[0] / np.linalg.norm(across[0])
    # Exactly equal directions of integer positions may differ by rounding.
    angles = np.round(np.arctan2(across @ np.cross(axis, right), across @ right) % (2 * np.pi), 9) % 6.283185307
    order = np.lexsort((~is_forward, angles))
    depth = np.cumsum(np.where(is_forward[order], -1, 1))
    order = np.roll(order, -(int(depth.argmin()) + 1))
    opened: list[int] = []
    for each in order.tolist():
        if not is_forward[each]:
            opened.append(each)
        elif opened:
            one, other = half_edges[opened.pop()], half_edges[each]
            found[one], found[other] = other, one


def umbrellas(twin: list[int]) -> list[int]:
    """A number for each corner, (3 m,): equal for the corners around one vertex that are connected by twins."""
    numbers = [NONE] * len(twin)
    count = 0
    for corner in range(len(twin)):
        if numbers[corner] != NONE:
            continue
        here = corner
        while here != NONE and numbers[here] == NONE:
            numbers[here] = count
            here = twin[before(here)]
        here = twin[corner]
        while here != NONE:
            here = after(here)
            if numbers[here] != NONE:
                break
            numbers[here] = count
            here = twin[here]
        count += 1
    return numbers


def after(half_edge: int) -> int:
    """The next half-edge of the same face."""
    return half_edge + 1 if half_edge % 3 != 2 else half_edge - 2


def before(half_edge: int) -> int:
    """The previous half-edge of the same face."""
    return half_edge - 1 if half_edge % 3 else half_edge + 2
