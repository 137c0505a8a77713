"""The synthetic video dataset `motions`: one coloured shape that moves, grows, shrinks or bounces, with a caption.

This module has its vocabulary, random scenes, rendering, captions, splits and writing. An item is a pure function of
(seed, index, size); the scene and its caption do not depend on the size. Shapes and colours are those of the dataset
`shapes`, in its frame of 64 x 64 units with y pointing down. Every frame differs from the previous one.

`quintet.synthetic.motions_judge` recognises the content of a clip. Metrics are comparable only while neither the items
nor the judge change, so a change to either needs a new `VERSION`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from quintet.media.video_writing import write_video
from quintet.synthetic.folders import pick, split_by_words, with_article, write_items
from quintet.synthetic.shapes import COLOURS, FRAME, SHAPES, FloatArray, coverage, linear_gradient, oklab

VERSION = 1
FRAMES = 17
RATE = 8
"""Frames per second."""

MOTIONS = ("left", "right", "up", "down", "grow", "shrink", "bounce")

# Combinations that are never trained on. No shape and no motion is listed twice, so that each remains frequent in
# training and only the combination is new.
WITHHELD_PAIRS = frozenset({("circle", "left"), ("star", "up"), ("heart", "grow"), ("square", "bounce")})

RADII = (8.5, 11.0)
SMALL_RADII, LARGE_RADII = (6.0, 7.0), (12.0, 13.5)  # start and end of growing
REACH = 1.25  # maximum extent of a shape from its origin, in radii
BORDER_GAP = 4.0  # between an outline and the edge of the image
START_JITTER = 4.0  # variation of the start and end of a path
FALL = (16.0, 22.0)  # height of a bounce
ANGLE_JITTER = math.radians(8)
COLOUR_JITTER = 8  # of 255, per channel
BACKGROUND_CONTRAST = 0.2  # minimum distance in Oklab between the shape and the background
BACKGROUND_GREYS = (24.0, 240.0)  # of 255, before a slight tint
GRADIENT_RISE = (24.0, 80.0)  # of 255, from one side to the other
PLAIN_FRACTION = 0.5

Clip = npt.NDArray[np.uint8]


class MotionRecord(TypedDict):
    """The attributes of one clip, as in `metadata.jsonl`."""

    shape: str
    colour: str
    motion: str


class MotionItem(NamedTuple):
    """One clip (frames, height, width, 3), its caption and its attributes."""

    clip: Clip
    caption: str
    record: MotionRecord


@dataclass(frozen=True)
class Scene:
    """Input of the renderer; `x`, `y` and `radius` have one value per video frame, in units of the 64 x 64 frame."""

    record: MotionRecord
    rgb: FloatArray
    x: FloatArray
    y: FloatArray
    radius: FloatArray
    angle: float
    start: FloatArray
    """Background colour at one side."""
    end: FloatArray
    """Background colour at the other side, along `direction`."""
    direction: float


# --- scenes -----------------------------------------------------------------------------------------------------


def draw_record(rng: np.random.Generator) -> MotionRecord:
    return {"shape": pick(rng, SHAPES), "colour": pick(rng, tuple(COLOURS)), "motion": pick(rng, MOTIONS)}


def draw_scene(rng: np.random.Generator, record: MotionRecord) -> Scene:
    """A random scene with the attributes of the record."""
    x, y, radius = _draw_path(rng, record["motion"])
    rgb = np.asarray(COLOURS[record["colour"]]) + rng.uniform(-COLOUR_JITTER, COLOUR_JITTER, size=3)
    rgb = np.clip(rgb, 0.0, 255.0)
    start, end = _draw_background(rng, rgb)
    angle, direction = rng.uniform(-ANGLE_JITTER, ANGLE_JITTER), rng.uniform(0.0, 2 * math.pi)
    return Scene(record, rgb, x, y, radius, angle, start, end, direction)


def _draw_path(rng: np.random.Generator, motion: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The centre (x, y) and the radius in each video frame."""
    along = np.linspace(0.0, 1.0, FRAMES)
    if motion in ("grow", "shrink"):
        small, large = rng.uniform(*SMALL_RADII), rng.uniform(*LARGE_RADII)
        radius = small * (large / small) ** (along if motion == "grow" else along[::-1])
        x, y = (np.full(FRAMES, _draw_position(rng, large)) for _ in range(2))
        return x, y, radius
    size = rng.uniform(*RADII)
    nearest = size * REACH + BORDER_GAP
    radius = np.full(FRAMES, size)
    across = np.full(FRAMES, _draw_position(rng, size))
    if motion == "bounce":
        floor = FRAME - nearest - rng.uniform(0.0, START_JITTER)
        fall = min(rng.uniform(*FALL), floor - nearest)
        # Accelerates downwards and rises symmetrically; the middle frame is on the floor.
        return across, floor - fall * (1 - (1 - np.abs(2 * along - 1)) ** 2), radius
    first, last = nearest + rng.uniform(0.0, START_JITTER), FRAME - nearest - rng.uniform(0.0, START_JITTER)
    path = first + (last - first) * (along if motion in ("right", "down") else along[::-1])
    return (path, across, radius) if motion in ("left", "right") else (across, path, radius)


