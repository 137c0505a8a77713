"""Draws `images/layers.svg`, the layers of the package and which of them import which, from the imports in the source.

    PYTHONPATH=src:tests python docs/draw_layers.py          # or `make figures`

The layers and the reading of imports are those of `tests/unit/test_layers.py`, which enforces them.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from unit.test_layers import IMPORTING, LAYERS, imports, layer_of, own_part, part_of

FIGURE = Path(__file__).parent / "images" / "layers.svg"

NAMES = {
    "families task": "families/*/task.py, trainer.py",
    "families pipeline": "families/*/pipeline.py, data.py",
    "families model": "families/*/model.py",
    "families config": "families/*/config.py",
}
"""What a part of the package is called in the figure, where that is not its own name."""

ROW, TOP, BOX, CELL = 30, 84, 430, 28
"""Sizes in pixels: height of a row, room above the rows, right edge of the boxes, width of a column of marks."""

WHEN_LOADED, LATE = "#1f4e79", "#9db8d2"


def uses() -> dict[tuple[int, int], bool]:
    """Pairs of layers of which the first imports the second: whether when loaded, or only inside of functions."""
    found: dict[tuple[int, int], bool] = {}
    for module in IMPORTING:
        upper = layer_of(own_part(module))
        for each in imports(module):
            part = part_of(each.name)
            if part is None or each.typing or layer_of(part) == upper:
                continue
            pair = upper, layer_of(part)
            found[pair] = found.get(pair, False) or not each.late
    return found


def figure() -> str:
    width, height = BOX + 24 + CELL * len(LAYERS), TOP + ROW * len(LAYERS) + 12
    frame = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {frame} font-family="sans-serif" font-size="13">']
    lines.append(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
    lines += [_text(12, 22, "Layers of quintet, from the top; a row imports the layers that are marked in it")]
    lines += [_dot(20, 40, WHEN_LOADED), _text(34, 45, "when it is loaded")]
    lines += [_dot(170, 40, LATE), _text(184, 45, "only inside of functions")]
    for number in range(len(LAYERS)):
        lines += _row(number)
    for (upper, lower), when_loaded in sorted(uses().items()):
        lines.append(_dot(_column(lower), _middle(upper), WHEN_LOADED if when_loaded else LATE))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _row(number: int) -> Iterator[str]:
    """The box of a layer, its number above its column, and the cells of the layers below it."""
    top = TOP + ROW * number
    parts = ", ".join(NAMES.get(part, part) for part in sorted(LAYERS[number]))
    yield f'<rect x="8" y="{top + 2}" width="{BOX - 8}" height="{ROW - 4}" rx="4" fill="#eef3f8" stroke="#7a8ca0"/>'
    yield _text(16, top + 20, f"{number + 1}")
    yield _text(40, top + 20, parts)
    yield _text(_column(number), TOP - 10, f"{number + 1}", "middle")
    for lower in range(number + 1, len(LAYERS)):
        left = _column(lower) - CELL / 2
        yield f'<rect x="{left:g}" y="{top + 2}" width="{CELL}" height="{ROW - 4}" fill="none" stroke="#dde4ea"/>'


def _column(number: int) -> float:
    return BOX + 12 + CELL * (number + 0.5)


def _middle(number: int) -> float:
    return TOP + ROW * (number + 0.5)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#1b2733">{escape(text)}</text>'


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="6" fill="{colour}"/>'


if __name__ == "__main__":
    FIGURE.write_text(figure(), encoding="utf-8")
