"""Control experiment for MuLaN: `benchmarks/sounds_shuffled.py DATA --out FOLDER [--steps 300]`.

Trains twice on the synthetic dataset `sounds`, the second time with shuffled captions of the training clips. On the
same held-out clips the second model must be at chance level.
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
METRICS = ("text_to_audio_r1", "text_to_audio_r10", "text_to_audio_median_rank", "zero_shot_accuracy")
RESULTS = Path(__file__).parent / "results" / "sounds-shuffled.json"


def shuffled(data: Path, out: Path) -> Path:
    """A copy of the dataset with shuffled captions of the training clips."""
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


def train_and_evaluate(data: Path, run: Path, steps: int) -> dict[str, Any]:
    if not run.exists():
        labels = json.dumps([*TIMBRES, *DRUMS, *NOISES])
        cli.call(
            ["train", "mulan", str(data), "--out", str(run), "--preset", "small", f"train.steps={steps}",
             f"eval.every={steps}", f"sample.every={steps}", f"checkpoint.every={steps}",
             f"eval.distinct_captions={POOL}", f"eval.zero_shot_labels={labels}",
             "eval.zero_shot_template=a {}", "eval.live=false"]
        )  # fmt: skip
    cli.call(["eval", str(run)])
    metrics: dict[str, Any] = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    shuffled_data = arguments.out / "data"
    if not shuffled_data.exists():
        shuffled(arguments.data, shuffled_data)
    real = train_and_evaluate(arguments.data, arguments.out / "real", arguments.steps)
    control = train_and_evaluate(shuffled_data, arguments.out / "shuffled", arguments.steps)
    chance = dict(
        zip(METRICS, (1 / POOL, 10 / POOL, (POOL + 1) / 2, 1 / len([*TIMBRES, *DRUMS, *NOISES])), strict=True)
    )
    print(f"after {arguments.steps} steps, among {POOL} held-out clips with distinct captions")
    print("| metric | real captions | shuffled captions | chance |\n|---|---|---|---|")
    for name in METRICS:
        print(f"| {name} | {real[name]:.3f} | {control[name]:.3f} | {chance[name]:.3f} |")
    results = {"steps": arguments.steps, "real": real, "shuffled": control, "chance": chance}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
