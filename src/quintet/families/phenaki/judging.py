"""Owns how the judge of the embedded videos is asked about clips: which figures, over which clips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from quintet.media.video_writing import as_clip
from quintet.synthetic.motions import MotionRecord
from quintet.synthetic.motions_judge import ATTRIBUTES, judge, match

WITHHELD = "withheld"
"""The split of clips of a shape and a motion that were never trained on together."""


def are_known(records: Any) -> bool:
    """Whether these are what is true of embedded clips, and not a column of somebody's own of the same name."""
    known = set(ATTRIBUTES)
    return isinstance(records, list) and all(isinstance(one, dict) and known <= one.keys() for one in records)


def judged(videos: Sequence[Tensor], records: Sequence[Mapping[str, Any]], split: str) -> dict[str, Tensor]:
    """Of each video, (3, frames, height, width), whether it shows what its caption says.

    Of the withheld ones one figure: whether shape and motion are both right.
    """
    found = [
        match(cast(MotionRecord, record), judge(as_clip(video.float().cpu())))
        for video, record in zip(videos, records, strict=True)
    ]
    if split == WITHHELD:
        return {"match_withheld": _column(each["shape"] and each["motion"] for each in found)}
    return {f"match_{name}": _column(each[name] for each in found) for name in ATTRIBUTES}


def _column(right: Any) -> Tensor:
    return torch.tensor([float(one) for one in right], dtype=torch.float64)
