"""Owns curves as a picture: small multiples of a run's metrics, drawn with Pillow alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from quintet.common.files import atomic_write

PANEL = (300, 180)
COLUMNS = 4
MARGIN = 28
MOST_PANELS = 200
LARGEST = 1e307
INK, LINE, FRAME = (40, 40, 40), (31, 119, 180), (200, 200, 200)
HIDDEN = ("train/time/", "train/rate/", "validation/live/")

Points = list[tuple[float, float]]


def write_curves(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One panel a metric, steps to the right, with the last value in the title."""
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
    """Metric to (step, value), validation first."""
    curves: dict[str, Points] = {}
    for row in rows:
        for name, value in row.items():
            if "/" in name and not name.startswith(HIDDEN) and _drawable(value) and _drawable(row.get("step")):
                curves.setdefault(name, []).append((row["step"], value))
    return dict(sorted(curves.items(), key=lambda pair: (not pair[0].startswith("validation"), pair[0])))


def _drawable(value: object) -> bool:
    """A number, and not one so large that the differences of two are none."""
    return isinstance(value, (int, float)) and abs(value) < LARGEST


def _panel(draw: ImageDraw.ImageDraw, corner: tuple[int, int], name: str, points: Points) -> None:
    left, top = corner[0] + MARGIN, corner[1] + MARGIN
    right, bottom = corner[0] + PANEL[0] - MARGIN // 2, corner[1] + PANEL[1] - MARGIN // 2
    draw.rectangle((left, top, right, bottom), outline=FRAME)
    steps, values = zip(*points, strict=True)
    low, high = min(values), max(values)

    def place(step: float, value: float) -> tuple[float, float]:
        across = (step - steps[0]) / max(steps[-1] - steps[0], 1)
        up = (value - low) / ((high - low) or 1)
        return left + across * (right - left), bottom - up * (bottom - top)

    draw.line([place(step, value) for step, value in points], fill=LINE, width=2)
    draw.text((left, corner[1] + 8), f"{name}: {values[-1]:.4g}", fill=INK)
    draw.text((left + 3, top + 2), f"{high:.4g}", fill=INK)
    draw.text((left + 3, bottom - 13), f"{low:.4g}", fill=INK)
