"""The judge of `solids`: the dataset, quantized meshes, missing faces, and meshes of no class."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quintet.media.mesh import Mesh, canonical, clean, dequantise, normalise, quantise
from quintet.synthetic.solids import CLASSES, SolidItem, box, draw_item, draw_solid, joined
from quintet.synthetic.solids_judge import Finding, judge, match

ITEMS = [draw_item(11, index) for index in range(160)]


def prepared(item: SolidItem) -> Mesh:
    return canonical(clean(normalise(item.mesh)))


def shaken(mesh: Mesh, rng: np.random.Generator, bins_off: int = 0, lost: float = 0.0) -> Mesh:
    """As a model returns it: at the centres of bins, up to some bins off, with missing faces."""
    positions = quantise(mesh.vertices) + rng.integers(-bins_off, bins_off + 1, mesh.vertices.shape)
    kept = mesh.faces[rng.random(len(mesh.faces)) >= lost]
    return canonical(clean(Mesh(dequantise(np.clip(positions, 0, 127)), kept)))


def fractions(change: Callable[[Mesh], Mesh]) -> tuple[float, float]:
    """The fraction of right classes, and of right proportions."""
    found = [match(item.kind, item.proportions, judge(change(prepared(item)))) for item in ITEMS]
    words = [right for row in found for name, right in row.items() if name != "class"]
    return float(np.mean([row["class"] for row in found])), float(np.mean(words))


@pytest.mark.parametrize(
    ("bins_off", "lost", "least"), [(0, 0.0, 0.99), (1, 0.0, 0.99), (2, 0.0, 0.97), (1, 0.05, 0.95)]
)
def test_the_judge_recognises_reconstructed_meshes(bins_off: int, lost: float, least: float) -> None:
    rng = np.random.default_rng(0)
    of_class, of_words = fractions(lambda mesh: shaken(mesh, rng, bins_off, lost))
    assert of_class >= least
    assert of_words >= least


def test_order_scale_and_position_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    for item in ITEMS[:20]:
        expected, order = judge(item.mesh), rng.permutation(len(item.mesh.faces))
        moved = judge(Mesh(item.mesh.vertices * 7 + [1, -2, 3], item.mesh.faces[order]))
        assert moved.kind == expected.kind == item.kind
        assert (moved.height, moved.breadth) == pytest.approx((expected.height, expected.breadth))


def test_random_meshes_have_no_class() -> None:
    rng = np.random.default_rng(2)
    for _ in range(10):
        crumpled = Mesh(rng.uniform(-1, 1, (40, 3)), rng.integers(0, 40, (60, 3)))
        assert judge(crumpled).kind is None
    for mesh in (
        Mesh(np.empty((0, 3)), np.empty((0, 3), np.int64)),
        Mesh(np.full((3, 3), np.nan), np.array([[0, 1, 2]])),
        Mesh(np.zeros((3, 3)), np.array([[0, 1, 2]])),
        Mesh(np.eye(3), np.array([[0, 1, 2]])),
        joined(box((0, 0, 0), (0.1, 1, 1)), box((0.9, 0, 0), (1, 1, 1)), box((0, 0, 0), (1, 1, 0.1))),
    ):
        finding = judge(mesh)
        assert (finding.kind, finding.proportions()) == (None, {})


def test_an_upside_down_mesh_is_not_recognised() -> None:
    rng = np.random.default_rng(3)
    for kind in ("table", "chair", "lamp", "pyramid", "stairs"):
        mesh = draw_solid(rng, kind).mesh
        assert judge(Mesh(mesh.vertices * (1, -1, 1), mesh.faces)).kind != kind


def test_match_judges_proportions_for_the_class_of_the_caption() -> None:
    usual = CLASSES["table"].height.usual
    finding = Finding("stool", height=usual * 1.3, breadth=1.0, distance=0.0)
    assert match("table", {"height": "tall", "breadth": "wide"}, finding) == {
        **{"class": False, "height": True, "breadth": False},
    }
    assert match("stool", {}, finding) == {"class": True}
    assert finding.proportions() == {"height": "low"}
