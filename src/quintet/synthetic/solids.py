"""The synthetic mesh dataset `solids`: low-poly furniture, buildings and basic solids, each with a caption.

This module has its classes, their construction, words for proportions, captions, splits and writing. An item is a pure
function of (seed, index). y is up, as in glTF, and objects face along z. Every part is watertight, and no two parts
share an edge, so that the mesh is watertight too.

Captions do not mention absolute size, because models see every mesh scaled to the unit box. They mention how tall and
how wide an object is for its class.

`solids_judge` recognises the class of a mesh. Metrics are comparable only while neither the items nor the judge change,
so a change to either needs a new `VERSION`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quintet.media.mesh import Mesh, write_mesh
from quintet.media.mesh_text import Faces, Vertices
from quintet.synthetic.folders import pick, split_by_words, with_article, write_items

VERSION = 1
LOWER = (0.55, 0.7)
HIGHER = (1.45, 1.8)
"""Ranges of the ratio to the usual value of a class; even if scaled by a quarter, they nearly always stay on their side
of 1."""
MENTION_PROB = 0.75
"""Probability that a caption mentions each of its optional attributes."""

Point = tuple[float, float]
Size = tuple[float, float, float]
"""Width (x), height (y) and depth (z)."""


@dataclass(frozen=True)
class Measure:
    """A proportion with two words, for values below and above `usual`."""

    usual: float
    words: tuple[str, str]

    def word(self, ratio: float) -> str:
        return self.words[1 if ratio > self.usual else 0]


@dataclass(frozen=True)
class SolidClass:
    """One class of solids.

    `height` is the height over the square root of width times depth, `breadth` the width over the depth (None if both
    are equal). `build` makes a random mesh, and a text for details such as the number of steps.
    """

    height: Measure
    breadth: Measure | None
    build: Callable[[np.random.Generator, Size], tuple[Mesh, str]]

    @property
    def measures(self) -> dict[str, Measure]:
        return {"height": self.height} | ({"breadth": self.breadth} if self.breadth else {})


class SolidItem(NamedTuple):
    """One mesh, its caption, its class, and the proportions that the caption mentions."""

    mesh: Mesh
    caption: str
    kind: str
    proportions: dict[str, str]


# --- parts ------------------------------------------------------------------------------------------------------


def box(low: Sequence[float], high: Sequence[float]) -> Mesh:
    """A box between two corners: 12 faces."""
    return extrusion([(low[0], low[1]), (high[0], low[1]), (high[0], high[1]), (low[0], high[1])], low[2], high[2])


def extrusion(outline: Sequence[Point], back: float, front: float) -> Mesh:
    """An outline in x and y, counter-clockwise, extruded from z = back to z = front."""
    count = len(outline)
    vertices = [(x, y, z) for z in (back, front) for x, y in outline]
    cap = _triangulated(outline)
    faces = [(a + count, b + count, c + count) for a, b, c in cap] + [(c, b, a) for a, b, c in cap]
    for here in range(count):
        after = (here + 1) % count
        faces += [(here, after, after + count), (here, after + count, here + count)]
    return _mesh(vertices, faces)


def lathe(profile: Sequence[Point], sides: int, phase: float = 0.0) -> Mesh:
    """A solid of revolution around the y axis; `profile` are (radius, height) from below, and radius 0 is a tip."""
    vertices: list[tuple[float, float, float]] = []
    rings: list[list[int]] = []
    for radius, y in profile:
        corners = sides if radius > 0 else 1
        angles = [phase + 2 * math.pi * corner / sides for corner in range(corners)]
        rings.append(list(range(len(vertices), len(vertices) + corners)))
        vertices += [(radius * math.sin(angle), y, radius * math.cos(angle)) for angle in angles]
    faces = [(rings[0][0], rings[0][here + 1], rings[0][here]) for here in range(1, len(rings[0]) - 1)]
    faces += [(rings[-1][0], rings[-1][here], rings[-1][here + 1]) for here in range(1, len(rings[-1]) - 1)]
    for below, above in itertools.pairwise(rings):
        for here in range(sides):
            after = (here + 1) % sides
            if len(below) > 1:
                faces.append((below[here], below[after], above[here % len(above)]))
            if len(above) > 1:
                faces.append((above[after], above[here], below[after % len(below)]))
    return _mesh(vertices, faces)


def joined(*parts: Mesh) -> Mesh:
    starts = np.cumsum([0, *(len(part.vertices) for part in parts)])
    return Mesh(
        np.concatenate([part.vertices for part in parts]),
        np.concatenate([part.faces + start for part, start in zip(parts, starts, strict=False)]),
    )


def fitted(mesh: Mesh, size: Size) -> Mesh:
    """Scale along each axis to a box that is centred around the y axis and stands on the floor."""
    low, high = mesh.vertices.min(axis=0), mesh.vertices.max(axis=0)
    return Mesh((mesh.vertices - (low + high) / 2) / (high - low) * size + (0, size[1] / 2, 0), mesh.faces)


def _mesh(vertices: Sequence[Sequence[float]], faces: Sequence[Sequence[int]]) -> Mesh:
    found: Vertices = np.array(vertices, np.float64)
    corners: Faces = np.array(faces, np.int64)
    return Mesh(found, corners)


def _triangulated(outline: Sequence[Point]) -> list[tuple[int, int, int]]:
    """Triangulate a simple outline by ear clipping."""
    left = list(range(len(outline)))
    triangles = []
    while len(left) > 3:
        ear = next(index for index in range(len(left)) if _is_ear(outline, left, index))
        triangles.append((left[ear - 1], left[ear], left[(ear + 1) % len(left)]))
        del left[ear]
    return [*triangles, (left[0], left[1], left[2])]


def _is_ear(outline: Sequence[Point], left: Sequence[int], index: int) -> bool:
    corners = left[index - 1], left[index], left[(index + 1) % len(left)]
    a, b, c = (outline[corner] for corner in corners)
    others = (outline[corner] for corner in left if corner not in corners)
    return _turn(a, b, c) > 1e-12 and not any(
        min(_turn(a, b, point), _turn(b, c, point), _turn(c, a, point)) >= -1e-12 for point in others
    )


def _turn(a: Point, b: Point, c: Point) -> float:
    """Twice the area of a triangle, positive when counter-clockwise."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


