"""Curves of metrics: which metrics, which points, and that they are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quintet.media.chart import COLUMNS, LINE, MARGIN, PANEL, collect, write_curves

ROWS: list[dict[str, Any]] = [
    {"step": 1, "time": 1.0, "train/loss": 3.0, "train/time/overhead": 0.1, "train/rate/items_per_second": 9.0},
    {"step": 2, "time": 2.0, "train/loss": 2.0, "validation/psnr": 20.0, "validation/live/psnr": 19.0},
    {"step": 3, "time": 3.0, "train/loss": None, "items": ["a"], "train/note": "text"},
    {"step": 4, "time": 4.0, "train/loss": 1.0, "validation/psnr": 25.0, "train/nan": float("nan")},
]


def test_metrics_are_collected_validation_first() -> None:
    curves = collect(ROWS)
    assert list(curves) == ["validation/psnr", "train/loss"]
    assert curves["train/loss"] == [(1, 3.0), (2, 2.0), (4, 1.0)]
    assert curves["validation/psnr"] == [(2, 20.0), (4, 25.0)]


def lines(path: Path) -> np.ndarray:
    """Mask of the pixels in the colour of the curves."""
    with Image.open(path) as image:
        return (np.asarray(image) == np.array(LINE)).all(axis=2)


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (COLUMNS + 1, COLUMNS, 2)])
def test_one_panel_per_metric(tmp_path: Path, count: int, columns: int, rows: int) -> None:
    table = [{"step": step, **{f"train/{number}": step * number for number in range(count)}} for step in range(5)]
    write_curves(table, tmp_path / "curves.png")
    drawn = lines(tmp_path / "curves.png")
    width, height = PANEL
    assert drawn.shape == (height * rows, width * columns)
    for number in range(count):
        left, top = number % COLUMNS * width, number // COLUMNS * height
        assert drawn[top : top + height, left : left + width].any()


def test_a_rising_curve_rises(tmp_path: Path) -> None:
    write_curves([{"step": step, "train/x": step} for step in range(10)], tmp_path / "curves.png")
    drawn = lines(tmp_path / "curves.png")
    heights = [np.flatnonzero(column).mean() for column in drawn.T if column.any()]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] - heights[-1] > PANEL[1] - 3 * MARGIN


def test_flat_curves_and_equal_steps_are_drawn(tmp_path: Path) -> None:
    for number, table in enumerate(
        (
            [{"step": step, "train/x": 0.5} for step in range(3)],
            [{"step": 7, "train/x": value} for value in range(3)],
            [{"step": step, "train/x": 1e300 * step} for step in range(3)],
        )
    ):
        write_curves(table, tmp_path / f"{number}.png")
        assert lines(tmp_path / f"{number}.png").any()


@pytest.mark.parametrize("rows", [[], ROWS[:1], [{"step": 1}]])
def test_without_a_curve_no_image_is_written(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    write_curves(rows, tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()
