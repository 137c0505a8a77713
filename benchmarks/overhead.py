"""Overhead of the training loop, as a fraction of a step of the demo: `make bench-overhead`.

Overhead is everything except forward, backward, optimizer and moving average: waiting for data, moving it, order,
flags, metrics, display and log. Checkpoints and validation are excluded.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from quintet import config, runs
from quintet.families.vqgan.config import VQGanConfig
from quintet.synthetic.shapes import make_shapes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        make_shapes(data, num=1000)
        keys = {"data.path": str(data), "train.steps": steps, "loss.discriminator_start": steps // 3, "log.every": 20}
        trainer = runs.new_trainer(config.build(VQGanConfig, preset="small", overrides=keys), Path(folder) / "run")
        trainer.train()
        rows = [row for row in trainer.run.read_metrics() if "train/time/overhead" in row]
    # The first rows include the start of the workers and of torch's caches.
    fractions = [row["train/time/overhead"] for row in rows[2:]]
    waiting = [row["train/time/waiting_for_data"] for row in rows[2:]]
    print(f"loop overhead: {statistics.fmean(fractions):.2%} of a step (maximum of a row {max(fractions):.2%}),")
    print(f"of which waiting for data: {statistics.fmean(waiting):.2%}; {len(fractions)} rows of 20 steps")


if __name__ == "__main__":
    main()
