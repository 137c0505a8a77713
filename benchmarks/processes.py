"""Training speed of two processes against one: `processes.py DATA TOKENIZER [--rounds 3] [--steps 120] [KEY=VALUE…]`.

Trains Muse (preset `small`) on the images of DATA with one process of one thread and with two such processes, the same
global batch, in turn. A round is one training of each. The speed is the median of the items per second in
`metrics.jsonl`, without the first quarter of the rows. Needs two cores on which nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import HERE, write_facts

RESULTS = HERE / "results" / "processes.json"


def items_per_second(run: Path) -> float:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = [row["train/rate/items_per_second"] for row in rows if "train/rate/items_per_second" in row]
    return float(statistics.median(rates[len(rates) // 4 :]))


def train(options: argparse.Namespace, processes: int, run: Path) -> float:
    words = ["train", "muse", str(options.data), "--tokenizer", str(options.tokenizer), "--out", str(run)]
    keys = [f"train.steps={options.steps}", "log.every=10", f"engine.launch={processes}", "eval.batches=1"]
    command = [sys.executable, "-m", "quintet", *words, "--preset", "small", *keys, *options.keys]
    subprocess.run(
        command,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return items_per_second(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("keys", nargs="*")
    options = parser.parse_intermixed_args()
    speeds: dict[int, list[float]] = {1: [], 2: []}
    for number in range(options.rounds):
        for processes, found in speeds.items():
            with tempfile.TemporaryDirectory() as folder:
                found.append(train(options, processes, Path(folder) / "run"))
            print(f"round {number}: {processes} processes, {found[-1]:.1f} items/s", flush=True)
    one, two = (statistics.median(found) for found in speeds.values())
    print(f"two processes: {two / one:.2f} times the speed of one")
    write_facts(RESULTS, {"keys": options.keys, "items_per_second": speeds, "ratio": two / one})


if __name__ == "__main__":
    main()
