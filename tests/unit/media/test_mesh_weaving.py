"""Weaving: nothing of a mesh is lost, whatever its topology, and each vertex is written once."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.media.mesh import Mesh, canonical, clean, dequantise, edge_counts, normalise, quantise
from quintet.media.mesh_text import Faces
from quintet.media.mesh_weaving import Vocabulary, unweave, weave
from quintet.synthetic.solids import CLASSES, draw_solid

BINS = 32
WORDS = Vocabulary(BINS)

Corner = tuple[int, ...]


def as_set(positions: Faces, faces: Faces) -> list[tuple[Corner, ...]]:
    """The faces by the positions of their corners, with their winding, each from its lowest corner."""
    corners = [[tuple(corner) for corner in face] for face in positions[faces].tolist()]
    turned = [face.index(min(face)) for face in corners]
    return sorted(tuple(face[turn:] + face[:turn]) for face, turn in zip(corners, turned, strict=True))


def woven(positions: object, faces: object, bins: int = BINS) -> list[int]:
    """The tokens of a mesh, which must come back as it was."""
    points, corners = np.array(positions, np.int64), np.array(faces, np.int64)
    tokens = weave(points, corners, bins)
    assert as_set(*unweave(tokens, bins)) == as_set(points, corners)
    return tokens


def mesh_tokens(mesh: Mesh, bins: int = BINS) -> list[int]:
    mesh = canonical(clean(normalise(mesh), bins), bins)
    return woven(quantise(mesh.vertices, bins), mesh.faces, bins)


def box(low: tuple[int, int, int], size: int = 1) -> tuple[list[Corner], list[list[int]]]:
    """The corners and the twelve faces of a box, counter-clockwise from outside."""
    corners = [
        tuple(low[axis] + size * step[axis] for axis in range(3)) for step in itertools.product((0, 1), repeat=3)
    ]
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    return corners, [[a, b, c] for a, b, c, _ in quads] + [[a, c, d] for a, _, c, d in quads]


def joined(*parts: tuple[list[Corner], list[list[int]]]) -> tuple[list[Corner], list[list[int]]]:
    corners, faces = [], []
    for own, own_faces in parts:
        faces += [[corner + len(corners) for corner in face] for face in own_faces]
        corners += own
    return corners, faces


def num_coordinates(tokens: list[int]) -> int:
    return sum(token < BINS for token in tokens)


# --- closed meshes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CLASSES)
def test_every_solid_comes_back_and_none_of_its_edges_is_open(kind: str) -> None:
    for seed in range(4):
        assert Vocabulary(128).hole not in mesh_tokens(draw_solid(np.random.default_rng(seed), kind).mesh, 128)


def test_a_box_takes_three_coordinates_a_vertex_and_one_token_for_each_other_face() -> None:
    tokens = woven(*box((3, 4, 5)))
    assert num_coordinates(tokens) == 8 * 3
    # Of the twelve faces, the first has three new vertices and five have one.
    assert len(tokens) == 8 * 3 + 6


def test_a_sphere_takes_about_two_tokens_a_face() -> None:
    sphere = trimesh.creation.icosphere(3)
    tokens = mesh_tokens(Mesh(sphere.vertices, sphere.faces), 256)
    assert len(tokens) < 2.1 * len(sphere.faces)


def test_tokens_do_not_depend_on_the_order_of_vertices_and_faces() -> None:
    corners, faces = box((3, 4, 5))
    rng = np.random.default_rng(0)
    order = rng.permutation(8)
    ranks = np.argsort(order)
    shuffled = [list(np.roll(ranks[face], rng.integers(3))) for face in rng.permutation(faces)]
    assert woven(np.array(corners)[order], shuffled) == woven(corners, faces)


def test_a_thousand_components_follow_each_other() -> None:
    boxes = [box((3 * x, 3 * y, 3 * z)) for x, y, z in itertools.product(range(10), repeat=3)]
    assert len(woven(*joined(*boxes))) == 1000 * len(woven(*box((0, 0, 0))))


@pytest.mark.parametrize("shift", [(2, 2, 2), (2, 2, 0), (2, 0, 0)])
def test_boxes_that_touch_in_a_vertex_an_edge_or_a_side_stay_closed(shift: tuple[int, int, int]) -> None:
    tokens = woven(*joined(box((4, 4, 4), 2), box((4 + shift[0], 4 + shift[1], 4 + shift[2]), 2)))
    assert WORDS.hole not in tokens


def test_a_torus_has_a_handle() -> None:
    torus = trimesh.creation.torus(0.7, 0.25, major_sections=12, minor_sections=8)
    tokens = mesh_tokens(Mesh(torus.vertices, torus.faces), 128)
    assert Vocabulary(128).hole not in tokens
    assert tokens.count(Vocabulary(128).link) >= 1


# --- open and unusual meshes --------------------------------------------------------------------------------------


def test_each_open_edge_is_a_token() -> None:
    corners, faces = box((4, 4, 4))
    tokens = woven(corners, faces[:-1])
    assert tokens.count(WORDS.hole) == 3
    assert woven(corners, faces[:1]).count(WORDS.hole) == 3


def test_a_moebius_strip_is_cut() -> None:
    count, corners = 12, []
    for step in range(count):
        turn, twist = 2 * math.pi * step / count, math.pi * step / count
        for side in (-1, 1):
            reach = 10 + 4 * side * math.cos(twist)
            corners.append([16 + reach * math.cos(turn), 16 + reach * math.sin(turn), 16 + 4 * side * math.sin(twist)])
    faces = []
    for step in range(count):
        a, b = 2 * step, 2 * step + 1
        c, d = (a + 2, b + 2) if step < count - 1 else (1, 0)
        faces += [[a, b, c], [c, b, d]]
    positions = np.clip(np.round(corners), 0, BINS - 1)
    assert (edge_counts(np.array(faces)) == 2).sum() == 2 * count
    assert woven(positions, faces).count(WORDS.hole) == 2 * count + 2


def test_a_fan_of_pyramids_around_one_vertex_comes_back() -> None:
    parts = []
    for x, y in itertools.product(range(0, 24, 3), repeat=2):
        corners = [(16, 16, 31), (x, y, 0), (x + 1, y, 0), (x, y + 1, 0)]
        parts.append((corners, [[0, 1, 2], [0, 2, 3], [0, 3, 1], [1, 3, 2]]))
    tokens = woven(*joined(*parts))
    assert WORDS.hole not in tokens


def test_many_faces_of_one_edge_come_back() -> None:
    corners = [(16, 16, 4), (16, 16, 28), *((x, y, 16) for x, y in itertools.product((2, 9, 23, 30), repeat=2))]
    faces = [[0, 1, third] if third % 2 else [1, 0, third] for third in range(2, len(corners))]
    woven(corners, faces)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 11)] * 3), min_size=1, max_size=40), st.integers(2, 6))
def test_any_set_of_faces_comes_back(faces: list[Corner], bins: int) -> None:
    """Twelve vertices on a small grid, so that faces share edges and vertices in every way."""
    rng = np.random.default_rng(len(faces))
    cells = rng.permutation(max(bins**3, 12))[:12]
    grid = max(bins, 3)
    positions = np.stack([cells % grid, cells // grid % grid, cells // grid**2], axis=1)
    distinct = {min(face[turn:] + face[:turn] for turn in range(3)) for face in faces if len(set(face)) == 3}
    if distinct:
        woven(positions, [list(face) for face in sorted(distinct)], grid + 3)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 40))
def test_random_triangle_soup_comes_back(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    mesh = clean(Mesh(rng.uniform(-1, 1, (count, 3)), rng.integers(0, count, (3 * count, 3))), 8)
    if len(mesh.faces):
        woven(quantise(mesh.vertices, 8), mesh.faces, 8)


# --- tokens that are no mesh --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [
        [WORDS.next],
        [1, 1, 1, 2, 1, 1, 1, 2, WORDS.link],
        [1, 1, 1, 2, 1, 1, 1, 2, 1, WORDS.size],
        [1, 1, 1, 2, 1, 1, 1, 2, 1, WORDS.link, 9, 9, 9],
        [1, 1, 1, 2, 1, 1, 1, 2, 1, WORDS.hole, WORDS.close],
        [1, 1, 1, -1],
    ],
)
def test_tokens_that_are_no_mesh_are_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match=r"token|operation|boundary"):
        unweave(tokens, BINS)


def test_a_row_that_was_cut_off_holds_its_complete_faces() -> None:
    tokens = woven(*box((3, 4, 5)))
    counts = [len(unweave(tokens[:length], BINS)[1]) for length in range(len(tokens) + 1)]
    assert counts == sorted(counts)
    assert (counts[0], counts[8], counts[9], counts[-1]) == (0, 0, 1, 12)


def test_positions_are_the_centres_of_their_bins() -> None:
    tokens = woven(*box((3, 4, 5)))
    positions, _ = unweave(tokens, BINS)
    assert (quantise(dequantise(positions, BINS), BINS) == positions).all()
