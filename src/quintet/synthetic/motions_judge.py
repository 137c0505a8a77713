"""The judge of the dataset `motions`: image analysis without learned weights that recognises the content of a clip.

In each frame a smooth background is fitted to the edge of the image, and the region that differs most from it is
tracked through the clip: its path gives left, right, up, down and bounce, its area grow and shrink. Colour and shape
are recognised by the judge of `shapes` in some of the frames. `match` compares a finding with the attributes of a
caption.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from quintet.media.video_writing import as_clip
from quintet.synthetic.judges import Judge, Row, Scores, has_keys
from quintet.synthetic.motions import MotionRecord
from quintet.synthetic.shapes import FRAME, FloatArray, pixel_centres
from quintet.synthetic.shapes_judge import judge as judge_image
from quintet.synthetic.shapes_judge import label_parts

GRID = int(FRAME)  # every frame is resized to this, so that one set of thresholds is enough
EDGE = 2  # pixels along the edge, where a clip of the dataset has no shape
MIN_CONTRAST = 26.0  # of 255: smaller differences from the background are artefacts
MIN_AREA = 45.0  # pixels of the grid; the smallest shape of the dataset covers more than 65
NUM_VOTES = 5  # frames in which colour and shape are recognised
MIN_VISIBLE = 0.6  # fraction of the frames: a shape that is visible in fewer has no motion
ENDS = 3  # frames that are averaged at the start and at the end
MIN_DISTANCE = 6.0  # units of the frame; the shortest path of the dataset is longer than 15
MIN_DROP = 5.0  # units between the ends and the middle of a bounce; more than 12 in the dataset
MIN_GROWTH = math.log(1.7)  # of the area; more than log(2.5) in the dataset
ATTRIBUTES = ("colour", "shape", "motion")


@dataclass(frozen=True)
class Finding:
    """Recognised attributes, None if not recognised; `seen` is the fraction of frames in which a shape is visible."""

    shape: str | None
    colour: str | None
    motion: str | None
    seen: float


NOTHING = Finding(None, None, None, 0.0)


def judge(clip: npt.NDArray[np.uint8]) -> Finding:
    """Recognise the content of a clip (frames, size, size, 3)."""
    if clip.ndim != 4 or clip.shape[3] != 3 or clip.shape[1] != clip.shape[2] or clip.dtype != np.uint8:
        raise ValueError(
            f"the judge takes square uint8 clips of shape (frames, size, size, 3), not {clip.dtype} {clip.shape}"
        )
    track = np.array([_track(frame) for frame in clip])
    visible = ~np.isnan(track[:, 0])
    if not visible.any():
        return NOTHING
    colour, shape = _appearance(clip[visible])
    fraction = float(visible.mean())
    return Finding(shape, colour, _motion(track[visible]) if fraction >= MIN_VISIBLE else None, fraction)


def match(record: MotionRecord, finding: Finding) -> dict[str, bool]:
    """Whether each attribute was recognised, by name, and whether all were (`everything`)."""
    found = {name: getattr(finding, name) == dict(record)[name] for name in ATTRIBUTES}
    return found | {"everything": all(found.values())}


# --- frames -----------------------------------------------------------------------------------------------------


def _on_grid(frame: npt.NDArray[np.uint8]) -> FloatArray:
    if frame.shape[0] == GRID:
        return frame.astype(np.float64)
    filtering = Image.Resampling.BOX if frame.shape[0] > GRID else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(frame).resize((GRID, GRID), filtering), dtype=np.float64)


@functools.cache
def _background_of_edge() -> tuple[npt.NDArray[np.intp], FloatArray]:
    """The indices of the pixels along the edge, and the matrix from their colours to a smooth background."""
    x, y = (centres.ravel() / (FRAME / 2) - 1.0 for centres in pixel_centres(GRID))
    basis = np.stack([np.ones_like(x), x, y], axis=1)
    edge = np.ones((GRID, GRID), dtype=bool)
    edge[EDGE:-EDGE, EDGE:-EDGE] = False
    indices = np.flatnonzero(edge)
    return indices, basis @ np.linalg.pinv(basis[indices])


def _track(frame: npt.NDArray[np.uint8]) -> tuple[float, float, float]:
    """Centre (x, y) and area of the region with the most contrast in a frame; NaN if there is none."""
    image = _on_grid(frame)
    indices, spread = _background_of_edge()
    background = (spread @ image.reshape(-1, 3)[indices]).reshape(image.shape)
    contrast = _smooth(np.linalg.norm(image - background, axis=-1))
    labels, count = label_parts(contrast >= MIN_CONTRAST)
    sizes = np.bincount(labels.ravel(), weights=contrast.ravel(), minlength=count + 1)
    sizes[0] = 0.0
    part = labels == int(np.argmax(sizes))
    if count == 0 or part.sum() < MIN_AREA:
        return math.nan, math.nan, math.nan
    weights = np.where(part, contrast, 0.0)
    # Relative to the strongest contrast, so that the soft edge of a blurred shape counts half.
    area = float(weights.sum() / np.quantile(contrast[part], 0.9))
    x, y = (float((weights * centres).sum() / weights.sum()) for centres in pixel_centres(GRID))
    return x, y, area


def _smooth(values: FloatArray) -> FloatArray:
    """A 3 x 3 binomial blur with the edge repeated."""
    padded = np.pad(values, 1, mode="edge")
    rows = 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]
    return np.asarray(0.25 * rows[:, :-2] + 0.5 * rows[:, 1:-1] + 0.25 * rows[:, 2:])


def _appearance(frames: npt.NDArray[np.uint8]) -> tuple[str | None, str | None]:
    """Colour and shape, by a vote of some frames, weighted by confidence."""
    votes: tuple[dict[str, float], dict[str, float]] = (defaultdict(float), defaultdict(float))
    for index in np.linspace(0, len(frames) - 1, min(NUM_VOTES, len(frames))).round().astype(int):
        for finding in judge_image(frames[index])[:1]:
            votes[0][finding.colour] += finding.confidence
            votes[1][finding.shape] += finding.confidence
    colour, shape = (max(vote, key=vote.__getitem__) if vote else None for vote in votes)
    return colour, shape


# --- motion -----------------------------------------------------------------------------------------------------


def _motion(track: FloatArray) -> str | None:
    """The strongest change relative to its threshold; `track` (frames, 3) has x, y and area."""
    ends = min(ENDS, len(track))
    start, end = track[:ends].mean(axis=0), track[-ends:].mean(axis=0)
    right, down = ((end - start)[:2] / MIN_DISTANCE).tolist()
    growth = math.log(end[2] / start[2]) / MIN_GROWTH
    drop = (float(np.sort(track[:, 1])[-ends:].mean()) - max(start[1], end[1])) / MIN_DROP
    strengths = {
        "left": -right,
        "right": right,
        "up": -down,
        "down": down,
        "grow": growth,
        "shrink": -growth,
        "bounce": drop,
    }
    strongest = max(strengths, key=strengths.__getitem__)
    return strongest if strengths[strongest] >= 1 else None


class MotionsJudge(Judge[Tensor]):
    """Judge of videos (3, frames, size, size) in [0, 1]: whether each matches the colour, shape and motion."""

    def knows(self, row: Row) -> bool:
        return has_keys(row.get("motion"), ATTRIBUTES)

    def score(self, media: Tensor, row: Row) -> Scores:
        found = _found(media, row)
        return {f"match_{name}": float(found[name]) for name in ATTRIBUTES}

    def score_withheld(self, media: Tensor, row: Row) -> Scores:
        found = _found(media, row)
        return {"match_withheld": float(found["shape"] and found["motion"])}


def _found(video: Tensor, row: Row) -> dict[str, bool]:
    return match(row["motion"], judge(as_clip(video.float().cpu())))
