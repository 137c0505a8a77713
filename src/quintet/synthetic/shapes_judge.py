"""The judge of the dataset `shapes`: image analysis without learned weights that recognises the objects of an image.

A smooth background is fitted and subtracted, and the remaining pixels are split into connected components. Each
component gets the nearest named colour and the shape whose rendered outline fits best. It also handles lossy
reconstructions: noise, blur, slightly wrong colours and block artefacts. `match` compares the findings with the
attributes of a caption.
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

GRID = int(FRAME)  # every image is resized to this, so that one set of thresholds and templates is enough
MIN_CONTRAST = 26.0  # of 255: smaller differences from the background are artefacts
MIN_AREA = 45.0  # pixels of the grid; the smallest shape of the dataset covers more than 120
MIN_OVERLAP = 0.5  # with the best shape; lower is an artefact, and readable objects reach 0.75
MAX_FINDINGS = 3  # one more than in any caption, so that a surplus object is found
CORE_QUANTILE = 0.7  # of a component's contrast: the pixels above it give its colour
CELL_EDGES = (24.5, FRAME - 24.5)  # between the outermost position of one cell and the innermost of the next
SIZE_EDGE = (RADII["small"][1] + RADII["large"][0]) / 2
MIXTURE_TOLERANCE = 0.3  # maximum relative distance of a mixture from the line between background and colour
OKLAB_WEIGHTS = (0.6, 1.0, 1.0)  # blur and artefacts change lightness more than hue
TEMPLATE_ANGLES = tuple(math.radians(degrees) for degrees in (-8, -4, 0, 4, 8))
TEMPLATE_RADII = (8.4, 12.6)
TEMPLATE_BLURS = (0, 2, 4, 8)  # passes of a blur; eight approximate a Gaussian of two pixels
TEMPLATE_SIDE = 25
TEMPLATE_REACH = 1.7  # half the side of a template, in radii of the circle of equal area
ATTRIBUTES = ("colour", "shape", "position")


@dataclass(frozen=True)
class Finding:
    """One recognised object; `confidence` is the overlap (0 to 1) with the best shape."""

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
    """Monomials up to degree two at every pixel, which represent plain, linear and radial backgrounds exactly."""
    x, y = (centres.ravel() / (FRAME / 2) - 1.0 for centres in pixel_centres(GRID))
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)


@functools.cache
def _border() -> npt.NDArray[np.intp]:
    """The indices of the pixels along the edge, where an image of the dataset has no object."""
    border = np.ones((GRID, GRID), dtype=bool)
    border[2:-2, 2:-2] = False
    return np.flatnonzero(border)


def _fit_agreeing(basis: FloatArray, pixels: FloatArray, chosen: BoolArray, rounds: int) -> FloatArray:
    """Robust fit: coefficients of the pixels that agree with them, by alternating fitting and selection."""
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


def _fit_background(image: FloatArray) -> FloatArray:
    """The smooth background: fitted to the border first, then to all pixels that agree."""
    basis, border, pixels = _background_basis(), _border(), image.reshape(-1, 3)
    everywhere = np.ones(len(border), dtype=bool)
    coefficients = _fit_agreeing(basis[border], pixels[border], everywhere, rounds=4)
    coefficients = _fit_agreeing(basis, pixels, _agrees(basis, pixels, coefficients), rounds=3)
    return (basis @ coefficients).reshape(image.shape)


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
    """The (row, start, end) of each horizontal run of a mask, from top to bottom."""
    changes = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(changes == 1)
    _, ends = np.nonzero(changes == -1)
    return list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))


def label_parts(mask: BoolArray) -> tuple[LabelArray, int]:
    """Connected components (4-neighbourhood) of a mask, labelled from 1 (0 is outside), and their number."""
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
    """The colour of a component where its contrast is highest, because blur affects it least there.

    If two objects are connected, it is the colour of one of them and not a mixture: the median is taken around the
    pixel that is closest to all others.
    """
    colours = smoothed[part & (contrast >= np.quantile(contrast[part], CORE_QUANTILE))]
    examples = colours[:: 1 + len(colours) // 64]
    distances = np.linalg.norm(examples[:, None] - colours, axis=-1)
    around = distances[int(np.argmin(distances.sum(axis=1)))]
    return np.asarray(np.median(colours[around <= MIN_CONTRAST], axis=0))


def _opacity(image: FloatArray, background: FloatArray, colour: FloatArray) -> FloatArray:
    """The opacity of the colour over the background at each pixel, 0 to 1, soft at edges and under blur."""
    towards = colour - background
    along = _dot(image - background, towards)
    return np.clip(along / np.maximum(_dot(towards, towards), 1.0), 0.0, 1.0)


def _is_mixture(image: FloatArray, background: FloatArray, colour: FloatArray, opacity: FloatArray) -> BoolArray:
    """Mask of the pixels that are mixtures of the colour and the background; others belong to another object."""
    towards = colour - background
    beside = image - background - opacity[..., None] * towards
    tolerance = np.maximum(MIXTURE_TOLERANCE**2 * _dot(towards, towards), (1.5 * MIN_CONTRAST) ** 2)
    return np.asarray(_dot(beside, beside) <= tolerance)


def _find_parts(image: FloatArray, background: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
    """The soft mask and the colour of each object, largest first.

    Objects are extracted one by one: the colour of the largest component gives the pixels that are mostly object, which
    separates it from a connected neighbour.
    """
    smoothed = _smooth(image)
    contrast = np.linalg.norm(smoothed - background, axis=-1)
    remaining = contrast >= MIN_CONTRAST
    found: list[tuple[FloatArray, FloatArray]] = []
    while len(found) < MAX_FINDINGS:
        part = _largest_part(remaining)
        if part.sum() < MIN_AREA:
            break
        colour = _core_colour(smoothed, contrast, part)
        opacity = _opacity(smoothed, background, colour)
        mixture = _is_mixture(smoothed, background, colour, opacity)
        body = _largest_part(part & mixture & (opacity >= 0.5))
        if body.sum() < MIN_AREA:
            remaining &= ~part
            continue
        around = _dilate(body, 2)
        sharp = _opacity(image, background, colour)
        found.append((np.where(around & mixture, sharp, 0.0), colour))
        fringe = _dilate(around, 3) & mixture & (opacity < 0.5)
        remaining &= ~(around | fringe)
    return sorted(found, key=lambda one: -float(one[0].sum()))


# --- shape ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Templates:
    """Normalised masks of all shapes (templates, pixels), and the ratio of radius to width of each."""

    shapes: tuple[str, ...]
    masks: FloatArray
    radius_per_width: FloatArray


def _centre_and_width(mask: FloatArray) -> tuple[float, float, float]:
    """The centre of mass, and the radius of the circle of equal area."""
    x, y = pixel_centres(GRID)
    area = max(float(mask.sum()), 1e-6)
    return float((mask * x).sum()) / area, float((mask * y).sum()) / area, math.sqrt(area / math.pi)


def _normalise(mask: FloatArray) -> FloatArray:
    """The mask resampled around its centre of mass at unit area, so that only its form remains."""
    centre_x, centre_y, width = _centre_and_width(mask)
    steps = np.linspace(-TEMPLATE_REACH, TEMPLATE_REACH, TEMPLATE_SIDE) * width
    rows, columns = (_interpolation(centre + steps) for centre in (centre_y, centre_x))
    return (rows @ mask @ columns.T).ravel()


def _interpolation(positions: FloatArray) -> FloatArray:
    """Linear interpolation weights (positions, pixels) of a row of pixels; values beyond the edge are 0."""
    return np.maximum(0.0, 1.0 - np.abs(positions[:, None] - 0.5 - np.arange(GRID)))


def _template_mask(shape: str, radius: float, angle: float, blurs: int) -> FloatArray:
    """The mask of a shape as the judge extracts it from an image, with the same systematic errors."""
    mask = coverage(shape, (FRAME / 2, FRAME / 2), radius, angle, GRID)
    for _ in range(blurs):
        mask = _smooth(mask)
    image = 255.0 * np.repeat(mask[..., None], 3, axis=2)
    return _find_parts(image, np.zeros_like(image))[0][0]


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
    """The best shape, its intersection over union with the mask, and its radius."""
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


def _cell(position: float) -> int:
    return sum(position > edge for edge in CELL_EDGES)


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
            f"the judge takes square uint8 images of shape (size, size, 3), not {image.dtype} {image.shape}"
        )
    if image.shape[0] == GRID:
        return image.astype(np.float64)
    filtering = Image.Resampling.BOX if image.shape[0] > GRID else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(image).resize((GRID, GRID), filtering), dtype=np.float64)


def judge(image: npt.NDArray[np.uint8]) -> list[Finding]:
    """Recognise the objects of an image (size, size, 3), largest first; an empty list if there are none."""
    pixels = _on_grid(image)
    background = _fit_background(pixels)
    findings = [_describe(mask, colour) for mask, colour in _find_parts(pixels, background)]
    return [finding for finding in findings if finding.confidence >= MIN_OVERLAP]


def _agreement(expected: Mapping[str, object], finding: Finding | None) -> dict[str, bool]:
    agrees = {name: finding is not None and expected[name] == getattr(finding, name) for name in ATTRIBUTES}
    return agrees | {"pair": agrees["colour"] and agrees["shape"]}


def match(objects: Sequence[Mapping[str, object]], findings: Sequence[Finding]) -> dict[str, float]:
    """The fraction of objects with the right `colour`, `shape` and `position`, and both colour and shape (`pair`).

    Each finding is assigned to at most one object; the assignment with the most agreement counts.
    """
    if not objects:
        raise ValueError("match needs at least one object")
    candidates: list[Finding | None] = [*findings, *([None] * len(objects))]
    assignments = (
        [_agreement(one, finding) for one, finding in zip(objects, chosen, strict=True)]
        for chosen in itertools.permutations(candidates, len(objects))
    )
    best = max(assignments, key=lambda rows: sum(sum(row.values()) for row in rows))
    return {name: sum(row[name] for row in best) / len(objects) for name in (*ATTRIBUTES, "pair")}


class ShapesJudge(Judge[Tensor]):
    """Judge of images (3, size, size) in [0, 1]: the fraction of objects that match the caption."""

    def knows(self, row: Row) -> bool:
        objects = row.get("objects")
        return isinstance(objects, list) and 0 < len(objects) <= 2 and all(has_keys(one, ATTRIBUTES) for one in objects)

    def score(self, media: Tensor, row: Row) -> Scores:
        found = match(row["objects"], judge(to_uint8(media)))
        return {f"match_{name}": found[name] for name in ATTRIBUTES}

    def score_withheld(self, media: Tensor, row: Row) -> Scores:
        pairs = [one for one in row["objects"] if (one["colour"], one["shape"]) in WITHHELD_PAIRS]
        # A user may have moved another item to the split.
        return {"match_withheld": match(pairs, judge(to_uint8(media)))["pair"] if pairs else math.nan}
