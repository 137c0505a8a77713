"""The video tokenizer on real clips, compared with a baseline: `benchmarks/animated_emoji.py FOLDER [--out RUN]`.

64 pixels, 17 consecutive frames, no name in both splits. The baseline is the mean of the frames of each clip, the best
result of a tokenizer that ignores motion. `--strip IMAGE` writes frames of unseen clips above their reconstructions.
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
"""Number of frames of a clip in the image."""


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
    metrics = json.loads((arguments.out / "eval.json").read_text(encoding="utf-8"))
    print(f"{len(unseen)} unseen clips")
    print(f"{'mean of the frames':<20} {fmean(map(score, means, unseen)):.2f} dB")
    print(f"{'quintet':<20} {metrics['psnr']:.2f} dB")
    if arguments.strip:
        write_strip(arguments.out, unseen, arguments.strip)


def load(dataset: Dataset) -> list[Tensor]:
    """Clips in [0, 1], (3, frames, height, width)."""
    return [dataset.load(item, ItemRNG(0, [0], [item]))["videos"].float() / 255 for item in range(len(dataset))]


def score(output: Tensor, clip: Tensor) -> float:
    """Mean PSNR over frames."""
    return float(psnr(output.transpose(0, 1), clip.transpose(0, 1)).mean())


def write_strip(run: Path, clips: list[Tensor], path: Path) -> None:
    """Write frames of the clips with the most motion, which are the hardest."""
    tokenizer = CViViTPipeline.from_pretrained(run)
    moving = sorted(clips, key=lambda clip: float(clip.diff(dim=1).abs().mean()), reverse=True)[:4]
    pairs = [(clip, tokenizer.decode(tokenizer.encode(clip[None]))[0].cpu()) for clip in moving]
    write_image(image_grid([filmstrip(each, SHOWN) for pair in pairs for each in pair], columns=1, padding=0), path)


if __name__ == "__main__":
    main()