def _draw_position(rng: np.random.Generator, radius: float) -> float:
    nearest = radius * REACH + BORDER_GAP
    return float(rng.uniform(nearest, FRAME - nearest))


def _draw_background(rng: np.random.Generator, rgb: FloatArray) -> tuple[FloatArray, FloatArray]:
    darkest, lightest = BACKGROUND_GREYS
    plain = rng.random() < PLAIN_FRACTION
    while True:  # for every colour at least one in ten is accepted
        grey = rng.uniform(darkest, lightest)
        rise = 0.0 if plain else rng.choice((-1.0, 1.0)) * rng.uniform(*GRADIENT_RISE)
        tints = rng.uniform(-14.0, 14.0, size=(2, 3))
        start, end = grey + tints[0], grey + rise + tints[0 if plain else 1]
        along = oklab([start, 0.5 * (start + end), end])
        if darkest <= grey + rise <= lightest and np.linalg.norm(along - oklab(rgb), axis=1).min() >= (
            BACKGROUND_CONTRAST
        ):
            return start, end


# --- rendering --------------------------------------------------------------------------------------------------


def render(scene: Scene, size: int) -> Clip:
    """The clip of a scene, (frames, size, size, 3)."""
    background = _render_background(scene, size)
    clip = np.empty((FRAMES, size, size, 3), np.uint8)
    for number, (x, y, radius) in enumerate(zip(scene.x, scene.y, scene.radius, strict=True)):
        mask = coverage(scene.record["shape"], (float(x), float(y)), float(radius), scene.angle, size)[..., None]
        clip[number] = np.clip(np.rint(background + mask * (scene.rgb - background)), 0, 255)
    return clip


def _render_background(scene: Scene, size: int) -> FloatArray:
    along = linear_gradient(scene.direction, size)
    return np.asarray(scene.start + along[..., None] * (scene.end - scene.start))


# --- captions ---------------------------------------------------------------------------------------------------

_VERBS = {
    "left": ("moves left", "goes to the left", "slides from right to left", "drifts leftwards"),
    "right": ("moves right", "goes to the right", "slides from left to right", "drifts rightwards"),
    "up": ("moves up", "rises", "goes upwards", "climbs to the top"),
    "down": ("moves down", "sinks", "goes downwards", "slides to the bottom"),
    "grow": ("grows", "gets bigger", "becomes larger", "swells"),
    "shrink": ("shrinks", "gets smaller", "becomes smaller", "dwindles"),
    "bounce": ("bounces", "bounces off the floor", "drops and jumps back", "falls and springs up again"),
}
_PHRASES = (
    "{thing} {verb}",
    "{thing} that {verb}",
    "a video of {thing} that {verb}",
    "there is {thing}, and it {verb}",
    "{thing}: it {verb}",
    "the {colour} {shape} {verb}",
    "a clip in which {thing} {verb}",
)


def caption_of(rng: np.random.Generator, record: MotionRecord) -> str:
    """A random caption of a clip."""
    colour, shape = record["colour"], record["shape"]
    thing = with_article(f"{colour} {shape}")
    verb = pick(rng, _VERBS[record["motion"]])
    return pick(rng, _PHRASES).format(thing=thing, verb=verb, colour=colour, shape=shape)


# --- items and the folder ---------------------------------------------------------------------------------------


def draw_item(seed: int, index: int, size: int = 64) -> MotionItem:
    """One item of the dataset, a pure function of its arguments."""
    rng = np.random.default_rng([seed, index])
    record = draw_record(rng)
    caption = caption_of(rng, record)
    return MotionItem(render(draw_scene(rng, record), size), caption, record)


def split_of(caption: str, record: MotionRecord) -> str:
    """`train`, `validation` or `withheld`, by the words of the caption: equal captions are in the same split."""
    return split_by_words(caption, (record["shape"], record["motion"]) in WITHHELD_PAIRS)


def make_motions(folder: Path, num: int = 5000, size: int = 64, seed: int = 0) -> None:
    """Write the dataset: `videos/`, `dataset.json` (its settings) and `metadata.jsonl`.

    Clips are lossless WebP, so that every decoder returns the rendered pixels.
    """

    def write(index: int, path: Path) -> dict[str, object]:
        item = draw_item(seed, index, size)
        write_video(item.clip, path, RATE)
        return {"text": item.caption, "split": split_of(item.caption, item.record), "motion": item.record}

    metadata = {"name": "motions", "version": VERSION, "num": num, "size": size, "seed": seed}
    write_items(folder, metadata, "clip", "videos/{:05d}.webp", write)
