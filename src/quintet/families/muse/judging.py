"""Owns how the embedded data's judge is asked about drawn pictures: which figures, over which objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from quintet.media.image import to_uint8
from quintet.synthetic.shapes import WITHHELD_PAIRS
from quintet.synthetic.shapes_judge import ATTRIBUTES, Finding, judge, match

Objects = Sequence[Mapping[str, str]]
"""What a caption promises."""

WITHHELD = "withheld"
"""The split of pictures that show a colour and a shape never trained on together."""


def judged(pictures: Iterable[Tensor], promised: Sequence[Objects], split: str) -> dict[str, Tensor]:
    """The figures of each picture: the share of its objects that show what the caption says of them.

    Of the withheld pictures one figure: the share of the withheld pairs whose colour and shape are both right.
    """
    rows = [
        _figures(objects, judge(to_uint8(picture)), split) for picture, objects in zip(pictures, promised, strict=True)
    ]
    return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}


def _figures(objects: Objects, findings: Sequence[Finding], split: str) -> dict[str, float]:
    if split == WITHHELD:
        pairs = [one for one in objects if (one["colour"], one["shape"]) in WITHHELD_PAIRS]
        return {"match_withheld": match(pairs, findings)["pair"]}
    found = match(objects, findings)
    return {f"match_{name}": found[name] for name in ATTRIBUTES}
