"""Caption match of several trainings side by side: `benchmarks/shapes_muse.py RUN...`.

The judge on the real pictures, on the tokenizer's reconstructions and on what was drawn from the captions, of the first
`eval.num_generated` held-out items. The last two are read from the runs' eval.json; the real pictures are judged here.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

from quintet.common.rng import ItemRNG
from quintet.data.image import folder_splits
from quintet.families.muse.config import MuseConfig
from quintet.pipelines.loading import open_pipeline
from quintet.registry import read_config
from quintet.synthetic.judges import WITHHELD
from quintet.synthetic.shapes_judge import ShapesJudge

FIGURES = ("match_colour", "match_position", "match_shape", "match_withheld")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    folders = parser.parse_args().runs
    real = of_real_pictures(folders[0])
    figures = [json.loads((folder / "eval.json").read_text(encoding="utf-8")) for folder in folders]
    names = ", ".join(f"seed {read_config(folder / 'config.yaml').train.seed}" for folder in folders)
    print(f"| figure | real pictures | reconstructions | drawn from captions: {names} | mean (spread) |")
    print("|---|---|---|---|---|")
    for name in FIGURES:
        drawn = [one[name] for one in figures]
        kept = mean(one[f"{name}_reconstruction"] for one in figures)
        each = ", ".join(f"{value:.1%}" for value in drawn)
        spread = f"{min(drawn):.1%}-{max(drawn):.1%}"
        print(f"| {name} | {real[name]:.1%} | {kept:.1%} | {each} | {mean(drawn):.1%} ({spread}) |")


def of_real_pictures(run: Path) -> dict[str, float]:
    config = read_config(run / "config.yaml")
    assert isinstance(config, MuseConfig)
    tokenizer = open_pipeline(run / "tokenizer").model.config
    splits = folder_splits(config.data, tokenizer.size, tokenizer.channels)
    figures: dict[str, float] = {}
    for split, source in (("validation", splits.validation), (WITHHELD, splits.extra_splits[WITHHELD])):
        items = [
            source.load(item, ItemRNG(0, [0], [item])) for item in range(min(len(source), config.eval.num_generated))
        ]
        images, metadata = ([item[name] for item in items] for name in ("images", "metadata"))
        found = ShapesJudge().metrics(images, metadata, split)
        figures |= {name: float(values.mean()) for name, values in found.items()}
    return figures


if __name__ == "__main__":
    main()
