"""Owns the interface between the loop and a family: `Task`, `Phase`, `Loss`, `Artifact`.

A family supplies named modules, data, a forward pass, phases, and how to measure and show itself. The loop
supplies everything else. Reading this file and `families/vqgan/task.py` is enough to write a new family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from torch import Tensor, nn

from quintet.common import batch as batches
from quintet.common.batch import Batch, Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.config import OptimizerConfig, RunConfig, SampleConfig
from quintet.data.splits import Splits
from quintet.errors import UsageError

if TYPE_CHECKING:
    from quintet.pipelines.audio_features import AudioFeatureExtractor
    from quintet.pipelines.frozen import FrozenModel
    from quintet.training.engine import Engine

Modules = Mapping[str, nn.Module]
"""The recipe's modules by name, ready to be called: wrapped for training, or the averaged ones for validation."""

ConfigT = TypeVar("ConfigT", bound=RunConfig)


@dataclass
class Output:
    """What a forward pass hands to the phases, and what it would like to change once the step is accepted."""

    values: dict[str, Any]
    statistics: Statistics = field(default_factory=Statistics)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


@dataclass
class Loss:
    """What a phase minimises, the parts worth a curve (the loop detaches them), and statistics of its own."""

    value: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=Statistics)


def always(step: int) -> bool:
    return True


@dataclass(frozen=True)
class Phase:
    """One optimizer's share of a step: the modules it trains, its loss, and the steps at which it is active.

    Phases of one step see the same forward pass and the same batch. Their losses must not share a graph: detach
    what another phase trains. All backward passes come before all optimizer steps.
    """

    name: str
    modules: tuple[str, ...]
    loss: Callable[[Modules, Batch, Output, int], Loss]
    optim: OptimizerConfig
    active: Callable[[int], bool] = always


@dataclass(frozen=True)
class Artifact:
    """One thing to look at or listen to: a file name, how to write it, and what is known about it."""

    file: str
    write: Callable[[Path], object]
    about: dict[str, Any] = field(default_factory=dict)
    tensor: Tensor | None = None


@dataclass(frozen=True)
class Request:
    """What a person wants to have generated: `num` of each text. The same seed gives the same result."""

    texts: Sequence[str]
    num: int = 1
    seed: int = 0
    negative: str | None = None
    """What it should not look like."""
    given: Path | None = None
    """A file to change or to go on from."""
    mask: Path | None = None
    """The part of it to make anew."""
    seconds: float | None = None
    """How long it should be; none: as long as the model makes it."""
    frames: int | None = None
    """The same of a video; of scenes the length of each."""
    scenes: Sequence[str] = ()
    """What happens one after another in one video; `texts` then holds all of it as one text."""
    stills: bool = False
    """Pictures, of a model that makes videos."""

    @property
    def wanted(self) -> list[str]:
        """The text of each thing to make."""
        return [text for text in self.texts for _ in range(self.num)]

    def parts(self, size: int) -> Iterator[tuple[list[str], ItemRNG]]:
        """`wanted` in parts of at most so many, each with its random choices, which do not depend on the size."""
        for start in range(0, len(self.wanted), size):
            part = self.wanted[start : start + size]
            yield part, ItemRNG(self.seed, [0] * len(part), range(start, start + len(part)))

    def about(self, settings: SampleConfig, given: str = "given") -> dict[str, Any]:
        """What `samples.jsonl` says of everything that is made; `given` is what the file is called there."""
        own = settings.model_dump(mode="json", exclude=set(SampleConfig.model_fields))
        known = {"negative": self.negative, given: self.given, "mask": self.mask}
        return {
            "seed": self.seed,
            "settings": own,
            **{name: str(value) for name, value in known.items() if value is not None},
        }


@dataclass
class Report:
    """What the backward passes of one step tell the loop."""

    metrics: dict[str, Tensor]
    statistics: Statistics


