"""The smallest family: a two-layer network that fits random points. What tests of the loop train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Dataset, Item
from quintet.common.rank import RankInfo
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.common.weights import checkpoint
from quintet.config import OptimConfig, PhaseOptimConfig, RunConfig, Section, build
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem
from quintet.pipelines.base import Pipeline
from quintet.training.distributed.sharding import full_tensor
from quintet.training.phase import Loss, Modules, Output, Phase
from quintet.training.run_folder import Run
from quintet.training.task import Task, Traits
from quintet.training.trainer import Trainer


class ToyModelConfig(Section):
    width: int = 6
    dropout: float = 0.0
    critic: bool = False
    critic_start: int = 0


class ToyOptimConfig(OptimConfig):
    critic: PhaseOptimConfig = Field(default_factory=PhaseOptimConfig)


class ToyConfig(RunConfig):
    recipe: Literal["toy"] = "toy"
    model: ToyModelConfig = Field(default_factory=ToyModelConfig)
    optim: ToyOptimConfig = Field(default_factory=ToyOptimConfig)


QUIET: Mapping[str, Any] = {
    "engine.device": "cpu",
    "data.num_workers": 0,
    "log.trackers": [],
    "log.every": 1,
    "train.batch_size": 4,
    "train.steps": 6,
    "optim.lr": 0.01,
    "optim.max_grad_norm": 1.0,
    "optim.weight_decay": 0.1,
    "optim.warmup_steps": 2,
    "eval.every": 1000,
    "sample.every": 1000,
    "sample.num": 2,
    "checkpoint.every": 1000,
}
"""A run that does nothing but train."""


def toy_config(**overrides: Any) -> ToyConfig:
    """`train__steps=3` for `train.steps=3`."""
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    return build(ToyConfig, overrides={**QUIET, **dotted})


@dataclass
class Points:
    """Items made of their number; some cannot be read, some hold a NaN."""

    num: int = 24
    first: int = 0
    broken: frozenset[int] = frozenset()
    poisoned: frozenset[int] = frozenset()
    loaded: list[int] = field(default_factory=list)
    """The items that were read in this process."""

    def __len__(self) -> int:
        return self.num

    def name(self, item: int) -> str:
        return f"point-{self.first + item}"

    def load(self, item: int, rng: ItemRNG) -> Item:
        if item in self.broken:
            raise UnreadableItem(f"point {item} is broken")
        self.loaded.append(item)
        own = ItemRNG(7, [0], [self.first + item])
        x = own.uniform("x", 3)[0] * 2 - 1 + rng.uniform("jitter", 3)[0] * 0.1
        if item in self.poisoned:
            x[1] = float("nan")
        return {"x": x, "y": torch.stack([x.sin().sum(), x.square().sum()]), "length": item + 1}


def points(validation: int = 7, **options: Any) -> Splits:
    return Splits(Points(**options), Points(validation, first=1000), fingerprint=f"toy {options}")


class Net(nn.Module):
    """A buffer beside the weights, so that there is something that only `after_step` may change."""

    seen: Tensor

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.body = Body(width, dropout)
        self.head = nn.Linear(width, 2)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.body(x))
        return made


class Body(nn.Module):
    recomputable = True

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.dropout(self.linear(x).tanh())
        return hidden


class ToyPipeline(Pipeline[ToyConfig]):
    recipe = "toy"
    exported = "net"

    @classmethod
    def build_modules(cls, config: ToyConfig, frozen: Mapping[str, Pipeline[Any]]) -> dict[str, nn.Module]:
        return {"net": Net(config.model.width, config.model.dropout)}


class ToyTask(Task[ToyConfig]):
    traits = Traits(best=("error", "min"), shardable=True)
    pipeline_class = ToyPipeline

    def __init__(self, config: ToyConfig, data: Splits | None = None) -> None:
        super().__init__(config)
        self.data = data or points()
        torch.manual_seed(config.train.seed)
        self.net = Net(config.model.width, config.model.dropout)
        self.modules = {"net": self.net}
        self.phases = [Phase("fit", ("net",), self.fit_loss, config.optim.for_phase())]
        self.order: list[str] = []
        """The names behind the statistics' rows, as `after_step` saw them."""
        if config.model.critic:
            self.critic = nn.Linear(2, 1)
            self.modules["critic"] = self.critic
            own = config.optim.for_phase(config.optim.critic)
            self.phases.append(Phase("critic", ("critic",), self.critic_loss, own, self.critic_is_active))

    def splits(self) -> Splits:
        return self.data

    def critic_is_active(self, step: int) -> bool:
        return step >= self.config.model.critic_start

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        made = modules["net"](batch["x"])
        numbers = torch.tensor([[int(name.split("-")[1])] for name in batch.names])
        seen = Statistics({"y": batch["y"].sum(0), "count": torch.tensor(float(len(batch)))}, {"numbers": numbers})
        return Output({"made": made}, seen)

    def fit_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        error = (output["made"] - batch["y"]).square().mean()
        return Loss(error, {"error": error})

    def critic_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        return Loss((modules["critic"](output["made"].detach()) - 1).square().mean())

    def after_step(self, statistics: Statistics, step: int) -> None:
        self.net.seen += (statistics.sums["y"] / statistics.sums["count"]).to(self.net.seen.dtype)
        self.order += [f"point-{number}" for number in statistics.rows["numbers"].flatten().tolist()]

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        error = (modules["net"](batch["x"]) - batch["y"]).square().mean(1)
        return Statistics({"error": error.sum(), "count": torch.tensor(float(len(batch)))}, {"errors": error})

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        assert len(statistics.rows["errors"]) == statistics.sums["count"]
        return {"error": float(statistics.sums["error"] / statistics.sums["count"])}

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        made = modules["net"](batch["x"]) + torch.rand(())  # draws from the stream that dropout draws from
        return [Artifact("made.txt", partial(write_text, str(made.tolist())), {"items": list(batch.names)}, made)]


