"""Plots as images: curves of a run's metrics, a matrix, and the spectrogram of audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from quintet.common.files import atomic_write
from quintet.media.audio_formats import Samples
from quintet.media.image_decoding import Pixels
from quintet.media.mel import LogMel

PANEL = (300, 180)
COLUMNS = 4
MARGIN = 28
MOST_PANELS = 200
LARGEST = 1e307
INK, LINE, FRAME = (40, 40, 40), (31, 119, 180), (200, 200, 200)
HIDDEN = ("train/time/", "train/rate/", "validation/live/")

Points = list[tuple[float, float]]


def write_curves(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write one panel per metric, with the step on the x axis and the last value in the title."""
    found = [(name, points) for name, points in collect(rows).items() if len(points) > 1]
    curves = dict(found[:MOST_PANELS])
    if not curves:
        return
    width, height = PANEL
    lines = -(-len(curves) // COLUMNS)
    sheet = Image.new("RGB", (width * min(COLUMNS, len(curves)), height * lines), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (name, points) in enumerate(curves.items()):
        _panel(draw, (number % COLUMNS * width, number // COLUMNS * height), name, points)
    with atomic_write(path, durable=False) as temporary:
        sheet.save(temporary, format="PNG")


def collect(rows: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """The points (step, value) of each metric, validation first."""
    curves: dict[str, Points] = {}
    for row in rows:
        for name, value in row.items():
            if "/" in name and not name.startswith(HIDDEN) and _drawable(value) and _drawable(row.get("step")):
                curves.setdefault(name, []).append((row["step"], value))
    return dict(sorted(curves.items(), key=lambda pair: (not pair[0].startswith("validation"), pair[0])))


def _drawable(value: object) -> bool:
    """Whether a value is a number, small enough that the difference of two is finite."""
    return isinstance(value, (int, float)) and abs(value) < LARGEST


def _panel(draw: ImageDraw.ImageDraw, corner: tuple[int, int], name: str, points: Points) -> None:
    left, top = corner[0] + MARGIN, corner[1] + MARGIN
    right, bottom = corner[0] + PANEL[0] - MARGIN // 2, corner[1] + PANEL[1] - MARGIN // 2
    draw.rectangle((left, top, right, bottom), outline=FRAME)
    steps, values = zip(*points, strict=True)
    low, high = min(values), max(values)

    def to_pixels(step: float, value: float) -> tuple[float, float]:
        across = (step - steps[0]) / max(steps[-1] - steps[0], 1)
        up = (value - low) / ((high - low) or 1)
        return left + across * (right - left), bottom - up * (bottom - top)

    draw.line([to_pixels(step, value) for step, value in points], fill=LINE, width=2)
    draw.text((left, corner[1] + 8), f"{name}: {values[-1]:.4g}", fill=INK)
    draw.text((left + 3, top + 2), f"{high:.4g}", fill=INK)
    draw.text((left + 3, bottom - 13), f"{low:.4g}", fill=INK)


_DARK, _BRIGHT = np.array((18, 20, 46)), np.array((255, 214, 110))
_INK = (40, 40, 40)
_LONGEST = 40
"""Longest label, in characters."""


def draw_matrix(
    values: npt.NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], square: int = 20
) -> Pixels:
    """Heat map of `values` (rows, columns), from dark (smallest) to bright (largest), with labels left and below."""
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
        rotated = Image.new("RGB", (below, square), "white")
        ImageDraw.Draw(rotated).text((below - 4, square / 2), name[:_LONGEST], _INK, font, anchor="rm")
        sheet.paste(rotated.rotate(90, expand=True), (left + number * square, field.shape[0]))
    return np.asarray(sheet)


RANGE_DECIBEL = 80.0
"""Dynamic range; anything quieter is black."""
_COLOURS = np.array(
    [(0, 0, 4), (48, 18, 96), (126, 32, 120), (206, 62, 88), (250, 142, 72), (254, 220, 150), (252, 253, 240)], float
)


def spectrogram(samples: Samples | Tensor, rate: int, *, n_mels: int = 96, width: int | None = None) -> Pixels:
    """Log-mel spectrogram as an image (n_mels, time, 3) of (samples,) or (channels, samples), averaged over channels.

    A pixel is 10 ms wide; `width` sets the width of the image instead. NaN and infinite samples count as silence.
    """
    waves = torch.nan_to_num(torch.as_tensor(samples).detach().float().cpu(), posinf=0.0, neginf=0.0)
    wave = waves.mean(dim=0) if waves.ndim == 2 else waves
    hop_length = max(1, rate // 100) if width is None else max(1, wave.shape[-1] // width)
    n_fft = 2 ** max(6, round(np.log2(rate * 0.064)))
    powers = LogMel(rate, n_fft=n_fft, hop_length=hop_length, n_mels=n_mels).power(wave).numpy()[:, :width]
    decibel = 10 * np.log10(np.maximum(powers, 1e-10))
    shade = np.clip((decibel - decibel.max()) / RANGE_DECIBEL + 1, 0, 1) if powers.max() > 1e-8 else 0 * decibel
    position = shade[::-1] * (len(_COLOURS) - 1)
    below = np.minimum(position.astype(np.int64), len(_COLOURS) - 2)
    mixed = _COLOURS[below] + (position - below)[..., None] * (_COLOURS[below + 1] - _COLOURS[below])
    pixels: Pixels = np.rint(mixed).astype(np.uint8)
    return pixels
