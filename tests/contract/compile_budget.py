"""Prints how often each recipe compiles at debug size: `make compile-budget`, or `python -m contract.compile_budget`.

`BACKEND=aot_eager` also traces the backward passes, `BACKEND=inductor` generates code.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch._dynamo import utils

from contract.cases import CASES
from contract.worlds import CheapEngine, make_task
from helpers import succeed
from quintet.training.engine import Engine
from quintet.training.run_folder import Run
from quintet.training.trainer import Trainer

SETS = {"pictures": "shapes", "meshes": "solids", "sounds": "sounds", "videos": "motions"}
"""The synthetic data set of each fixture."""


class Compiled(NamedTuple):
    """What torch compiled in a training."""

    graphs: int
    breaks: tuple[str, ...]
    recompilations: tuple[str, ...]


class AnyEngine(Engine):
    compile_backend: ClassVar[str] = os.environ.get("BACKEND", "eager")


def train_compiled(recipe: str, data: Path, out: Path, kind: type[Engine] = CheapEngine) -> Compiled:
    """Train the contract case of a recipe in `out`, with engine.compile."""
    torch._dynamo.reset()
    utils.counters.clear()
    utils.clear_compilation_metrics()
    made = make_task(recipe, data, (*CASES[recipe].tiny, "engine.compile=true"))
    engine = kind(made.config.engine, made.config.train.seed)
    trainer = Trainer(made, Run.new(out), silent=True, engine=engine)
    trainer.train()
    trainer.close()
    reasons = [each.recompile_reason for each in utils.get_compilation_metrics()]
    return Compiled(
        utils.counters["stats"]["unique_graphs"],
        tuple(utils.counters["graph_break"]),
        tuple(reason for reason in reasons if reason),
    )


def main() -> None:
    torch.set_num_threads(1)
    sys.stdout.write("| recipe | graphs | breaks | recompilations |\n|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as folder:
        for recipe, case in CASES.items():
            data = Path(folder) / case.data
            if not data.exists():
                size = ("--size", 32) if case.data in ("pictures", "videos") else ()
                succeed("data", "make", SETS[case.data], data, "--num", 64 if case.data == "meshes" else 48, *size)
            found = train_compiled(recipe, data, Path(folder) / recipe, AnyEngine)
            row = (recipe, found.graphs, len(found.breaks), len(found.recompilations))
            sys.stdout.write(f"| {' | '.join(map(str, row))} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
