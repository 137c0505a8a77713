"""Whether samples show the subjects of their captions: `measure_emoji.py RUN OUT.json`.

Generates 100 captions of the training data, one of each subject, and counts the samples whose nearest training picture,
by pixels, has the subject of the caption, in any style. A model that ignores texts reaches 0.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quintet.media.image import read_image
from quintet.pipelines.base import as_generator
from quintet.pipelines.loading import open_pipeline
from rows import Row, read_rows

COUNT = 100
SEED = 0


def main() -> None:
    run, out = map(Path, sys.argv[1:])
    pipeline = as_generator(open_pipeline(run))
    folder = Path(str(pipeline.config.data.path))
    rows = [row for row in read_rows(folder) if row.split == "train"]
    chosen = choose(rows)
    images = torch.cat([pipeline([row.text[0]], num=1, seed=SEED).cpu() for row in chosen])
    pictures = torch.stack([picture(folder / row.file_name) for row in rows])
    nearest = torch.cdist(images.flatten(1), pictures.flatten(1)).argmin(1).tolist()
    right = [subject(rows[index]) == subject(row) for index, row in zip(nearest, chosen, strict=True)]
    figures = {"own_subject": sum(right) / len(right)}
    out.write_text(json.dumps(figures) + "\n", encoding="utf-8")
    print(figures)


def subject(row: Row) -> str:
    return row.file_name.partition("--")[0]


def choose(rows: list[Row]) -> list[Row]:
    shuffled = sorted(rows, key=lambda row: row.file_name)
    random.Random(SEED).shuffle(shuffled)
    return list({subject(row): row for row in shuffled}.values())[:COUNT]


def picture(path: Path) -> Tensor:
    """(3, height, width), from 0 to 1"""
    return torch.from_numpy(np.array(read_image(path))).permute(2, 0, 1).float() / 255


if __name__ == "__main__":
    main()
