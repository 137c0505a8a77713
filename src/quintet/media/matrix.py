"""Owns a matrix of numbers as a picture: a square for each, the brighter the larger, with names of rows and columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from quintet.media.image import Pixels

_DARK, _BRIGHT = np.array((18, 20, 46)), np.array((255, 214, 110))
_INK = (40, 40, 40)
_LONGEST = 40
"""Letters of a name."""


def draw_matrix(
    values: npt.NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], square: int = 20
) -> Pixels:
    """`(rows, columns)`; the smallest number is dark, the largest bright. Columns are named below, standing up."""
    low, high = float(values.min()), float(values.max())
    shade = (values - low) / max(high - low, 1e-12)
    colours = np.rint(_DARK + shade[..., None] * (_BRIGHT - _DARK)).astype(np.uint8)
    field = colours.repeat(square, axis=0).repeat(square, axis=1)
    font = ImageFont.load_default()
    left, below = (8 + int(max(font.getlength(name[:_LONGEST]) for name in names)) for names in (rows, columns))
    sheet = Image.new("RGB", (left + field.shape[1], field.shape[0] + below), "white")
    sheet.paste(Image.fromarray(field), (left, 0))
    draw = ImageDraw.Draw(sheet)
    for number, name in enumerate(rows):
        draw.text((left - 4, (number + 0.5) * square), name[:_LONGEST], _INK, font, anchor="rm")
    for number, name in enumerate(columns):
        standing = Image.new("RGB", (below, square), "white")
        ImageDraw.Draw(standing).text((below - 4, square / 2), name[:_LONGEST], _INK, font, anchor="rm")
        sheet.paste(standing.rotate(90, expand=True), (left + number * square, field.shape[0]))
    return np.asarray(sheet)
