"""Trains a recipe and notes which items were seen. As a program: a list of trainings, in one world of processes.

`torchrun --nproc_per_node 2 worlds.py PLAN.json`; the plan is a list of the arguments of `train`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from contract.cases import case_of
from quintet import config as configs
from quintet import recipes, runs
from quintet.core.batch import Item, Source
from quintet.core.draw import Draw
from quintet.core.engine import Place, exit_process
from quintet.core.prepare import open_sources
from quintet.core.recipe import Recipe
from quintet.core.run import Run
from quintet.core.trainer import Trainer


@dataclass
class Noting:
    """A source that remembers what was read: epoch and name."""

    source: Source
    seen: set[tuple[int, str]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.source)

    def name(self, item: int) -> str:
        return self.source.name(item)

    def load(self, item: int, draw: Draw) -> Item:
        self.seen.add((int(draw.epochs[0]), self.name(item)))
        return self.source.load(item, draw)

    def __getattr__(self, name: str) -> Any:
        """What else the source knows, such as the lengths of its items."""
        return getattr(self.source, name)


def make_recipe(recipe: str, data: Path | str, words: Sequence[str]) -> Recipe[Any]:
    """A recipe from the words of the command line: `--preset NAME KEY=VALUE …`."""
    option, preset, *keys = words
    assert option == "--preset"
    overrides = configs.parse_overrides([*keys, f"data.path={data}"])
    return runs.make_recipe(configs.build(recipes.find(recipe).config_class(), preset=preset, overrides=overrides))


def train(recipe: str, data: str, words: Sequence[str], out: str) -> None:
    """Train in `out`, and leave there what this process has seen."""
    rank = Place.from_environment().rank
    made = make_recipe(recipe, data, words)
    case_of(recipe).prepare(made)
    sources = open_sources(made)
    noting = Noting(sources.train)
    run = Run.new(Path(out)) if rank == 0 else Run(Path(out))
    trainer = Trainer(made, run, sources=replace(sources, train=noting), silent=True)
    trainer.train()
    trainer.close()
    (run.folder / f"seen-{rank}.json").write_text(json.dumps(sorted(noting.seen)))


if __name__ == "__main__":
    # As Ray Train does: the group is there before quintet is.
    dist.init_process_group("gloo")
    for arguments in json.loads(Path(sys.argv[1]).read_text()):
        train(**arguments)
    dist.barrier()
    dist.destroy_process_group()
    exit_process(0)
