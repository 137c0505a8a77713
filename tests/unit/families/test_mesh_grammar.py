"""The grammars, compared with all triangles of a small grid."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from quintet.families.mesh_transformer.grammar import CanonicalCoordinates, whole_faces
from quintet.media.mesh import Mesh, canonical, clean, quantise

Face = tuple[int, ...]


def canonical_faces(bins: int) -> list[Face]:
    """Every triangle of positive area whose first vertex is its lowest, sorted."""
    vertices = np.array(list(product(range(bins), repeat=3)))
    first, second, third = (grid.flatten() for grid in np.meshgrid(*[np.arange(len(vertices))] * 3, indexing="ij"))
    area = np.cross(vertices[second] - vertices[first], vertices[third] - vertices[first]).any(1)
    chosen = area & (first < second) & (first < third)
    faces = np.concatenate([vertices[which[chosen]] for which in (first, second, third)], axis=1)
    return sorted(map(tuple, faces.tolist()))


def test_the_end_token_follows_whole_faces_only() -> None:
    for length in range(14):
        legal = whole_faces(torch.zeros(2, length, dtype=torch.int64), 6, 5)
        assert legal.shape == (2, 6)
        assert legal[:, :5].all()
        assert legal[:, 5].tolist() == [length in (6, 12)] * 2


@pytest.mark.parametrize("bins", [2, 3])
def test_legal_tokens_are_those_of_the_remaining_triangles(bins: int) -> None:
    """Exactly: no legal token is missing, and every legal token can be completed to a face."""
    faces = canonical_faces(bins)
    grammar = CanonicalCoordinates(bins)
    generator = np.random.default_rng(0)
    befores: list[Face | None] = [None, faces[0], *faces[-8:]]
    befores += [faces[number] for number in generator.integers(0, len(faces), 20 if bins == 2 else 6)]
    for before in befores:
        later = [face for face in faces if before is None or face > before]
        for length in range(9):
            expected: dict[Face, set[int]] = {} if length else {(): set()}
            for face in later:
                expected.setdefault(face[:length], set()).add(face[length])
            if not expected:
                continue
            rows = torch.tensor([[*(before or ()), *prefix] for prefix in expected], dtype=torch.int64)
            results = grammar(rows)
            flipped = () if before is None else (*before[:3], *before[6:], *before[3:6])
            for prefix, legal in zip(expected, results.tolist(), strict=True):
                allowed = {token for token in range(bins) if legal[token]}
                new = {token for token in expected[prefix] if (*prefix, token) != flipped}
                assert allowed == (new or expected[prefix]), (before, prefix)
                assert legal[bins] == (before is not None and not prefix)


def test_a_random_walk_is_a_canonical_mesh() -> None:
    bins, grammar = 16, CanonicalCoordinates(16)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.empty(8, 0, dtype=torch.int64)
    weights = torch.ones(bins + 1)
    weights[bins], weights[0] = 0, 40  # prefer low coordinates, so that the walk does not end at once
    for _ in range(9 * 12):
        legal = grammar(tokens)
        stuck = ~legal[:, :bins].any(1)
        probs = (legal * weights)[:, :bins] + stuck[:, None]
        tokens = torch.cat([tokens, torch.multinomial(probs, 1, generator=generator)], dim=1)
        assert not stuck.any()
    for row in tokens.view(8, 12, 9).tolist():
        assert row == sorted(row)
        assert len({frozenset([tuple(face[:3]), tuple(face[3:6]), tuple(face[6:])]) for face in row}) == 12
        for face in row:
            first, second, third = face[:3], face[3:6], face[6:]
            assert first < min(second, third)
            assert np.cross(np.subtract(second, first), np.subtract(third, first)).any()


def test_a_canonical_mesh_is_legal() -> None:
    """`media/mesh.py` and the grammar define the same order."""
    bins, generator = 8, np.random.default_rng(0)
    soup = Mesh(generator.uniform(-1, 1, (14, 3)), generator.integers(0, 14, (30, 3)))
    mesh = canonical(clean(soup, bins), bins)
    assert len(mesh.faces) > 20
    tokens = torch.from_numpy(quantise(mesh.vertices, bins)[mesh.faces][..., ::-1].reshape(1, -1).copy())
    grammar = CanonicalCoordinates(bins)
    for length in range(tokens.shape[1]):
        assert grammar(tokens[:, :length])[0, tokens[0, length]], length
    assert grammar(tokens)[0, bins]


def test_only_the_end_token_follows_the_last_triangle() -> None:
    last = torch.tensor([canonical_faces(3)[-1]])
    assert CanonicalCoordinates(3)(last).tolist() == [[False, False, False, True]]


def test_a_prompt_that_violates_the_grammar_can_be_continued() -> None:
    grammar = CanonicalCoordinates(4)
    degenerate = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0]])
    legal = grammar(degenerate)
    assert legal[0].tolist() == [True] * 4 + [False]
    assert legal[1].any()
    backwards: Tensor = torch.tensor([[3, 3, 3, 2, 2, 2, 1, 1, 1]])
    assert grammar(backwards)[0, 4]


def test_one_bin_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 bins"):
        CanonicalCoordinates(1)
