"""The tokenizer of video on real clips, beside what it has to beat: `benchmarks/animated_emoji.py FOLDER [--out RUN]`.

64 pixels, 17 frames as they follow each other, no name on both sides of the split. A tokenizer that ignores motion
could at best show each clip as the mean of its frames: that is the bar. `--strip PICTURE` writes frames of unseen
clips, each row above what the tokenizer makes of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

from torch import Tensor

from quintet import CViViTPipeline, cli, registry
from quintet.common.batch import Dataset
from quintet.common.rng import ItemRNG
from quintet.data.video import video_folder_splits
from quintet.families.cvivit.config import CViViTConfig
from quintet.media.image import image_grid, write_image
from quintet.media.video_writing import filmstrip
from quintet.nn.similarity import psnr

KEYS = (
    "data.validation_fraction=0.15",
    "model.image_size=64",
    "model.num_quantizers=2",
    "train.steps=1000",
    "train.batch_size=2",
    "eval.every=250",
    "eval.batches=null",
    "sample.num=4",
)
SHOWN = 9
"""Frames of a clip in the picture."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path, default=Path("runs/animated-emoji"))
    parser.add_argument("--strip", type=Path)
    parser.add_argument("keys", nargs="*", default=[])
    arguments = parser.parse_intermixed_args()
    words = ["train", "cvivit", arguments.folder, "--out", str(arguments.out), "--preset", "small"]
    words += [*KEYS, *arguments.keys]
    print("$ quintet", *words)
    cli.call(words)
    cli.call(["eval", str(arguments.out)])
    settings = registry.read_config(arguments.out / "config.yaml")
    assert isinstance(settings, CViViTConfig)
    unseen = load(video_folder_splits(settings.data, settings.model.size).validation)
    means = [clip.mean(1, keepdim=True).expand_as(clip) for clip in unseen]
    found = json.loads((arguments.out / "eval.json").read_text(encoding="utf-8"))
    print(f"{len(unseen)} unseen clips")
    print(f"{'mean of its frames':<20} {fmean(map(score, means, unseen)):.2f} dB")
    print(f"{'quintet':<20} {found['psnr']:.2f} dB")
    if arguments.strip:
        write_strip(arguments.out, unseen, arguments.strip)


def load(source: Dataset) -> list[Tensor]:
    """Clips in [0, 1], (3, frames, height, width)."""
    return [source.load(item, ItemRNG(0, [0], [item]))["videos"].float() / 255 for item in range(len(source))]


def score(made: Tensor, clip: Tensor) -> float:
    """The mean over frames."""
    return float(psnr(made.transpose(0, 1), clip.transpose(0, 1)).mean())


def write_strip(run: Path, clips: list[Tensor], path: Path) -> None:
    """Those that move most, which are the hardest."""
    tokenizer = CViViTPipeline.from_pretrained(run)
    moving = sorted(clips, key=lambda clip: float(clip.diff(dim=1).abs().mean()), reverse=True)[:4]
    pairs = [(clip, tokenizer.decode(tokenizer.encode(clip[None]))[0].cpu()) for clip in moving]
    write_image(image_grid([filmstrip(each, SHOWN) for pair in pairs for each in pair], columns=1, padding=0), path)


if __name__ == "__main__":
    main()
