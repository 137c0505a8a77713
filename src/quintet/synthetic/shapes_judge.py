"""The judge of the data set `shapes`: plain image analysis that says what a picture shows.

This file owns the way from pixels to findings, without learned weights, so that its word on a generated picture does
not depend on any model: a smooth background is fitted and subtracted, what differs from it falls into connected
parts, each part gets the nearest named colour and the shape whose rendered outline fits it best. Made to read lossy
reconstructions too: noise, blur, slightly wrong colours and block artefacts. `match` compares the findings with what
a caption promised.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from quintet.media.image import to_uint8
from quintet.synthetic.judges import Judge, Row, Scores, has_keys
from quintet.synthetic.shapes import (
    COLOURS,
    FRAME,
    POSITIONS,
    RADII,
    SHAPES,
    WITHHELD_PAIRS,
    coverage,
    oklab,
    pixel_centres,
)

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
LabelArray = npt.NDArray[np.int64]

GRID = int(FRAME)  # every picture is judged at this size, so that one set of thresholds and templates serves all
LEAST_CONTRAST = 26.0  # of 255: a smaller difference from the background is an artefact of it
LEAST_AREA = 45.0  # pixels of the grid; the smallest shape of the data set covers more than 120
LEAST_OVERLAP = 0.5  # with the best shape; what fits none this well is an artefact, readable objects reach 0.75
MOST_FINDINGS = 3  # one more than any caption names, so that a surplus object shows
CORE_QUANTILE = 0.7  # of a part's contrast: the pixels above it tell its colour
CELL_EDGES = (24.5, FRAME - 24.5)  # between the outermost place of one cell and the innermost of the next
SIZE_EDGE = (RADII["small"][1] + RADII["large"][0]) / 2
MIXTURE_TOLERANCE = 0.3  # how far beside the line from background to colour a mixture of both may lie
OKLAB_WEIGHTS = (0.6, 1.0, 1.0)  # blur and artefacts change the lightness of a colour before its hue
TEMPLATE_ANGLES = tuple(math.radians(degrees) for degrees in (-8, -4, 0, 4, 8))
TEMPLATE_RADII = (8.4, 12.6)
TEMPLATE_BLURS = (0, 2, 4, 8)  # passes of a blur; eight are a Gaussian of two pixels
TEMPLATE_SIDE = 25
TEMPLATE_REACH = 1.7  # half the side of a template, in radii of the circle of equal area
ATTRIBUTES = ("colour", "shape", "position")


@dataclass(frozen=True)
class Finding:
    """One object the judge sees; `confidence` is the overlap (0 to 1) with the shape that fits best."""

    shape: str
    colour: str
    position: str
    size: str
    confidence: float


def _dot(first: FloatArray, second: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("...c,...c->...", first, second))


# --- background -------------------------------------------------------------------------------------------------


@functools.cache
def _background_basis() -> FloatArray:
    """Monomials up to the second degree at every pixel: they hold plain, linear and radial backgrounds exactly."""
    x, y = (centres.ravel() / (FRAME / 2) - 1.0 for centres in pixel_centres(GRID))
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)


@functools.cache
def _border() -> npt.NDArray[np.intp]:
    """The pixels along the edge, where a picture of the data set has no object."""
    border = np.ones((GRID, GRID), dtype=bool)
    border[2:-2, 2:-2] = False
    return np.flatnonzero(border)


def _fit_agreeing(basis: FloatArray, pixels: FloatArray, chosen: BoolArray, rounds: int) -> FloatArray:
    """Coefficients fitted to the pixels that agree with them, found in a few rounds of fitting and choosing."""
    coefficients: FloatArray = np.zeros((basis.shape[1], pixels.shape[1]))
    for _ in range(rounds):
        agreeing = basis[chosen]
        solution = np.linalg.lstsq(agreeing.T @ agreeing, agreeing.T @ pixels[chosen], rcond=None)
        coefficients = np.asarray(solution[0], dtype=np.float64)
        chosen = _agrees(basis, pixels, coefficients)
    return coefficients


def _agrees(basis: FloatArray, pixels: FloatArray, coefficients: FloatArray) -> BoolArray:
    residual = _dot(difference := pixels - basis @ coefficients, difference)
    return np.asarray(residual <= max(10.0**2, 2.5**2 * float(np.median(residual))))


def _fit_background(picture: FloatArray) -> FloatArray:
    """The smooth background below the objects: from the border first, then from all pixels that agree with that."""
    basis, border, pixels = _background_basis(), _border(), picture.reshape(-1, 3)
    everywhere = np.ones(len(border), dtype=bool)
    coefficients = _fit_agreeing(basis[border], pixels[border], everywhere, rounds=4)
    coefficients = _fit_agreeing(basis, pixels, _agrees(basis, pixels, coefficients), rounds=3)
    return (basis @ coefficients).reshape(picture.shape)


# --- parts ------------------------------------------------------------------------------------------------------


def _smooth(values: FloatArray) -> FloatArray:
    """A 3 x 3 binomial blur over the first two axes, with the edge repeated."""
    for axis in (0, 1):
        padding = [(1, 1) if axis == side else (0, 0) for side in range(values.ndim)]
        padded = np.pad(values, padding, mode="edge")
        length = values.shape[axis]
        before, here, after = (padded.take(range(start, start + length), axis=axis) for start in range(3))
        values = 0.25 * before + 0.5 * here + 0.25 * after
    return values


def _erode(mask: BoolArray) -> BoolArray:
    inner = mask.copy()
    inner[1:] &= mask[:-1]
    inner[:-1] &= mask[1:]
    inner[:, 1:] &= mask[:, :-1]
    inner[:, :-1] &= mask[:, 1:]
    return inner


def _dilate(mask: BoolArray, steps: int) -> BoolArray:
    for _ in range(steps):
        mask = ~_erode(~mask)
    return mask


def _runs(mask: BoolArray) -> list[tuple[int, int, int]]:
    """The (row, start, end) of each unbroken horizontal stretch of a mask, from top to bottom."""
    changes = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(changes == 1)
    _, ends = np.nonzero(changes == -1)
    return list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))


def label_parts(mask: BoolArray) -> tuple[LabelArray, int]:
    """Number the connected parts of a mask from 1 (0 is outside), joining pixels that share a side; and their count."""
    parents: list[int] = []

    def root(run: int) -> int:
        while parents[run] != run:
            parents[run] = parents[parents[run]]
            run = parents[run]
        return run

    runs = _runs(mask)
    first_above = 0
    for name, (row, start, end) in enumerate(runs):
        parents.append(name)
        while runs[first_above][0] < row - 1:
            first_above += 1
        for other in range(first_above, name):
            other_row, other_start, other_end = runs[other]
            if other_row == row - 1 and other_start < end and start < other_end:
                parents[root(name)] = root(other)
    numbers: dict[int, int] = {}
    labels = np.zeros(mask.shape, dtype=np.int64)
    for name, (row, start, end) in enumerate(runs):
        labels[row, start:end] = numbers.setdefault(root(name), len(numbers) + 1)
    return labels, len(numbers)


def _largest_part(mask: BoolArray) -> BoolArray:
    labels, count = label_parts(mask)
    if count == 0:
        return np.zeros_like(mask)
    sizes = np.bincount(labels.ravel(), minlength=count + 1)
    return np.asarray(labels == 1 + int(np.argmax(sizes[1:])))


def _core_colour(smoothed: FloatArray, contrast: FloatArray, part: BoolArray) -> FloatArray:
    """The colour of a part where it stands out most, for there blur has mixed in least.

    If two objects have run together it is the colour of one of them, never something in between: the middle is
    taken around the pixel that is closest to all others.
    """
    colours = smoothed[part & (contrast >= np.quantile(contrast[part], CORE_QUANTILE))]
    examples = colours[:: 1 + len(colours) // 64]
    distances = np.linalg.norm(examples[:, None] - colours, axis=-1)
    around = distances[int(np.argmin(distances.sum(axis=1)))]
    return np.asarray(np.median(colours[around <= LEAST_CONTRAST], axis=0))


def _opacity(picture: FloatArray, background: FloatArray, colour: FloatArray) -> FloatArray:
    """How much of each pixel has the colour rather than the background: 0 to 1, soft at edges and under blur."""
    towards = colour - background
    along = _dot(picture - background, towards)
    return np.clip(along / np.maximum(_dot(towards, towards), 1.0), 0.0, 1.0)


def _is_mixture(picture: FloatArray, background: FloatArray, colour: FloatArray, opacity: FloatArray) -> BoolArray:
    """Which pixels are explained by the colour over the background; the others belong to something else."""
    towards = colour - background
    beside = picture - background - opacity[..., None] * towards
    tolerance = np.maximum(MIXTURE_TOLERANCE**2 * _dot(towards, towards), (1.5 * LEAST_CONTRAST) ** 2)
    return np.asarray(_dot(beside, beside) <= tolerance)


def _find_parts(picture: FloatArray, background: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
    """The soft mask and the colour of each object, largest first.

    Objects are taken off one by one: the colour of the largest part tells which of its pixels are more object than
    background, and that cuts it from a neighbour it has run into.
    """
    smoothed = _smooth(picture)
    contrast = np.linalg.norm(smoothed - background, axis=-1)
    remaining = contrast >= LEAST_CONTRAST
    found: list[tuple[FloatArray, FloatArray]] = []
    while len(found) < MOST_FINDINGS:
        part = _largest_part(remaining)
        if part.sum() < LEAST_AREA:
            break
        colour = _core_colour(smoothed, contrast, part)
        opacity = _opacity(smoothed, background, colour)
        mixture = _is_mixture(smoothed, background, colour, opacity)
        body = _largest_part(part & mixture & (opacity >= 0.5))
        if body.sum() < LEAST_AREA:
            remaining &= ~part
            continue
        around = _dilate(body, 2)
        sharp = _opacity(picture, background, colour)
        found.append((np.where(around & mixture, sharp, 0.0), colour))
        fringe = _dilate(around, 3) & mixture & (opacity < 0.5)
        remaining &= ~(around | fringe)
    return sorted(found, key=lambda one: -float(one[0].sum()))


# --- shape ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Templates:
    """Masks of all shapes as `_normalise` gives them (templates x pixels), and how wide each is for its area."""

    shapes: tuple[str, ...]
    masks: FloatArray
    radius_per_width: FloatArray


def _centre_and_width(mask: FloatArray) -> tuple[float, float, float]:
    """The centre of mass, and the radius of the circle of equal area."""
    x, y = pixel_centres(GRID)
    area = max(float(mask.sum()), 1e-6)
    return float((mask * x).sum()) / area, float((mask * y).sum()) / area, math.sqrt(area / math.pi)


def _normalise(mask: FloatArray) -> FloatArray:
    """The mask seen from its centre of mass at unit area, so that only its form is left."""
    centre_x, centre_y, width = _centre_and_width(mask)
    steps = np.linspace(-TEMPLATE_REACH, TEMPLATE_REACH, TEMPLATE_SIDE) * width
    rows, columns = (_interpolation(centre + steps) for centre in (centre_y, centre_x))
    return (rows @ mask @ columns.T).ravel()


def _interpolation(places: FloatArray) -> FloatArray:
    """Weights (places x pixels) that read a row of pixels between their centres; nothing lies beyond the edge."""
    return np.maximum(0.0, 1.0 - np.abs(places[:, None] - 0.5 - np.arange(GRID)))


def _template_mask(shape: str, radius: float, angle: float, blurs: int) -> FloatArray:
    """A shape as the judge sees it in a picture: found in the same way, so that both err in the same way."""
    mask = coverage(shape, (FRAME / 2, FRAME / 2), radius, angle, GRID)
    for _ in range(blurs):
        mask = _smooth(mask)
    picture = 255.0 * np.repeat(mask[..., None], 3, axis=2)
    return _find_parts(picture, np.zeros_like(picture))[0][0]


@functools.cache
def _templates() -> _Templates:
    names, masks, ratios = [], [], []
    for shape in SHAPES:
        angles = (0.0,) if shape in ("circle", "ring") else TEMPLATE_ANGLES
        for radius, angle, blurs in itertools.product(TEMPLATE_RADII, angles, TEMPLATE_BLURS):
            mask = _template_mask(shape, radius, angle, blurs)
            names.append(shape)
            masks.append(_normalise(mask))
            ratios.append(radius / _centre_and_width(mask)[2])
    return _Templates(tuple(names), np.stack(masks), np.array(ratios))


def _fit_shape(mask: FloatArray) -> tuple[str, float, float]:
    """The shape that fits best, its overlap (shared over joint area) with the mask, and its radius."""
    templates = _templates()
    form = _normalise(mask)
    shared = np.minimum(templates.masks, form).sum(axis=1)
    joint = np.maximum(templates.masks, form).sum(axis=1)
    best = int(np.argmax(shared / joint))
    width = _centre_and_width(mask)[2]
    return templates.shapes[best], float(shared[best] / joint[best]), width * float(templates.radius_per_width[best])


# --- the judge --------------------------------------------------------------------------------------------------


def _colour_name(colour: FloatArray) -> str:
    difference = (oklab(list(COLOURS.values())) - oklab(colour)) * OKLAB_WEIGHTS
    return list(COLOURS)[int(np.argmin(np.linalg.norm(difference, axis=1)))]


def _cell(place: float) -> int:
    return sum(place > edge for edge in CELL_EDGES)


def _describe(mask: FloatArray, colour: FloatArray) -> Finding:
    shape, overlap, radius = _fit_shape(mask)
    x, y, _ = _centre_and_width(mask)
    return Finding(
        shape=shape,
        colour=_colour_name(colour),
        position=POSITIONS[3 * _cell(y) + _cell(x)],
        size="large" if radius > SIZE_EDGE else "small",
        confidence=overlap,
    )


def _on_grid(image: npt.NDArray[np.uint8]) -> FloatArray:
    if image.ndim != 3 or image.shape[2] != 3 or image.shape[0] != image.shape[1] or image.dtype != np.uint8:
        raise ValueError(
            f"the judge takes square uint8 pictures of shape (size, size, 3), not {image.dtype} {image.shape}"
        )
    if image.shape[0] == GRID:
        return image.astype(np.float64)
    filtering = Image.Resampling.BOX if image.shape[0] > GRID else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(image).resize((GRID, GRID), filtering), dtype=np.float64)


def judge(image: npt.NDArray[np.uint8]) -> list[Finding]:
    """What a picture (size x size x 3) shows, largest object first; an empty list if there is only background."""
    picture = _on_grid(image)
    background = _fit_background(picture)
    findings = [_describe(mask, colour) for mask, colour in _find_parts(picture, background)]
    return [finding for finding in findings if finding.confidence >= LEAST_OVERLAP]


def _agreement(promised: Mapping[str, object], finding: Finding | None) -> dict[str, bool]:
    agrees = {name: finding is not None and promised[name] == getattr(finding, name) for name in ATTRIBUTES}
    return agrees | {"pair": agrees["colour"] and agrees["shape"]}


def match(objects: Sequence[Mapping[str, object]], findings: Sequence[Finding]) -> dict[str, float]:
    """The share of the objects whose `colour`, `shape` and `position` were found, and colour and shape both (`pair`).

    Each finding stands for at most one object; of all ways to assign them the one with most agreement counts.
    """
    if not objects:
        raise ValueError("match needs at least one object to look for")
    candidates: list[Finding | None] = [*findings, *([None] * len(objects))]
    assignments = (
        [_agreement(one, finding) for one, finding in zip(objects, chosen, strict=True)]
        for chosen in itertools.permutations(candidates, len(objects))
    )
    best = max(assignments, key=lambda rows: sum(sum(row.values()) for row in rows))
    return {name: sum(row[name] for row in best) / len(objects) for name in (*ATTRIBUTES, "pair")}


class ShapesJudge(Judge[Tensor]):
    """Images (3, size, size) in [0, 1]: the fraction of the objects of which the image shows what the caption says."""

    def knows(self, row: Row) -> bool:
        objects = row.get("objects")
        return isinstance(objects, list) and 0 < len(objects) <= 2 and all(has_keys(one, ATTRIBUTES) for one in objects)

    def score(self, media: Tensor, row: Row) -> Scores:
        found = match(row["objects"], judge(to_uint8(media)))
        return {f"match_{name}": found[name] for name in ATTRIBUTES}

    def score_withheld(self, media: Tensor, row: Row) -> Scores:
        pairs = [one for one in row["objects"] if (one["colour"], one["shape"]) in WITHHELD_PAIRS]
        return {"match_withheld": match(pairs, judge(to_uint8(media)))["pair"]}
