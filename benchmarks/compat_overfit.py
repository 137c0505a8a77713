"""Trains the models of quintet.compat on one batch, with a hand-written loop and with the trainer of the same name.

    python benchmarks/compat_overfit.py [TRAINER …] [--steps N]

Both use the same model, data and optimizer settings; the last losses should agree. Prints one JSON line per trainer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Overfit:
    """The mean loss of the last steps of both loops."""

    first: float
    by_hand: float
    by_trainer: float

    @property
    def difference(self) -> float:
        """Of the trainer from the hand-written loop, in percent."""
        return 100 * (self.by_trainer - self.by_hand) / self.by_hand


TRAINERS: dict[str, Callable[[int], Overfit]] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainers", nargs="*", metavar="TRAINER")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    for name in options.trainers or TRAINERS:
        result = TRAINERS[name](options.steps)
        print(json.dumps({"trainer": name, **asdict(result), "difference_percent": result.difference}), flush=True)


if __name__ == "__main__":
    main()
