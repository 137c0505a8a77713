"""`Task`: the interface of a family for training and validation. The training loop does everything else.

Reading this file and `families/vqgan/task.py` is enough to write a new one. Inference with a trained model is in
`pipelines/base.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

from torch import Tensor, nn

from quintet import registry
from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Collate, Dataset, Item, Prepare
from quintet.common.batch import collate as collate_equal
from quintet.common.statistics import Statistics
from quintet.config import RunConfig, build
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.pipelines.base import Frozen, Pipeline
from quintet.training.phase import Modules, Output, Phase

if TYPE_CHECKING:
    from quintet.training.distributed.deferred import DeferredInit
    from quintet.training.engine import Engine

ConfigT = TypeVar("ConfigT", bound=RunConfig)


EXAMPLE_CAPTION = "a photograph of a small red fox that jumps over a brown log in a snowy forest"
"""A caption of usual length, for `example_item`."""


@dataclass(frozen=True)
class Traits:
    """Properties of a task that the training loop needs."""

    best: tuple[str, Literal["max", "min"]]
    """The metric that selects the best checkpoint, and whether it is maximised or minimised."""
    find_unused_parameters: bool = False
    """Whether a step may leave parameters without gradient, such as heads of quantizers that were not sampled."""
    uncompiled: frozenset[str] = frozenset()
    """Modules that `engine.compile` must skip, because a loss needs second derivatives of them."""
    varying_shapes: bool = False
    """Whether the shapes of batches vary, as lengths do: `engine.compile` then compiles for all sizes at once."""
    shardable: bool = False
    """Whether the modules can be sharded (`engine.fsdp`): training only calls `forward`, neither a loss nor
    `init_from_data` reads single weights, and no weight is a scalar."""
    takes_gradients: bool = False
    """Whether a loss takes gradients itself (`torch.autograd.grad`). Loss scaling does not reach them, and they
    underflow in fp16, so the task is not trained in fp16."""
    minimum_batch: int = 1
    """The smallest valid global batch size (a contrastive loss needs two items)."""


@dataclass
class Report:
    """Metrics and statistics of the backward passes of one step."""

    metrics: dict[str, Tensor]
    statistics: Statistics


def no_fields(batch: Batch) -> dict[str, Any]:
    """The preparation of a task whose batches need none."""
    return {}


class Task(ABC, Generic[ConfigT]):
    """Training and validation of one family. Holds modules and configuration; everything else is passed as arguments.

    The argument `modules` may contain existing modules, such as a model that the user built; the others are created.
    """

    traits: ClassVar[Traits]
    derived_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that are null until `data_keys` gives their value."""
    pipeline_class: ClassVar[type[Pipeline[Any]]]
    """The pipeline for inference with the trained modules."""

    modules: dict[str, nn.Module]
    """All modules that are trained or saved, by name, without frozen models."""
    phases: Sequence[Phase]
    deferred: DeferredInit | None = None
    """With several processes and `engine.fsdp`: how the weights are computed, once the modules are sharded. Until then
    the modules are on `meta`."""

    def __init__(self, config: ConfigT, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        self.frozen: Frozen = dict(frozen or {})
        """The frozen pretrained models, by key, such as `tokenizer`."""
        self.config: ConfigT = self.pipeline_class.fit(config, self.frozen)

    @classmethod
    def from_model(
        cls,
        model: Any,
        *,
        frozen: Frozen | None = None,
        modules: Modules | None = None,
        keys: Mapping[str, Any] | None = None,
    ) -> Self:
        """The task of a model outside of a run, with the default keys of the recipe and some dotted `keys`.

        `frozen` are the models that it builds on; `modules` are further modules by name, such as a discriminator."""
        references = {name: pipeline.reference for name, pipeline in (frozen or {}).items()}
        own = {"data.path": None, "model": model.config.model_dump(mode="json")}
        schema: Any = registry.find(cls.pipeline_class.recipe).config_class()
        config = build(schema, overrides={**own, **references, **(keys or {})})
        return cls(config, frozen, {cls.pipeline_class.exported: model, **(modules or {})})

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return self.pipeline_class.recipe

    @property
    def averaged(self) -> tuple[str, ...]:
        """The modules with an EMA: by default, those of the first phase."""
        return self.phases[0].modules if self.phases else ()

    def pipeline(self, modules: Modules) -> Any:
        """An inference pipeline of these modules, for samples and generated media."""
        return self.pipeline_class(self.config, modules, self.frozen)

    # --- data ---------------------------------------------------------------------------------------------

    @abstractmethod
    def splits(self) -> Splits:
        """The training and validation data of the configuration."""

    def data_keys(self, splits: Splits) -> Mapping[str, Any]:
        """Keys that follow from the encoded data, of `derived_keys`; they are recorded when a run starts."""
        return {}

    @property
    def collate(self) -> Collate:
        """The function that combines items into the fields of a batch. Data workers receive a copy of it, so it must
        not refer to modules."""
        return collate_equal

    @property
    def prepare(self) -> Prepare:
        """A function that computes further fields of a training batch from its collated fields and its random numbers:
        prepared texts, masks, positions and targets.

        It runs in the data workers, while the device computes the step before. There every value can be read at once;
        reading one from the device in `forward` would make the step wait. It must be picklable, as that of `collate`.
        `forward` uses `batch.prepared(self.prepare)`, because a batch from elsewhere has only collated fields.
        """
        return no_fields

    def lengths(self, dataset: Dataset) -> Sequence[int] | None:
        """The lengths of all items, if batches should contain items of similar length."""
        return None

    def num_tokens(self, batch: Batch) -> int | None:
        """Number of tokens (codes) in a training batch on the CPU, without padding, for tokens per second. None if its
        items have no tokens."""
        codes = batch.fields.get("codes")
        return int((codes >= 0).sum()) if isinstance(codes, Tensor) else None

    def example_item(self) -> Item:
        """An item of the shapes of a large training item, with any contents, for `quintet plan`."""
        raise UsageError(f"recipe {self.name} cannot be planned: {type(self).__name__} has no `example_item`")

    # --- training -----------------------------------------------------------------------------------------

    @abstractmethod
    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        """The forward pass of a micro-batch. Changes no state, and calls trained modules through `modules`."""

    def backward(self, micro_batches: Sequence[Batch], modules: Modules, engine: Engine, step: int) -> Report:
        """Compute the gradients of one step. Contrastive tasks override this for exact full-batch gradients."""
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
                    mean = loss.value / len(micro_batches)
                    engine.scaled(mean).backward()  # type: ignore[no-untyped-call]
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
        """Data-dependent initialisation, such as a k-means codebook. Called once, before the first step of a new run.

        `batches` are the micro-batches of the first `num_init_batches` batches of the training order on this rank;
        training uses them again.
        """

    def after_step(self, statistics: Statistics, step: int) -> None:
        """Called after an accepted step, with the statistics of the global batch, which are the same on every rank."""

    # --- validation ---------------------------------------------------------------------------------------

    @abstractmethod
    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        """The statistics of one validation batch: sums and rows, which are added over batches and ranks."""

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """The statistics of media that are generated from a batch of the split `validation` or of `extra_splits`.

        Too slow for validation during training: only `quintet eval` calls it. Its names must differ from those of
        `measure`."""
        return Statistics()

    @abstractmethod
    def summarise(self, statistics: Statistics) -> dict[str, float]:
        """The metrics, by their names in `eval.json`, from the statistics of all validation batches."""

    @abstractmethod
    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """Sample artifacts: reconstructions of a validation batch, or media generated from its captions."""
