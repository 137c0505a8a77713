"""Accuracy of the judge of the dataset `motions`.

`motions_judge.py`. The judge is applied to synthetic clips, clean and degraded, and compared with their metadata.
"""

from __future__ import annotations

import argparse
import io
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter

from quintet.synthetic.motions import Clip, MotionItem, draw_item
from quintet.synthetic.motions_judge import ATTRIBUTES, judge, match
from side_by_side import HERE, write_facts

SIZES = (32, 64)


def clean(clip: Clip) -> Clip:
    return clip


def with_noise(clip: Clip) -> Clip:
    """Noise of sigma 8 (of 255), different in each frame."""
    noise = np.random.default_rng(int(clip.sum())).normal(0, 8, clip.shape)
    return np.clip(np.rint(clip + noise), 0, 255).astype(np.uint8)


def blurred(clip: Clip) -> Clip:
    return np.stack([np.asarray(Image.fromarray(frame).filter(ImageFilter.GaussianBlur(1))) for frame in clip])


def as_jpeg(clip: Clip) -> Clip:
    return np.stack([_jpeg(frame) for frame in clip])


def _jpeg(frame: Clip) -> Clip:
    stream = io.BytesIO()
    Image.fromarray(frame).save(stream, "JPEG", quality=50)
    return np.asarray(Image.open(stream))


DEGRADATIONS: dict[str, Callable[[Clip], Clip]] = {
    "clean": clean,
    "noise of sigma 8": with_noise,
    "blur of radius 1": blurred,
    "JPEG of quality 50": as_jpeg,
}


def accuracies(items: list[MotionItem], degrade: Callable[[Clip], Clip]) -> dict[str, float]:
    correct: dict[str, list[bool]] = defaultdict(list)
    for item in items:
        for name, value in match(item.record, judge(degrade(item.clip))).items():
            correct[name].append(value)
    return {name: statistics.fmean(values) for name, values in correct.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=400)
    parser.add_argument(
        "--seed", type=int, default=7919, help="random seed; must differ from those of datasets and tests"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results" / "motions-judge.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = (*ATTRIBUTES, "everything")
    print(f"| {arguments.num} clips | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    results: dict[str, dict[str, float]] = {}
    for size in SIZES:
        items = [draw_item(arguments.seed, index, size) for index in range(arguments.num)]
        for label, degrade in DEGRADATIONS.items():
            name = f"{size} px, {label}"
            results[name] = accuracies(items, degrade)
            print(f"| {name} | {' | '.join(f'{results[name][column]:.1%}' for column in columns)} |", flush=True)
    write_facts(arguments.out, {"num": arguments.num, "seed": arguments.seed, "shares_right": results})
    print(f"raw results: {arguments.out}")


if __name__ == "__main__":
    main()
