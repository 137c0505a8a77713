"""Which size of a model learns most in a given time: `sizes.py RECIPE DATA --out FOLDER [--tokenizer RUN] [KEY=VALUE]`.

Trains every size for every budget with `quintet train --budget`, one process of one thread, and compares the validation
loss at the end, when the learning rate has decayed. For each size, a line through the logarithms of loss and training
FLOPs is fitted; where the lines of neighbouring sizes cross, the larger size begins to learn more. These FLOPs are the
table `SIZES` of a recipe's `config.py`, from which `quintet train --budget` chooses. An interrupted comparison goes on
where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from quintet.config.budget import parse_seconds
from side_by_side import HERE, write_facts


@dataclass(frozen=True)
class Trained:
    """One training of a size for a budget."""

    size: str
    budget: str
    steps: int
    flops: float
    """Of the whole training: forward and backward passes."""
    loss: float
    """Of all validation items, with averaged weights."""


def train(arguments: argparse.Namespace, size: str, budget: str) -> Trained:
    run = arguments.out / f"{size}-{budget}"
    if not (run / "eval.json").exists():
        dim, _, depth = size.partition("x")
        words = ["train", arguments.recipe, str(arguments.data), "--out", str(run), "--preset", "small"]
        words += [] if arguments.tokenizer is None else ["--tokenizer", str(arguments.tokenizer)]
        keys = [f"model.dim={dim}", f"model.depth={depth}", "engine.launch=1", "engine.threads=1", "log.every=5"]
        quintet(*words, "--budget", budget, *keys, *arguments.keys)
        quintet("eval", str(run), "eval.num_generated=0")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = [row["train/rate/flops_per_second"] for row in rows if "train/rate/flops_per_second" in row]
    loss = json.loads((run / "eval.json").read_text(encoding="utf-8"))["metrics"]["loss"]
    steps = max(row["step"] for row in rows)
    return Trained(size, budget, steps, statistics.median(rates) * parse_seconds(budget), loss)


def quintet(*words: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "quintet", *words], check=True, env=environment, stdout=subprocess.DEVNULL)


def crossings(trained: list[Trained], sizes: list[str]) -> dict[str, float | None]:
    """For each size but the first, the FLOPs from which its fitted loss is below that of the size before."""
    fits = {size: fit([row for row in trained if row.size == size]) for size in sizes}
    found: dict[str, float | None] = {}
    for smaller, larger in itertools.pairwise(sizes):
        (low, slope), (high, steeper) = fits[smaller], fits[larger]
        found[larger] = math.exp((high - low) / (slope - steeper)) if steeper < slope else None
    return found


def fit(rows: list[Trained]) -> tuple[float, float]:
    """Intercept and slope of the logarithm of the loss over the logarithm of the FLOPs."""
    slope, intercept = statistics.linear_regression(
        [math.log(row.flops) for row in rows], [math.log(row.loss) for row in rows]
    )
    return intercept, slope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("data", type=Path)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", default=["96x4", "128x6", "192x6"], help="dim and depth")
    parser.add_argument("--budgets", nargs="+", default=["30s", "90s", "270s"])
    arguments = parser.parse_intermixed_args()
    trained: list[Trained] = []
    for budget in arguments.budgets:
        for size in arguments.sizes:
            trained.append(train(arguments, size, budget))
            print(trained[-1], flush=True)
    print(f"| size | {' | '.join(arguments.budgets)} |")
    print("|---" * (1 + len(arguments.budgets)) + "|")
    for size in arguments.sizes:
        cells = [f"{row.loss:.3f} ({row.flops:.1e} FLOP)" for row in trained if row.size == size]
        print(f"| {size} | {' | '.join(cells)} |")
    found = crossings(trained, arguments.sizes)
    for size, flops in found.items():
        print(f"{size} learns more than the size before from {'no measured time' if flops is None else f'{flops:.1e}'}")
    facts = {"keys": arguments.keys, "trained": [asdict(row) for row in trained], "crossings": found}
    write_facts(HERE / "results" / f"sizes-{arguments.recipe}.json", facts)


if __name__ == "__main__":
    main()
