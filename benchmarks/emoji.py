"""The image tokenizer on real images, compared with baselines: `benchmarks/emoji.py FOLDER [--out RUN]`.

No drawing is in both splits: files are grouped by the name before `--`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from baselines import baselines, load
from quintet import cli, config
from quintet.data.image import folder_splits
from quintet.families.vqgan.config import VQGanConfig
from quintet.registry import read_config

KEYS = (
    "data.validation_group=^(.*)--",
    "data.validation_fraction=0.1",
    "model.num_quantizers=3",
    "train.steps=3000",
    "loss.discriminator_start=2000",
    "eval.batches=null",
    "sample.num=32",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path, default=Path("runs/emoji"))
    parser.add_argument("keys", nargs="*", default=[])
    arguments = parser.parse_args()
    words = [
        "train",
        "vqgan",
        arguments.folder,
        "--out",
        str(arguments.out),
        "--preset",
        "small",
        *KEYS,
        *arguments.keys,
    ]
    print("$ quintet", *words)
    cli.call(words)
    cli.call(["eval", str(arguments.out)])
    settings = read_config(arguments.out / "config.yaml")
    print_baselines(settings, arguments.out)


def print_baselines(settings: config.RunConfig, run: Path) -> None:
    unaugmented = settings.changed({"data.flip": False})
    assert isinstance(unaugmented, VQGanConfig)
    splits = folder_splits(unaugmented.data, unaugmented.model.size, unaugmented.model.channels)
    train, validation = (load(split, range(len(split))) for split in (splits.train, splits.validation))
    metrics = {**baselines(train, validation), "quintet": json.loads((run / "eval.json").read_text())["psnr"]}
    for name, value in metrics.items():
        print(f"{name:<20} {value:.2f} dB")


if __name__ == "__main__":
    main()
