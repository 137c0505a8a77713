"""The synthetic image dataset `shapes`: one or two coloured shapes on a smooth background, with a caption.

This module has its vocabulary, random scenes, rendering, captions, splits and writing. An item is a pure function of
(seed, index, size); the scene and its caption do not depend on the size. Geometry is in a frame of 64 x 64 units with y
pointing down, whatever the size in pixels.

`shapes_judge` recognises the content of an image. Metrics are comparable only while neither the items nor the judge
change, so a change to either needs a new `VERSION`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
from PIL import Image

from quintet.synthetic.folders import pick, split_by_words, with_article, write_items

VERSION = 1
FRAME = 64.0

FloatArray = npt.NDArray[np.float64]
ByteArray = npt.NDArray[np.uint8]

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "diamond")

# Far apart in Oklab, and each a typical example of its name.
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (212, 32, 36),
    "orange": (246, 134, 16),
    "yellow": (252, 220, 36),
    "green": (36, 154, 56),
    "cyan": (32, 206, 222),
    "blue": (28, 84, 220),
    "purple": (134, 38, 158),
    "pink": (254, 130, 194),
    "white": (246, 246, 246),
    "black": (18, 18, 18),
}

POSITIONS = (
    *("top left", "top", "top right"),
    *("left", "centre", "right"),
    *("bottom left", "bottom", "bottom right"),
)

SIZES = ("small", "large")

# Combinations that are never trained on. No colour and no shape is listed twice, so that each remains frequent in
# training and only the combination is new.
WITHHELD_PAIRS = frozenset(
    {
        *(("red", "star"), ("blue", "heart"), ("green", "ring")),
        *(("yellow", "triangle"), ("purple", "square"), ("orange", "cross")),
    }
)

TWO_OBJECTS_FRACTION = 0.4
RADII = {"small": (7.8, 9.0), "large": (11.8, 13.4)}
ANGLE_JITTER = math.radians(8)  # small enough that a square does not look like a diamond
COLOUR_JITTER = 8  # of 255, per channel
POSITION_JITTER = 1.5
OBJECT_GAP = 4.0  # between the outlines of two objects
BORDER_GAP = 1.0  # between an outline and the edge of the image
BACKGROUND_CONTRAST = 0.2  # minimum distance in Oklab between an object and the background
BACKGROUND_GREYS = (24.0, 240.0)  # of 255, before a slight tint
TINT = (-14.0, 14.0)  # of 255, per channel
GRADIENT_RISE = (24.0, 80.0)  # of 255, from one end of a gradient to the other
BACKGROUND_KINDS = {"plain": 0.45, "linear": 0.3, "radial": 0.25}


class ObjectRecord(TypedDict):
    """The attributes of one object, as in `metadata.jsonl`."""

    shape: str
    colour: str
    position: str
    size: str


class ShapesItem(NamedTuple):
    """One image (height, width, 3), its caption, and its objects in the order of the caption."""

    image: ByteArray
    caption: str
    objects: list[ObjectRecord]


@dataclass(frozen=True)
class PlacedObject:
    """An object as input of the renderer; lengths in units of the frame."""

    record: ObjectRecord
    rgb: FloatArray
    x: float
    y: float
    radius: float
    angle: float


@dataclass(frozen=True)
class Background:
    """A plain colour or a gradient from `start` to `end`; `origin` is the centre of a radial gradient."""

    kind: str
    start: FloatArray
    end: FloatArray
    angle: float
    origin: tuple[float, float]


# --- shapes -----------------------------------------------------------------------------------------------------
# Signed distances to the outline (negative inside) at radius 1. Shapes are scaled to look equally large, and their
# origin is close to their centre of mass.


def _circle(x: FloatArray, y: FloatArray) -> FloatArray:
    return np.hypot(x, y) - 1.0


def _ring(x: FloatArray, y: FloatArray) -> FloatArray:
    return np.abs(np.hypot(x, y) - 0.8) - 0.28


def _heart(x: FloatArray, y: FloatArray) -> FloatArray:
    """Two half discs on a square that is rotated by 45 degrees."""
    scale = 1.78
    x, y = np.abs(x) / scale, 0.6 - y / scale
    lobe = np.hypot(x - 0.25, y - 0.75) - math.sqrt(2) / 4
    along = 0.5 * np.maximum(x + y, 0.0)
    flank = np.minimum(np.hypot(x, y - 1.0), np.hypot(x - along, y - along)) * np.sign(x - y)
    return np.where(x + y > 1.0, lobe, flank) * scale


def _polygon(vertices: Sequence[tuple[float, float]]) -> Callable[[FloatArray, FloatArray], FloatArray]:
    edges = list(zip(vertices, [*vertices[1:], vertices[0]], strict=True))

    def distance(x: FloatArray, y: FloatArray) -> FloatArray:
        nearest = np.full(x.shape, np.inf)
        inside = np.zeros(x.shape, dtype=bool)
        for (ax, ay), (bx, by) in edges:
            edge_x, edge_y = bx - ax, by - ay
            from_x, from_y = x - ax, y - ay
            along = np.clip((from_x * edge_x + from_y * edge_y) / (edge_x**2 + edge_y**2), 0.0, 1.0)
            off_x, off_y = from_x - along * edge_x, from_y - along * edge_y
            nearest = np.minimum(nearest, off_x * off_x + off_y * off_y)
            if edge_y != 0.0:  # even-odd rule: count the edges a ray to the right crosses
                inside ^= ((ay > y) != (by > y)) & (from_x < edge_x * from_y / edge_y)
        return np.asarray(np.where(inside, -1.0, 1.0) * np.sqrt(nearest))

    return distance


def _on_circle(radius: float, degrees: float) -> tuple[float, float]:
    return radius * math.sin(math.radians(degrees)), -radius * math.cos(math.radians(degrees))


def _cross_vertices(arm: float, half_width: float) -> list[tuple[float, float]]:
    corner = [(-half_width, -arm), (half_width, -arm), (half_width, -half_width)]
    vertices = list(corner)
    for _ in range(3):
        corner = [(-y, x) for x, y in corner]
        vertices += corner
    return vertices


# With the radius of the circle around the origin that encloses the shape.
_OUTLINES: dict[str, tuple[Callable[[FloatArray, FloatArray], FloatArray], float]] = {
    "circle": (_circle, 1.0),
    "square": (_polygon([(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)]), 1.245),
    "triangle": (_polygon([_on_circle(1.22, 120 * corner) for corner in range(3)]), 1.22),
    "star": (_polygon([_on_circle(0.53 if tip % 2 else 1.25, 36 * tip) for tip in range(10)]), 1.25),
    "cross": (_polygon(_cross_vertices(1.05, 0.36)), 1.11),
    "ring": (_ring, 1.08),
    "heart": (_heart, 1.16),
    "diamond": (_polygon([(0.0, -1.22), (0.82, 0.0), (0.0, 1.22), (-0.82, 0.0)]), 1.22),
}


@functools.lru_cache(maxsize=8)
def pixel_centres(size: int) -> tuple[FloatArray, FloatArray]:
    """The x and y of pixel centres in units of the frame, each (size, size) and read-only."""
    centres = (np.arange(size) + 0.5) * (FRAME / size)
    x, y = np.meshgrid(centres, centres)
    x.flags.writeable = y.flags.writeable = False  # the cache shares them
    return x, y


def signed_distance(
    shape: str, x: FloatArray, y: FloatArray, centre: tuple[float, float], radius: float, angle: float
) -> FloatArray:
    """Signed distance from points to the outline of a shape, negative inside, in units of the frame."""
    cosine, sine = math.cos(angle), math.sin(angle)
    right, down = (x - centre[0]) / radius, (y - centre[1]) / radius
    return _OUTLINES[shape][0](cosine * right + sine * down, cosine * down - sine * right) * radius


def coverage(shape: str, centre: tuple[float, float], radius: float, angle: float, size: int) -> FloatArray:
    """The anti-aliased mask of a shape, (size, size): the fraction of each pixel that it covers."""
    x, y = pixel_centres(size)
    reach = radius * _OUTLINES[shape][1] + FRAME / size
    rows, columns = (_window(middle, reach, size) for middle in (centre[1], centre[0]))
    distance = signed_distance(shape, x[rows, columns], y[rows, columns], centre, radius, angle)
    mask = np.zeros((size, size))
    mask[rows, columns] = np.clip(0.5 - distance * (size / FRAME), 0.0, 1.0)
    return mask


def _window(middle: float, reach: float, size: int) -> slice:
    """The pixels within reach of a point along one axis; the others are not computed."""
    first, last = ((middle + sign * reach) * size / FRAME for sign in (-1, 1))
    return slice(max(0, math.floor(first)), max(0, math.ceil(last)))


# --- colour -----------------------------------------------------------------------------------------------------

_RGB_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_CONES_TO_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def oklab(rgb: npt.ArrayLike) -> FloatArray:
    """sRGB colours of 0 to 255 (..., 3) to Oklab (..., 3), in which distances are perceptually uniform."""
    encoded = np.clip(np.asarray(rgb, dtype=np.float64) / 255.0, 0.0, 1.0)
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    return np.asarray(np.cbrt(linear @ _RGB_TO_CONES.T) @ _CONES_TO_OKLAB.T)


# --- scenes -----------------------------------------------------------------------------------------------------


def _draw_attributes(rng: np.random.Generator) -> tuple[str, str, str]:
    return pick(rng, SHAPES), pick(rng, list(COLOURS)), pick(rng, SIZES)


def _draw_coordinate(rng: np.random.Generator, cell: int, extent: float) -> float:
    """A random centre along one axis in cell 0, 1 or 2 of the grid, so that the object is inside the image."""
    near = max(14.0, extent + BORDER_GAP + POSITION_JITTER)
    return (near, FRAME / 2, FRAME - near)[cell] + rng.uniform(-POSITION_JITTER, POSITION_JITTER)


def _place(rng: np.random.Generator, position: str, shape: str, colour: str, size: str) -> PlacedObject:
    cell = POSITIONS.index(position)
    radius = rng.uniform(*RADII[size])
    extent = radius * _OUTLINES[shape][1]
    shift = rng.uniform(-COLOUR_JITTER, COLOUR_JITTER, size=3)
    return PlacedObject(
        record={"shape": shape, "colour": colour, "position": position, "size": size},
        rgb=np.clip(np.asarray(COLOURS[colour]) + shift, 0.0, 255.0),
        x=_draw_coordinate(rng, cell % 3, extent),
        y=_draw_coordinate(rng, cell // 3, extent),
        radius=radius,
        angle=rng.uniform(-ANGLE_JITTER, ANGLE_JITTER),
    )


def gap_between(first: PlacedObject, second: PlacedObject) -> float:
    """The distance between two outlines, at the pixels of a 64 x 64 image; negative if they overlap."""
    x, y = pixel_centres(int(FRAME))
    distances = (
        signed_distance(one.record["shape"], x, y, (one.x, one.y), one.radius, one.angle) for one in (first, second)
    )
    return float(sum(distances, np.zeros_like(x)).min())


def _clearly_apart(first: PlacedObject, second: PlacedObject) -> bool:
    extents = sum(one.radius * _OUTLINES[one.record["shape"]][1] for one in (first, second))
    between = math.hypot(first.x - second.x, first.y - second.y)
    if between >= extents + OBJECT_GAP:  # most pairs: the outlines need not be computed
        return True
    return gap_between(first, second) >= OBJECT_GAP


def _draw_objects(rng: np.random.Generator) -> list[PlacedObject]:
    first = _draw_attributes(rng)
    if rng.random() >= TWO_OBJECTS_FRACTION:
        # Pairs rarely have an object in the centre, so it is twice as likely here.
        return [_place(rng, pick(rng, (*POSITIONS, "centre")), *first)]
    second = _draw_attributes(rng)
    while True:  # opposite corners always fit two
        placed = [_place(rng, pick(rng, POSITIONS), *attributes) for attributes in (first, second)]
        if _clearly_apart(*placed):
            return placed


def _draw_background(rng: np.random.Generator, objects: Sequence[PlacedObject]) -> Background:
    kind = str(rng.choice(list(BACKGROUND_KINDS), p=list(BACKGROUND_KINDS.values())))
    darkest, lightest = BACKGROUND_GREYS
    object_colours = oklab([one.rgb for one in objects])
    while True:  # for every pair of colours at least one in twenty is accepted
        grey = rng.uniform(darkest, lightest)
        start = end = grey + rng.uniform(*TINT, size=3)
        if kind != "plain":
            end_grey = grey + rng.choice((-1.0, 1.0)) * rng.uniform(*GRADIENT_RISE)
            if not darkest <= end_grey <= lightest:
                continue
            end = end_grey + rng.uniform(*TINT, size=3)
        along = oklab([start, 0.5 * (start + end), end])
        if np.linalg.norm(along[:, None] - object_colours, axis=-1).min() >= BACKGROUND_CONTRAST:
            break
    origin = (rng.uniform(0.25, 0.75) * FRAME, rng.uniform(0.25, 0.75) * FRAME)
    return Background(kind, start, end, angle=rng.uniform(0.0, 2 * math.pi), origin=origin)


# --- rendering --------------------------------------------------------------------------------------------------


def linear_gradient(angle: float, size: int) -> FloatArray:
    """A linear gradient from 0 to 1 across the image, (size, size)."""
    x, y = pixel_centres(size)
    cosine, sine = math.cos(angle), math.sin(angle)
    across = FRAME * (abs(cosine) + abs(sine))
    return ((x - FRAME / 2) * cosine + (y - FRAME / 2) * sine) / across + 0.5


def _render_background(background: Background, size: int) -> FloatArray:
    x, y = pixel_centres(size)
    if background.kind == "linear":
        along = linear_gradient(background.angle, size)
    elif background.kind == "radial":
        squared = (x - background.origin[0]) ** 2 + (y - background.origin[1]) ** 2
        along = squared / sum(max(part, FRAME - part) ** 2 for part in background.origin)
    else:
        along = np.zeros_like(x)
    return background.start + along[..., None] * (background.end - background.start)


def _render(objects: Sequence[PlacedObject], background: Background, size: int) -> ByteArray:
    image = _render_background(background, size)
    for one in objects:
        mask = coverage(one.record["shape"], (one.x, one.y), one.radius, one.angle, size)[..., None]
        image += mask * (one.rgb - image)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


# --- captions ---------------------------------------------------------------------------------------------------

_POSITION_PHRASES = {
    "left": ("on the left", "on the left side"),
    "right": ("on the right", "on the right side"),
    "top": ("at the top", "in the top middle"),
    "bottom": ("at the bottom", "in the bottom middle"),
    "centre": ("in the centre", "in the middle"),
}
_CORNER_PHRASES = ("in the {} corner", "at the {}", "in the {}")
_ONE_OBJECT_PHRASES = (
    "{thing} {place}",
    "{place}, {thing}",
    "there is {thing} {place}",
    "a picture of {thing} {place}",
    "{thing} {place} of the picture",
    "the {plain} {place} is {colour}",
)
_TWO_OBJECT_PHRASES = (
    "{thing} {place} and {other_thing} {other_place}",
    "{thing} {place}, {other_thing} {other_place}",
    "{place}, {thing}; {other_place}, {other_thing}",
    "there is {thing} {place} and {other_thing} {other_place}",
    "two objects: {thing} {place} and {other_thing} {other_place}",
)


def _position_words(rng: np.random.Generator, position: str) -> str:
    return (
        pick(rng, _POSITION_PHRASES[position])
        if position in _POSITION_PHRASES
        else pick(rng, _CORNER_PHRASES).format(position)
    )


def _phrase_parts(rng: np.random.Generator, one: ObjectRecord) -> dict[str, str]:
    size = one["size"] + " " if rng.random() < 0.5 else ""
    return {
        "thing": with_article(f"{size}{one['colour']} {one['shape']}"),
        "plain": f"{size}{one['shape']}",
        "colour": one["colour"],
        "place": _position_words(rng, one["position"]),
    }


def _twins_caption(rng: np.random.Generator, first: ObjectRecord, second: ObjectRecord) -> str:
    """A caption of two objects with the same colour and shape."""
    plural = first["shape"] + ("es" if first["shape"].endswith("s") else "s")
    twins, each = f"{first['colour']} {plural}", ["one", "one"]
    if rng.random() < 0.5:
        if first["size"] == second["size"]:
            twins = f"{first['size']} {twins}"
        else:
            each = [f"a {one['size']} one" for one in (first, second)]
    phrases = [_position_words(rng, one["position"]) for one in (first, second)]
    return f"two {twins}, {each[0]} {phrases[0]} and {each[1]} {phrases[1]}"


def _caption(rng: np.random.Generator, records: Sequence[ObjectRecord]) -> str:
    if len(records) == 1:
        return pick(rng, _ONE_OBJECT_PHRASES).format(**_phrase_parts(rng, records[0]))
    first, second = records
    if (first["shape"], first["colour"]) == (second["shape"], second["colour"]):
        return _twins_caption(rng, first, second)
    others = {f"other_{name}": words for name, words in _phrase_parts(rng, second).items()}
    return pick(rng, _TWO_OBJECT_PHRASES).format(**_phrase_parts(rng, first), **others)


# --- items and the folder ---------------------------------------------------------------------------------------


def draw_scene(seed: int, index: int) -> tuple[list[PlacedObject], Background, str]:
    """The objects, the background and the caption of one item."""
    rng = np.random.default_rng([seed, index])
    objects = _draw_objects(rng)
    background = _draw_background(rng, objects)
    return objects, background, _caption(rng, [one.record for one in objects])


def draw_item(seed: int, index: int, size: int = 64) -> ShapesItem:
    """One item of the dataset, a pure function of its arguments."""
    objects, background, caption = draw_scene(seed, index)
    return ShapesItem(_render(objects, background, size), caption, [one.record for one in objects])


def split_of(caption: str, objects: Sequence[ObjectRecord]) -> str:
    """`train`, `validation` or `withheld`, by the words of the caption: equal captions are in the same split."""
    return split_by_words(caption, any((one["colour"], one["shape"]) in WITHHELD_PAIRS for one in objects))


def make_shapes(folder: Path, num: int = 5000, size: int = 64, seed: int = 0) -> None:
    """Write the dataset: `images/`, `dataset.json` (its settings) and `metadata.jsonl`."""

    def write(index: int, path: Path) -> dict[str, object]:
        item = draw_item(seed, index, size)
        Image.fromarray(item.image).save(path)
        return {"text": item.caption, "split": split_of(item.caption, item.objects), "objects": item.objects}

    metadata = {"name": "shapes", "version": VERSION, "num": num, "size": size, "seed": seed}
    write_items(folder, metadata, "image", "images/{:05d}.png", write)
