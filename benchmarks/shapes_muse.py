"""Caption match of several runs side by side: `benchmarks/shapes_muse.py RUN...`.

Results of the judge for the real images, the reconstructions and the images generated from captions, of the first
`eval.num_generated` held-out items. The last two are read from eval.json of the runs; the real images are judged here.
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

METRICS = ("match_colour", "match_position", "match_shape", "match_withheld")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    folders = parser.parse_args().runs
    real = of_real_images(folders[0])
    results = [json.loads((folder / "eval.json").read_text(encoding="utf-8")) for folder in folders]
    names = ", ".join(f"seed {read_config(folder / 'config.yaml').train.seed}" for folder in folders)
    print(f"| metric | real images | reconstructions | generated from captions: {names} | mean (spread) |")
    print("|---|---|---|---|---|")
    for name in METRICS:
        generated = [each[name] for each in results]
        reconstructed = mean(each[f"{name}_reconstruction"] for each in results)
        values = ", ".join(f"{value:.1%}" for value in generated)
        spread = f"{min(generated):.1%}-{max(generated):.1%}"
        print(f"| {name} | {real[name]:.1%} | {reconstructed:.1%} | {values} | {mean(generated):.1%} ({spread}) |")


def of_real_images(run: Path) -> dict[str, float]:
    config = read_config(run / "config.yaml")
    assert isinstance(config, MuseConfig)
    tokenizer = open_pipeline(run / "tokenizer").model.config
    splits = folder_splits(config.data, tokenizer.size, tokenizer.channels)
    metrics: dict[str, float] = {}
    for split, dataset in (("validation", splits.validation), (WITHHELD, splits.extra_splits[WITHHELD])):
        items = [
            dataset.load(item, ItemRNG(0, [0], [item])) for item in range(min(len(dataset), config.eval.num_generated))
        ]
        images, metadata = ([item[name] for item in items] for name in ("images", "metadata"))
        judged = ShapesJudge().metrics(images, metadata, split)
        metrics |= {name: float(values.mean()) for name, values in judged.items()}
    return metrics


if __name__ == "__main__":
    main()
