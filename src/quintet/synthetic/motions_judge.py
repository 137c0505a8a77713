"""The judge of the data set `motions`: plain image analysis that says what a clip shows.

This file owns the way from frames to a finding, without learned weights, so that its word on a generated clip does not
depend on any model. In each frame a smooth background is fitted to the edge of the picture; what differs from it most
is followed through the clip: its way tells left, right, up, down and bounce, its area grow and shrink. Colour and
shape are what the judge of `shapes` sees in some of the frames. `match` compares a finding with what a caption
promised.
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
from quintet.synthetic.shapes_judge import judge as judge_picture
from quintet.synthetic.shapes_judge import label_parts

GRID = int(FRAME)  # every frame is judged at this size, so that one set of thresholds serves all
EDGE = 2  # pixels along the edge, where a clip of the data set has no shape
LEAST_CONTRAST = 26.0  # of 255: a smaller difference from the background is an artefact of it
LEAST_AREA = 45.0  # pixels of the grid; the smallest shape of the data set covers more than 65
LOOKS = 5  # frames in which colour and shape are looked at
LEAST_SEEN = 0.6  # of the frames: a shape that is there less often has no motion
ENDS = 3  # frames whose mean is where it starts, and where it ends
LEAST_WAY = 6.0  # units of the frame; the shortest way of the data set is more than 15
LEAST_DROP = 5.0  # units between the ends and the middle of a bounce; those of the data set have more than 12
LEAST_GROWTH = math.log(1.7)  # of the area; in the data set it is more than log(2.5)
ATTRIBUTES = ("colour", "shape", "motion")


@dataclass(frozen=True)
class Finding:
    """What the judge sees; none for what it cannot tell. `seen` is the share of frames in which a shape is."""

    shape: str | None
    colour: str | None
    motion: str | None
    seen: float


NOTHING = Finding(None, None, None, 0.0)


def judge(clip: npt.NDArray[np.uint8]) -> Finding:
    """What a clip (frames x size x size x 3) shows."""
    if clip.ndim != 4 or clip.shape[3] != 3 or clip.shape[1] != clip.shape[2] or clip.dtype != np.uint8:
        raise ValueError(
            f"the judge takes square uint8 clips of shape (frames, size, size, 3), not {clip.dtype} {clip.shape}"
        )
    track = np.array([_follow(frame) for frame in clip])
    seen = ~np.isnan(track[:, 0])
    if not seen.any():
        return NOTHING
    colour, shape = _looks(clip[seen])
    share = float(seen.mean())
    return Finding(shape, colour, _motion(track[seen]) if share >= LEAST_SEEN else None, share)


def match(record: MotionRecord, finding: Finding) -> dict[str, bool]:
    """Under the name of each word whether it was found, and `everything`."""
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
    """The pixels along the edge, and the matrix that turns their colours into a smooth background everywhere."""
    x, y = (centres.ravel() / (FRAME / 2) - 1.0 for centres in pixel_centres(GRID))
    basis = np.stack([np.ones_like(x), x, y], axis=1)
    edge = np.ones((GRID, GRID), dtype=bool)
    edge[EDGE:-EDGE, EDGE:-EDGE] = False
    places = np.flatnonzero(edge)
    return places, basis @ np.linalg.pinv(basis[places])


def _follow(frame: npt.NDArray[np.uint8]) -> tuple[float, float, float]:
    """Centre and area of what stands out most in a frame; not numbers where nothing does."""
    picture = _on_grid(frame)
    places, spread = _background_of_edge()
    background = (spread @ picture.reshape(-1, 3)[places]).reshape(picture.shape)
    contrast = _smooth(np.linalg.norm(picture - background, axis=-1))
    labels, count = label_parts(contrast >= LEAST_CONTRAST)
    sizes = np.bincount(labels.ravel(), weights=contrast.ravel(), minlength=count + 1)
    sizes[0] = 0.0
    part = labels == int(np.argmax(sizes))
    if count == 0 or part.sum() < LEAST_AREA:
        return math.nan, math.nan, math.nan
    weights = np.where(part, contrast, 0.0)
    # Against the strongest contrast, so that the soft edge of a blurred shape counts by half.
    area = float(weights.sum() / np.quantile(contrast[part], 0.9))
    x, y = (float((weights * centres).sum() / weights.sum()) for centres in pixel_centres(GRID))
    return x, y, area


def _smooth(values: FloatArray) -> FloatArray:
    """A 3 x 3 binomial blur with the edge repeated."""
    padded = np.pad(values, 1, mode="edge")
    rows = 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]
    return np.asarray(0.25 * rows[:, :-2] + 0.5 * rows[:, 1:-1] + 0.25 * rows[:, 2:])


def _looks(frames: npt.NDArray[np.uint8]) -> tuple[str | None, str | None]:
    """Colour and shape, by a vote of some frames, each as sure as it is."""
    votes: tuple[dict[str, float], dict[str, float]] = (defaultdict(float), defaultdict(float))
    for place in np.linspace(0, len(frames) - 1, min(LOOKS, len(frames))).round().astype(int):
        for finding in judge_picture(frames[place])[:1]:
            votes[0][finding.colour] += finding.confidence
            votes[1][finding.shape] += finding.confidence
    colour, shape = (max(vote, key=vote.__getitem__) if vote else None for vote in votes)
    return colour, shape


# --- motion -----------------------------------------------------------------------------------------------------


def _motion(track: FloatArray) -> str | None:
    """By the strongest of all changes, each against the least that counts; `track` has x, y and area of each frame."""
    ends = min(ENDS, len(track))
    start, end = track[:ends].mean(axis=0), track[-ends:].mean(axis=0)
    right, down = ((end - start)[:2] / LEAST_WAY).tolist()
    growth = math.log(end[2] / start[2]) / LEAST_GROWTH
    drop = (float(np.sort(track[:, 1])[-ends:].mean()) - max(start[1], end[1])) / LEAST_DROP
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
    """Videos (3, frames, size, size) in [0, 1]: whether each shows the colour, shape and motion of its caption."""

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
