"""Is what MuLaN finds real? `benchmarks/sounds_shuffled.py DATA --out FOLDER [--steps 300]`.

Trains twice on the embedded sounds, alike but for one thing: the second time the captions of the training clips are
dealt out anew. On the same held-out clips the second one must find nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from quintet import cli
from quintet.synthetic.sounds import DRUMS, NOISES, TIMBRES

POOL = 200
FIGURES = ("text_to_audio_r1", "text_to_audio_r10", "text_to_audio_median_rank", "zero_shot_accuracy")
RESULTS = Path(__file__).parent / "results" / "sounds-shuffled.json"


def shuffled(data: Path, out: Path) -> Path:
    """The same clips; those to train on with each other's captions."""
    rows = [json.loads(line) for line in (data / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    train = [row for row in rows if row["split"] == "train"]
    texts = [row["text"] for row in train]
    random.Random(0).shuffle(texts)
    for row, text in zip(train, texts, strict=True):
        row["text"] = text
    out.mkdir(parents=True)
    shutil.copytree(data / "sounds", out / "sounds", copy_function=os.link)
    (out / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return out


def figures_of(data: Path, run: Path, steps: int) -> dict[str, Any]:
    if not run.exists():
        labels = json.dumps([*TIMBRES, *DRUMS, *NOISES])
        cli.call(
            ["train", "mulan", str(data), "--out", str(run), "--preset", "small", f"train.steps={steps}",
             f"eval.every={steps}", f"sample.every={steps}", f"checkpoint.every={steps}",
             f"eval.distinct_captions={POOL}", f"eval.zero_shot_labels={labels}",
             "eval.zero_shot_template=a {}", "eval.live=false"]
        )  # fmt: skip
    cli.call(["eval", str(run)])
    found: dict[str, Any] = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    mixed = arguments.out / "data"
    if not mixed.exists():
        shuffled(arguments.data, mixed)
    real = figures_of(arguments.data, arguments.out / "real", arguments.steps)
    dealt = figures_of(mixed, arguments.out / "shuffled", arguments.steps)
    chance = dict(
        zip(FIGURES, (1 / POOL, 10 / POOL, (POOL + 1) / 2, 1 / len([*TIMBRES, *DRUMS, *NOISES])), strict=True)
    )
    print(f"after {arguments.steps} steps, among {POOL} held-out clips of different captions")
    print("| figure | captions as they are | captions shuffled | by chance |\n|---|---|---|---|")
    for name in FIGURES:
        print(f"| {name} | {real[name]:.3f} | {dealt[name]:.3f} | {chance[name]:.3f} |")
    about = {"steps": arguments.steps, "real": real, "shuffled": dealt, "chance": chance}
    RESULTS.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
