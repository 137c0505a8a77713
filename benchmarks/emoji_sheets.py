"""What a person looks at after the text-to-image benchmark: grids of images, and files that name what they show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from emoji_images import Images
from nearest import Nearest
from quintet.media.image import image_grid, write_image
from subjects import STYLES, parts

SHOWN = 64
"""Number of samples in a grid."""
COLUMNS = 8
FONT_SIZE = 9
TRAINED_SHOWN = 32
"""Number of captions of the training split in a grid."""


def write_nearest(samples: Images, training: Images, neighbours: Mapping[str, Nearest], folder: Path) -> None:
    """`nearest.png`: pairs of a sample and its nearest training image, nearest first; `nearest.jsonl`: all pairs."""
    pixels, reconstructed, codes = (neighbours[name] for name in ("pictures", "reconstructions", "codes"))
    order = pixels.values.argsort().tolist()
    pairs = [
        image
        for index in order[: SHOWN // 2]
        for image in (samples.images[index], training.images[pixels.indices[index]])
    ]
    write_image(image_grid(pairs, columns=COLUMNS), folder / "nearest.png")
    rows = [
        {
            "row": 1 + rank * 2 // COLUMNS if rank < SHOWN // 2 else None,
            "columns": [1 + rank * 2 % COLUMNS, 2 + rank * 2 % COLUMNS] if rank < SHOWN // 2 else None,
            "text": samples.texts[index],
            "nearest": training.texts[pixels.indices[index]],
            "nearest_file": training.files[pixels.indices[index]],
            "distance": float(pixels.values[index]),
            "nearest_reconstruction": training.files[reconstructed.indices[index]],
            "distance_to_reconstruction": float(reconstructed.values[index]),
            "most_equal_codes": training.files[codes.indices[index]],
            "equal_codes": float(codes.values[index]),
        }
        for rank, index in enumerate(order)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "nearest.jsonl").write_text(lines, encoding="utf-8")


def write_trained(samples: Images, training: Images, nearest: Mapping[str, Sequence[int]], folder: Path) -> None:
    """`trained.png`: pairs of the reconstruction of a caption's image and its sample; `trained.jsonl`: all captions."""
    real = training.of(samples.texts).reconstructions
    cells = [captioned_pair(real[n], samples.images[n], text) for n, text in enumerate(samples.texts[:TRAINED_SHOWN])]
    write_image(image_grid(cells, columns=COLUMNS // 2, padding=6), folder / "trained.png")
    rows = [
        {"text": text, **{f"nearest_by_{name}": training.texts[indices[n]] for name, indices in nearest.items()}}
        for n, text in enumerate(samples.texts)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "trained.jsonl").write_text(lines, encoding="utf-8")


def captioned_pair(left: Tensor, right: Tensor, caption: str) -> np.ndarray[Any, Any]:
    """Two images (channels, height, width) side by side, with as much of their caption beneath as fits."""
    pair = Image.fromarray(image_grid([left, right], columns=2, padding=1))
    canvas = Image.new("RGB", (pair.width, pair.height + FONT_SIZE + 2), "white")
    canvas.paste(pair)
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(FONT_SIZE)
    shown = caption
    while draw.textlength(shown, font) > canvas.width and len(shown) > 1:
        shown = shown.rstrip("…")[:-1] + "…"
    draw.text((1, pair.height), shown, "black", font)
    return np.asarray(canvas)


def write_samples(samples: Images, nearest: Sequence[str], folder: Path) -> None:
    """`samples.png`: subjects from the full alphabet in each style, not selected; `samples.md`: their names, each with
    the subjects of the nearest training images of its samples."""
    per_row = COLUMNS // len(STYLES)
    subjects = len(set(samples.texts)) // len(STYLES)
    count = min(subjects, SHOWN // len(STYLES))
    shown = [number * subjects // count * len(STYLES) for number in range(count)]
    images = [samples.images[index + style] for index in shown for style in range(len(STYLES))]
    write_image(image_grid(images, columns=COLUMNS), folder / "samples.png")
    near = [" / ".join(parts(nearest[index + style])[0] for style in range(len(STYLES))) for index in shown]
    names = [
        f"{parts(samples.texts[index])[0]} (nearest: {found})".replace("|", "\\|")
        for index, found in zip(shown, near, strict=True)
    ]
    pair = " and ".join(STYLES)
    lines = [f"Each subject as {pair}.", "", "| row |" + "".join(f" pair {n + 1} |" for n in range(per_row))]
    lines += ["|---" * (per_row + 1) + "|"]
    for row in range(-(-count // per_row)):
        cells = names[row * per_row : (row + 1) * per_row]
        lines += [f"| {row + 1} |" + "".join(f" {name} |" for name in [*cells, *[""] * (per_row - len(cells))])]
    (folder / "samples.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