class Task(ABC, Generic[ConfigT]):
    """What a family supplies. Holds modules and configuration; all else passes through the arguments."""

    name: ClassVar[str]
    best: ClassVar[tuple[str, Literal["max", "min"]]]
    """The metric that chooses the best checkpoint, and which way is better."""
    exported: ClassVar[str]
    """The module that `quintet export` writes: a `Pretrained` model that is of use without the others."""
    exported_beside: ClassVar[tuple[str, ...]] = ()
    """Modules that it is better with, such as a critic; an export holds those that the recipe has."""
    options: ClassVar[tuple[str, ...]] = ()
    """What it understands beside `--text`: of the options of `quintet sample` negative, image and mask, mesh, prompt,
    seconds, prime, scenes, frames, images."""
    find_unused_parameters: ClassVar[bool] = False
    """Whether a step may leave parameters without gradient (heads of levels that were not drawn)."""
    uncompiled: ClassVar[frozenset[str]] = frozenset()
    """Modules that `engine.compile` must leave alone, because a loss differentiates twice through them."""
    shardable: ClassVar[bool] = False
    """Whether its modules can lie in parts over the processes (`engine.shard`): training calls nothing of them but
    `forward`, no loss looks at single weights, and no weight is a single number."""
    minimum_batch: ClassVar[int] = 1
    """The smallest global batch that makes sense (a contrastive loss needs two items)."""

    modules: dict[str, nn.Module]
    """Everything that is trained or saved, by name. Frozen helpers do not belong here."""
    phases: Sequence[Phase]
    links: Mapping[str, FrozenModel]
    """The trained models this one stands on, by their key."""

    def __init__(self, config: ConfigT, **links: FrozenModel) -> None:
        for name, link in links.items():
            config = config.adopt(f"the {name} {link.reference}", {f"{name}_hash": link.digest})
        self.config = config
        self.links = links

    @classmethod
    def from_transformers(cls, folder: Path) -> Task[Any]:
        """Around a model that `transformers` wrote, of one of the types that its configuration class names."""
        raise UsageError(f"recipe {cls.name} opens no models of transformers")

    @property
    def in_use(self) -> tuple[str, ...]:
        """The modules that a model is used with once it is trained."""
        return (self.exported, *(name for name in self.exported_beside if name in self.modules))

    @property
    def unprompted(self) -> bool:
        """Whether it generates without being told what."""
        return False

    @property
    def prompted(self) -> bool:
        """Whether it generates from a text."""
        return type(self).generate is not Task.generate and not self.unprompted

    @property
    def embeds(self) -> bool:
        """Whether it puts media and texts into one space."""
        return type(self).embed is not Task.embed

    @property
    def averaged(self) -> tuple[str, ...]:
        """The modules that get a moving average: those of the first phase, unless the family says otherwise."""
        return self.phases[0].modules

    # --- data ---------------------------------------------------------------------------------------------

    @abstractmethod
    def splits(self) -> Splits:
        """The items to train and validate on, as the configuration names them."""

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        return batches.collate(items)

    def lengths(self, source: Dataset) -> Sequence[int] | None:
        """The items' lengths, where batches should hold items of similar length."""
        return None

    # --- training -----------------------------------------------------------------------------------------

    @abstractmethod
    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        """The one forward pass of a micro-batch. Changes no state; calls trained modules through `modules`."""

    def backward(self, micro_batches: Sequence[Batch], modules: Modules, engine: Engine, step: int) -> Report:
        """Gradients of one step. Contrastive recipes override this for exact large batches; few others should."""
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
        """Of so many steps `initialise` gets the items."""
        return 1

    def initialise(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        """Once, before the first step of a new run: what needs to have seen data, such as a k-means codebook.

        `batches` are the micro-batches of the first `num_init_batches` of the training order on this rank; taking them
        consumes nothing.
        """

    def after_step(self, statistics: Statistics, step: int) -> None:
        """After an accepted step: apply the statistics of the whole global batch, the same on every rank."""

    # --- looking ------------------------------------------------------------------------------------------

    @abstractmethod
    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        """What one validation batch adds to the figures; sums and rows, so that batches and ranks can be added."""

    @abstractmethod
    def summarise(self, statistics: Statistics) -> dict[str, float]:
        """The figures, by their names in `eval.json`, from the statistics of the whole validation."""

    def encode(self, modules: Modules, batch: Batch) -> Tensor:
        """Codes of a batch, items first; for tokenizers."""
        raise UsageError(f"recipe {self.name} is not a tokenizer: it has no codes to encode to")

    def decode(self, modules: Modules, codes: Tensor, name: str) -> list[Artifact]:
        """What a batch of codes stands for, as files named after `name`; for tokenizers."""
        raise UsageError(f"recipe {self.name} is not a tokenizer: it cannot decode codes")

    def embed(self, modules: Modules, batch: Batch) -> Tensor:
        """One vector an item, of length one; for recipes that put media and texts into one space."""
        raise UsageError(f"recipe {self.name} has no embeddings; `quintet recipes` lists those that have")

    def embed_texts(self, modules: Modules, texts: Sequence[str]) -> Tensor:
        """One vector a text, in the same space: the nearer to an item's, the better the text describes it."""
        raise UsageError(f"recipe {self.name} has no embeddings; `quintet recipes` lists those that have")

    def hearing(self, modules: Modules) -> AudioFeatureExtractor:
        """The model as one that hears clips step by step of time; for recipes that make semantic tokens."""
        raise UsageError(f"recipe {self.name} has no layers that hear sound; leave --layer out")

    @abstractmethod
    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """Things to look at: what the model makes of (or from the captions of) a validation batch."""

    def generate(self, modules: Modules, request: Request) -> list[Artifact]:
        """What a person asked for in words; for generators."""
        raise UsageError(f"recipe {self.name} is not a generator: it takes no --text")

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """What generating from a batch adds to the figures: one of the split `validation`, or of `Splits.others`.

        Too slow for validation while training: only `quintet eval` asks for it. Its names must differ from those
        of `measure`."""
        return Statistics()


@contextmanager
def frozen(module: nn.Module) -> Iterator[nn.Module]:
    """The module with its parameters out of the graph: gradients pass through it, none arrive in it.

    For a phase that needs another phase's module. Pass the raw module of `recipe.modules`, not the wrapped one.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield module
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
