"""The video tokenizer on real clips, compared with a baseline: `benchmarks/animated_emoji.py FOLDER [--budget 10m]`.

64 pixels, 17 consecutive frames, no name in both splits. The baseline is the mean of the frames of each clip, the best
result of a tokenizer that ignores motion. Both are measured on all unseen clips and on the third of them that moves
least, where the baseline is hard to reach. `--strip IMAGE` writes frames of unseen clips above their reconstructions.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import torch
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
    "train.batch_size=2",
    "eval.batches=null",
    "sample.num=4",
)
LENGTH = ("train.steps=1000", "eval.every=250")
"""Keys of a run without --budget."""
SHOWN = 9
"""Number of frames of a clip in the image."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path, default=Path("runs/animated-emoji"))
    parser.add_argument("--budget", help="duration of the training, as of `quintet train`; without it 1,000 steps")
    parser.add_argument("--strip", type=Path)
    parser.add_argument("keys", nargs="*", default=[])
    arguments = parser.parse_intermixed_args()
    words = ["train", "cvivit", arguments.folder, "--out", str(arguments.out), "--preset", "small"]
    words += ["--budget", arguments.budget] if arguments.budget else LENGTH
    words += [*KEYS, *arguments.keys]
    print("$ quintet", *words)
    cli.call(words)
    cli.call(["eval", str(arguments.out)])
    settings = registry.read_config(arguments.out / "config.yaml")
    assert isinstance(settings, CViViTConfig)
    unseen = load(video_folder_splits(settings.data, settings.model.size).validation)
    tokenizer = CViViTPipeline.from_pretrained(arguments.out)
    unseen.sort(key=motion)
    outputs = {
        "mean of the frames": [clip.mean(1, keepdim=True).expand_as(clip) for clip in unseen],
        "quintet": [reconstruct(tokenizer, clip) for clip in unseen],
    }
    calmest = len(unseen) // 3
    print(f"{'PSNR of unseen clips':<20} all {len(unseen):<5} calmest {calmest}")
    for name, clips in outputs.items():
        scores = [score(*pair) for pair in zip(clips, unseen, strict=True)]
        print(f"{name:<20} {fmean(scores):.2f} dB  {fmean(scores[:calmest]):.2f} dB")
    if arguments.strip:
        # The clips with the most motion are the hardest.
        pairs = list(zip(unseen, outputs["quintet"], strict=True))[-4:]
        strips = [filmstrip(clip, SHOWN) for pair in reversed(pairs) for clip in pair]
        write_image(image_grid(strips, columns=1, padding=0), arguments.strip)


def load(dataset: Dataset) -> list[Tensor]:
    """Clips in [0, 1], (3, frames, height, width)."""
    return [dataset.load(item, ItemRNG(0, [0], [item]))["videos"].float() / 255 for item in range(len(dataset))]


def score(output: Tensor, clip: Tensor) -> float:
    """Mean PSNR over frames."""
    return float(psnr(output.transpose(0, 1), clip.transpose(0, 1)).mean())


def motion(clip: Tensor) -> float:
    """Mean absolute change of a pixel from frame to frame."""
    return float(clip.diff(dim=1).abs().mean())


def reconstruct(tokenizer: CViViTPipeline, clip: Tensor) -> Tensor:
    """A clip through the tokenizer; a last latent frame that is not full is filled with the last frame."""
    frames = clip.shape[1]
    model = tokenizer.cvivit.config
    missing = model.frames(model.latent_frames(frames)) - frames
    padded = torch.cat([clip, clip[:, -1:].expand(-1, missing, -1, -1)], dim=1)
    return tokenizer.decode(tokenizer.encode(padded[None]))[0, :, :frames].cpu()


if __name__ == "__main__":
    main()
