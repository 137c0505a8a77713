"""`Task`: what a family supplies for training and validation. The loop supplies everything else.

Reading this file and `families/vqgan/task.py` is enough to write a new one. What a trained model is used for is not
here: see `pipelines/base.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from torch import Tensor, nn

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Dataset, Item
from quintet.common.batch import collate as collate_equal
from quintet.common.statistics import Statistics
from quintet.config import RunConfig
from quintet.data.splits import Splits
from quintet.pipelines.base import Frozen, Pipeline
from quintet.training.phase import Modules, Output, Phase

if TYPE_CHECKING:
    from quintet.training.engine import Engine

ConfigT = TypeVar("ConfigT", bound=RunConfig)


@dataclass(frozen=True)
class Traits:
    """What the loop has to know about a task before it can be trained."""

    best: tuple[str, Literal["max", "min"]]
    """The metric that chooses the best checkpoint, and which way is better."""
    find_unused_parameters: bool = False
    """Whether a step may leave parameters without gradient (heads of levels that were not drawn)."""
    uncompiled: frozenset[str] = frozenset()
    """Modules that `engine.compile` must leave alone, because a loss differentiates twice through them."""
    shardable: bool = False
    """Whether its modules can be sharded (`engine.fsdp`): training calls nothing of them but `forward`, no loss looks
    at single weights, and no weight is a single number."""
    minimum_batch: int = 1
    """The smallest global batch that makes sense (a contrastive loss needs two items)."""


@dataclass
class Report:
    """What the backward passes of one step tell the loop."""

    metrics: dict[str, Tensor]
    statistics: Statistics


class Task(ABC, Generic[ConfigT]):
    """How one family is trained and validated. Holds modules and configuration; all else passes through arguments.

    `modules` may hold modules that exist already, such as a model that a person built; the others are made.
    """

    traits: ClassVar[Traits]
    pipeline_class: ClassVar[type[Pipeline[Any]]]
    """What the trained modules are used with."""

    modules: dict[str, nn.Module]
    """Everything that is trained or saved, by name. Frozen models do not belong here."""
    phases: Sequence[Phase]

    def __init__(self, config: ConfigT, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        self.frozen: Frozen = dict(frozen or {})
        """The pretrained models that this one builds on, by their key, such as `tokenizer`."""
        self.config: ConfigT = self.pipeline_class.fit(config, self.frozen)

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return self.pipeline_class.recipe

    @property
    def averaged(self) -> tuple[str, ...]:
        """The modules that get a moving average: those of the first phase, unless the family says otherwise."""
        return self.phases[0].modules if self.phases else ()

    def pipeline(self, modules: Modules) -> Any:
        """The modules as they are used once trained; for samples and for judging what is generated."""
        return self.pipeline_class(self.config, modules, self.frozen)

    # --- data ---------------------------------------------------------------------------------------------

    @abstractmethod
    def splits(self) -> Splits:
        """The items to train and validate on, as the configuration names them."""

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        return collate_equal(items)

    def lengths(self, dataset: Dataset) -> Sequence[int] | None:
        """The items' lengths, where batches should hold items of similar length."""
        return None

    # --- training -----------------------------------------------------------------------------------------

    @abstractmethod
    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        """The one forward pass of a micro-batch. Changes no state; calls trained modules through `modules`."""

    def backward(self, micro_batches: Sequence[Batch], modules: Modules, engine: Engine, step: int) -> Report:
        """Gradients of one step. Contrastive tasks override this for exact large batches; few others should."""
        active = [phase for phase in self.phases if phase.active(step)]
        metrics: dict[str, Tensor] = {}
        statistics = Statistics()
        for number, batch in enumerate(micro_batches):
            last = number == len(micro_batches) - 1
            with engine.micro_batch(modules, step, number, synchronise=last):
                with engine.autocast():
                    output = self.forward(modules, batch, step)
                for phase in active:
                    with engine.autocast():
                        loss = phase.loss(modules, batch, output, step)
                    share = loss.value / len(micro_batches)
                    share.backward()  # type: ignore[no-untyped-call]
                    for part, value in {"loss": loss.value, **loss.parts}.items():
                        path = f"{phase.name}/{part}"
                        metrics[path] = metrics.get(path, 0) + value.detach() / len(micro_batches)
                    statistics = statistics + loss.statistics
            statistics = statistics + output.statistics
        return Report(metrics, statistics)

    @property
    def num_init_batches(self) -> int:
        """Number of training batches passed to `init_from_data`."""
        return 1

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        """Once, before the first step of a new run: what needs to have seen data, such as a k-means codebook.

        `batches` are the micro-batches of the first `num_init_batches` of the training order on this rank; taking them
        consumes nothing.
        """

    def after_step(self, statistics: Statistics, step: int) -> None:
        """After an accepted step: apply the statistics of the whole global batch, the same on every rank."""

    # --- validation ---------------------------------------------------------------------------------------

    @abstractmethod
    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        """What one validation batch adds to the metrics; sums and rows, so that batches and ranks can be added."""

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """What generating from a batch adds to the metrics: one of the split `validation`, or of `extra_splits`.

        Too slow for validation while training: only `quintet eval` asks for it. Its names must differ from those
        of `measure`."""
        return Statistics()

    @abstractmethod
    def summarise(self, statistics: Statistics) -> dict[str, float]:
        """The metrics, by their names in `eval.json`, from the statistics of the whole validation."""

    @abstractmethod
    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """Things to look at: what the model makes of (or from the captions of) a validation batch."""