# --- basic solids -----------------------------------------------------------------------------------------------

_SIDED = {3: "triangular", 4: "square", 5: "five-sided", 6: "six-sided"}
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def _build_box(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    return fitted(box((0, 0, 0), (1, 1, 1)), size), ""


def _build_prism(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    sides = pick(rng, (3, 5, 6))
    return fitted(lathe([(1, 0), (1, 1)], sides), size), _SIDED[sides]


def _build_cylinder(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    return fitted(lathe([(1, 0), (1, 1)], pick(rng, (12, 14, 16))), size), ""


def _build_pyramid(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    """A pyramid on a flat base."""
    sides, foot = pick(rng, (3, 4, 4, 5, 6)), float(rng.uniform(0.06, 0.12))
    profile = [(1, 0), (1, foot), (0, 1)]
    return fitted(lathe(profile, sides, math.pi / 4 if sides == 4 else 0.0), size), _SIDED[sides]


def _build_cone(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    return fitted(lathe([(1, 0), (0, 1)], pick(rng, (12, 14, 16))), size), ""


# --- furniture --------------------------------------------------------------------------------------------------


def _thickness(rng: np.random.Generator, size: Size, low: float, high: float) -> float:
    """Thickness of boards and legs, relative to the longest side, so that they do not vanish in one coordinate bin."""
    return float(rng.uniform(low, high)) * max(size)


def _legs(width: float, depth: float, height: float, thickness: float, inset: float) -> list[Mesh]:
    across, along = width / 2 - inset, depth / 2 - inset
    return [
        box((x, 0, z), (x + thickness, height, z + thickness))
        for x in (-across, across - thickness)
        for z in (-along, along - thickness)
    ]


def _build_table(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    width, height, depth = size
    top = height - _thickness(rng, size, 0.05, 0.09)
    leg = min(_thickness(rng, size, 0.06, 0.09), 0.25 * min(width, depth))
    inset = float(rng.uniform(0.03, 0.05)) * max(size)
    legs = _legs(width, depth, top, leg, min(inset, 0.1 * min(width, depth)))
    return joined(box((-width / 2, top, -depth / 2), (width / 2, height, depth / 2)), *legs), ""


def _build_chair(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    width, height, depth = size
    board = _thickness(rng, size, 0.05, 0.08)
    seat = height * float(rng.uniform(0.42, 0.52))
    leg = min(_thickness(rng, size, 0.055, 0.08), 0.25 * min(width, depth))
    inset = min(0.03 * max(size), 0.1 * min(width, depth))
    back = min(board, 0.2 * depth)
    edge, rear = inset - width / 2, inset - depth / 2
    return joined(
        box((-width / 2, seat - board, -depth / 2), (width / 2, seat, depth / 2)),
        box((edge, seat, rear), (-edge, height, rear + back)),
        *_legs(width, depth, seat - board, leg, inset),
    ), ""


def _build_stool(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    width, height, depth = size
    top = height - _thickness(rng, size, 0.06, 0.1)
    leg = min(_thickness(rng, size, 0.06, 0.08), 0.16 * width) / 2
    reach = width / 2 - 2.2 * leg
    legs = []
    for corner in range(3):
        x, z = (reach * way(2 * math.pi * corner / 3) for way in (math.sin, math.cos))
        legs.append(box((x - leg, 0, z - leg), (x + leg, top, z + leg)))
    seat = fitted(lathe([(1, 0), (1, 1)], 8, math.pi / 8), (width, height - top, depth))
    return joined(Mesh(seat.vertices + np.array([0, top, 0]), seat.faces), *legs), ""


def _build_bench(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    width, height, depth = size
    top = height - min(_thickness(rng, size, 0.05, 0.07), 0.3 * height)
    panel = _thickness(rng, size, 0.05, 0.07)
    inset, margin = float(rng.uniform(0.08, 0.14)) * width, min(0.03 * max(size), 0.12 * depth)
    edge, rear = inset - width / 2, margin - depth / 2
    return joined(
        box((-width / 2, top, -depth / 2), (width / 2, height, depth / 2)),
        box((edge, 0, rear), (edge + panel, top, -rear)),
        box((-edge - panel, 0, rear), (-edge, top, -rear)),
    ), ""


def _build_shelf(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    width, height, depth = size
    boards = pick(rng, (3, 4, 5))
    panel, board = (min(_thickness(rng, size, 0.045, 0.065), 0.2 * width) for _ in range(2))
    board = min(board, 0.45 * height / boards)
    margin = min(0.025 * max(size), 0.1 * depth)
    lowest, highest = 0.04 * max(size), height - 0.03 * max(size) - board
    parts = [box((x, 0, -depth / 2), (x + panel, height, depth / 2)) for x in (-width / 2, width / 2 - panel)]
    for number in range(boards):
        y = lowest + (highest - lowest) * number / (boards - 1)
        inner, rear = panel - width / 2, margin - depth / 2
        parts.append(box((inner, y, rear), (-inner, y + board, -rear)))
    return joined(*parts), f"with {_NUMBERS[boards]} boards"


def _build_sofa(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    width, height, depth = size
    arm = float(rng.uniform(0.11, 0.15)) * width
    back = float(rng.uniform(0.22, 0.3)) * depth
    seat, rest = (height * float(rng.uniform(*span)) for span in ((0.38, 0.46), (0.62, 0.72)))
    gap = min(0.03 * max(size), 0.12 * height)
    inner, rear = arm - width / 2, gap - depth / 2
    return joined(
        box((-width / 2, 0, -depth / 2), (inner, rest, depth / 2)),
        box((-inner, 0, -depth / 2), (width / 2, rest, depth / 2)),
        box((inner, gap, rear + back), (-inner, seat, depth / 2 - gap)),
        box((inner, 2 * gap, rear), (-inner, height, rear + back)),
    ), ""


def _build_lamp(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    foot, pole, rim = (float(rng.uniform(*span)) for span in ((0.55, 0.75), (0.14, 0.2), (0.45, 0.65)))
    thick, shade = (float(rng.uniform(*span)) for span in ((0.06, 0.1), (0.55, 0.65)))
    profile = [(foot, 0), (foot, thick), (pole, thick), (pole, shade), (1, shade), (rim, 1)]
    return fitted(lathe(profile, pick(rng, (6, 8))), size), ""


def _build_bottle(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    shoulder, neck = (float(rng.uniform(*span)) for span in ((0.45, 0.58), (0.25, 0.36)))
    profile = [(1, 0), (1, shoulder), (neck, shoulder + 0.17), (neck, 1)]
    return fitted(lathe(profile, pick(rng, (8, 10))), size), ""


# --- buildings --------------------------------------------------------------------------------------------------


def _build_stairs(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    steps = pick(rng, (3, 4, 5, 6))
    outline: list[Point] = [(0, 0), (steps, 0)]
    for step in reversed(range(steps)):
        outline += [(step + 1, step + 1), (step, step + 1)]
    return fitted(extrusion(outline, 0, 1), size), f"with {_NUMBERS[steps]} steps"


def _build_house(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    wall = float(rng.uniform(0.5, 0.65))
    return fitted(extrusion([(0, 0), (1, 0), (1, wall), (0.5, 1), (0, wall)], 0, 1), size), ""


def _build_arch(rng: np.random.Generator, size: Size) -> tuple[Mesh, str]:
    """A block with an opening with a round top."""
    post, spring, crown = (float(rng.uniform(*span)) for span in ((0.2, 0.26), (0.35, 0.5), (0.8, 0.86)))
    half, pieces = 0.5 - post, 6
    angles = [math.pi * piece / pieces for piece in range(pieces + 1)]
    opening = [(0.5 - half * math.cos(angle), spring + (crown - spring) * math.sin(angle)) for angle in angles]
    outline = [(0.0, 0.0), (post, 0.0), *opening, (1 - post, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    return fitted(extrusion(outline, 0, 1), size), ""


def _high(usual: float) -> Measure:
    return Measure(usual, ("low", "tall"))


def _broad(usual: float) -> Measure:
    return Measure(usual, ("narrow", "wide"))


CLASSES: dict[str, SolidClass] = {
    "box": SolidClass(_high(1.0), _broad(1.0), _build_box),
    "prism": SolidClass(_high(1.2), None, _build_prism),
    "cylinder": SolidClass(_high(1.2), None, _build_cylinder),
    "pyramid": SolidClass(_high(1.0), None, _build_pyramid),
    "cone": SolidClass(_high(1.2), None, _build_cone),
    "table": SolidClass(_high(0.8), _broad(1.4), _build_table),
    "chair": SolidClass(_high(1.6), _broad(1.0), _build_chair),
    "stool": SolidClass(_high(1.2), None, _build_stool),
    "bench": SolidClass(_high(0.7), _broad(2.4), _build_bench),
    "shelf": SolidClass(_high(1.6), _broad(1.8), _build_shelf),
    "sofa": SolidClass(_high(0.7), _broad(1.6), _build_sofa),
    "lamp": SolidClass(_high(1.6), None, _build_lamp),
    "bottle": SolidClass(_high(1.6), None, _build_bottle),
    "stairs": SolidClass(_high(0.8), _broad(1.2), _build_stairs),
    "house": SolidClass(_high(1.0), _broad(1.0), _build_house),
    "arch": SolidClass(_high(1.2), _broad(2.0), _build_arch),
}


# --- items ------------------------------------------------------------------------------------------------------


def _draw_size(rng: np.random.Generator, kind: SolidClass) -> tuple[Size, dict[str, str]]:
    """Random width, height and depth around 1, and the words for the proportions."""
    words, ratios = {}, {"height": 1.0, "breadth": 1.0}
    for name, measure in kind.measures.items():
        ratios[name] = measure.usual * float(rng.uniform(*(LOWER, HIGHER)[int(rng.integers(2))]))
        words[name] = measure.word(ratios[name])
    root = math.sqrt(ratios["breadth"])
    return (root, ratios["height"], 1 / root), words


_PHRASES = (
    "{thing}",
    "{thing}",
    "a 3D model of {thing}",
    "low-poly mesh of {thing}",
    "the shape of {thing}",
    "{bare}",
)
_PHRASES_WITH_WORDS = ("{one} that {is_} {words}", "the {noun} {is_} {words}", "{noun}, {words}")


def _caption(rng: np.random.Generator, kind: str, proportions: Sequence[str], detail: str) -> str:
    adjectives = list(proportions)
    if rng.random() < 0.5:
        adjectives.reverse()
    noun = kind
    if detail and rng.random() < MENTION_PROB:
        noun = f"{kind} {detail}" if detail.startswith("with") else f"{detail} {kind}"
    phrases = _PHRASES + (_PHRASES_WITH_WORDS if adjectives else ())
    bare, words = " ".join([*adjectives, noun]), " and ".join(adjectives)
    plural = kind == "stairs"
    thing, one = (named if plural else with_article(named) for named in (bare, noun))
    phrase = phrases[int(rng.integers(len(phrases)))]
    return phrase.format(thing=thing, one=one, bare=bare, noun=noun, words=words, is_="are" if plural else "is")


def draw_item(seed: int, index: int) -> SolidItem:
    """One item of the dataset, a pure function of its arguments."""
    return draw_solid(np.random.default_rng([seed, index]))


def draw_solid(rng: np.random.Generator, kind: str | None = None) -> SolidItem:
    """A random item, of the class `kind` or of a random class."""
    name = list(CLASSES)[int(rng.integers(len(CLASSES)))] if kind is None else kind
    size, words = _draw_size(rng, CLASSES[name])
    mesh, detail = CLASSES[name].build(rng, size)
    mentioned = {measure: word for measure, word in words.items() if rng.random() < MENTION_PROB}
    return SolidItem(mesh, _caption(rng, name, list(mentioned.values()), detail), name, mentioned)


def split_of(caption: str) -> str:
    """`train` or `validation`, by the words of the caption: equal captions are in the same split."""
    return split_by_words(caption)


# --- the folder -------------------------------------------------------------------------------------------------


def make_solids(folder: Path, num: int = 5000, seed: int = 0) -> None:
    """Write the dataset: `meshes/`, `dataset.json` (its settings) and `metadata.jsonl`."""

    def write(index: int, path: Path) -> dict[str, object]:
        item = draw_item(seed, index)
        write_mesh(item.mesh, path)
        row = {"text": item.caption, "split": split_of(item.caption)}
        return {**row, "class": item.kind, "proportions": item.proportions}

    metadata = {"name": "solids", "version": VERSION, "num": num, "seed": seed}
    write_items(folder, metadata, "mesh", "meshes/{:05d}.obj", write)  # faster to read than GLB
