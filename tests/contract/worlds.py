"""Trains a recipe and notes which items were seen. As a program: a list of trainings, in one world of processes.

`torchrun --nproc_per_node 2 worlds.py PLAN.json`; the plan is a list of the arguments of `train`. What one of them does
`alone` is done by a process of its own, `worlds.py PLAN.json alone`, while the world waits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from contract.cases import case_of
from helpers import environment
from quintet import config as configs
from quintet import registry, runs
from quintet.common.batch import Batch, Dataset, Item
from quintet.common.rank import RankInfo
from quintet.common.rng import ItemRNG
from quintet.pipelines.loading import open_frozen
from quintet.training.engine import Engine, exit_process
from quintet.training.phase import Modules
from quintet.training.prepare import open_splits
from quintet.training.run_folder import Run
from quintet.training.task import Report, Task
from quintet.training.trainer import Trainer


@dataclass
class Noting:
    """A source that remembers what was read: epoch and name."""

    source: Dataset
    seen: set[tuple[int, str]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.source)

    def name(self, item: int) -> str:
        return self.source.name(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        self.seen.add((int(rng.epochs[0]), self.name(item)))
        return self.source.load(item, rng)

    def __getattr__(self, name: str) -> Any:
        """What else the source knows, such as the lengths of its items."""
        return getattr(self.source, name)


def make_task(recipe: str, data: Path | str, words: Sequence[str]) -> Task[Any]:
    """A recipe from the words of the command line: `--preset NAME KEY=VALUE …`."""
    option, preset, *keys = words
    assert option == "--preset"
    overrides = configs.parse_overrides([*keys, f"data.path={data}"])
    config = configs.build(registry.find(recipe).config_class(), preset=preset, overrides=overrides)
    return runs.make_task(config, open_frozen(config))


def noted_steps(made: Task[Any]) -> list[tuple[int, str]]:
    """Filled, as the recipe is trained, with the step and name of each item that this process learns from."""
    noted: list[tuple[int, str]] = []
    learn = made.backward

    def backward(micro_batches: Sequence[Batch], modules: Modules, engine: Engine, step: int) -> Report:
        noted.extend((step, name) for batch in micro_batches for name in batch.names)
        return learn(micro_batches, modules, engine, step)

    made.backward = backward  # type: ignore[method-assign]
    return noted


class CheapEngine(Engine):
    """With `engine.compile`, captures graphs and checks guards as for a GPU, but runs the graphs as they are."""

    compile_backend: ClassVar[str] = "eager"


def train(recipe: str, data: str, words: Sequence[str], out: str, resume: bool = False) -> None:
    """Train in `out`, where a run may have begun, and leave there what this process has seen."""
    rank = RankInfo.from_environment().rank
    made = make_task(recipe, data, words)
    if resume:
        steps = made.config.train.steps
        saved = registry.read_config(Path(out) / "config.yaml").changed({"train.steps": steps})
        made = runs.task_in(Path(out), saved)
    case_of(recipe).prepare(made)
    splits = open_splits(made)
    noting = Noting(splits.train)
    noted = noted_steps(made)
    run = Run.open(Path(out)) if resume else Run.new(Path(out)) if rank == 0 else Run(Path(out))
    engine = CheapEngine(made.config.engine, made.config.train.seed)
    trainer = Trainer(made, run, splits=replace(splits, train=noting), resume=resume, silent=True, engine=engine)
    trainer.train()
    trainer.close()
    if made.config.engine.compile:
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        (run.folder / f"graphs-{rank}.json").write_text(json.dumps(graphs))
    (run.folder / f"seen-{rank}.json").write_text(json.dumps(sorted(noting.seen)))
    (run.folder / f"learned-{made.config.train.steps}-{rank}.json").write_text(json.dumps(noted))


def train_in_turn(plan: Sequence[Mapping[str, Any]]) -> None:
    for number, arguments in enumerate(plan):
        own = {key: value for key, value in arguments.items() if key != "alone"}
        if not arguments.get("alone", False):
            train(**own)
        elif dist.get_rank() == 0:
            file = Path(sys.argv[1]).with_name(f"alone-{number}.json")
            file.write_text(json.dumps(own))
            subprocess.run([sys.executable, "-m", "contract.worlds", str(file), "alone"], env=environment(), check=True)
        dist.barrier()


if __name__ == "__main__":
    if sys.argv[2:] == ["alone"]:
        train(**json.loads(Path(sys.argv[1]).read_text()))
        sys.exit()
    # As Ray Train does: the group is there before quintet is.
    dist.init_process_group("gloo")
    train_in_turn(json.loads(Path(sys.argv[1]).read_text()))
    dist.destroy_process_group()
    exit_process(0)