class BucketedTask(ToyTask):
    """A recipe whose items have lengths."""

    def lengths(self, source: Dataset) -> Sequence[int]:
        return [item + 1 for item in range(len(source))]


def write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


OPENED: list[Run] = []
"""The runs of the test at hand, closed when it ends."""


def toy_trainer(
    folder: Path,
    *,
    data: Splits | None = None,
    resume: bool = False,
    kind: type[ToyTask] = ToyTask,
    arguments: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Trainer:
    """A new run in `folder`, or with `resume` the one that is there, with some keys changed."""
    if resume:
        run = Run.open(folder)
        dotted = {name.replace("__", "."): value for name, value in overrides.items()}
        config = build(ToyConfig, file=run.config_file, overrides=dotted)
    else:
        # As `runs.new_trainer` does it: only the process that will write looks at the folder.
        run = Run.new(folder) if RankInfo.from_environment().rank == 0 else Run(folder)
        config = toy_config(**overrides)
    OPENED.append(run)
    return Trainer(kind(config, data), run, resume=resume, silent=True, **(arguments or {}))


def trained(folder: Path, **options: Any) -> Trainer:
    """The same, trained to its end and closed."""
    trainer = toy_trainer(folder, **options)
    trainer.train()
    trainer.close()
    return trainer


def weights(trainer: Trainer) -> dict[str, Tensor]:
    """All full tensors of the run: weights, EMA and optimizer state. All processes must call this together."""
    contents = trainer.state.contents(1, "")
    return {
        f"{group}/{name}": full_tensor(value.detach()).clone()
        for group, tensors in contents.tensors.items()
        for name, value in tensors.items()
    }


def saved_hashes(folder: Path, step: int) -> dict[str, str]:
    """SHA-256 of all tensors of one checkpoint."""
    files = checkpoint.hashes(checkpoint.folder_of(folder / "checkpoints", step))
    return {name: value for name, value in files.items() if name.endswith(".safetensors")}
