"""`Pipeline`: a trained model that is ready to use, and what pipelines can do: tokenize, generate, embed.

    pipeline = Pipeline.from_pretrained("runs/muse")       # or MusePipeline, which takes no other family
    images = pipeline(["a red circle"], num=4, seed=0)

Nothing here or below imports `quintet.training`. A generator builds on other pipelines, such as its tokenizer: they are
`frozen`, by the key that names them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from quintet.common import files
from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Item
from quintet.common.batch import collate as collate_equal
from quintet.common.device import Device
from quintet.common.inference import inference_mode
from quintet.common.weights import pretrained
from quintet.common.weights.checkpoint import Contents, write_folder
from quintet.common.weights.loading import weights_digest
from quintet.config import RunConfig
from quintet.data.splits import Splits
from quintet.data.tokenized import TokenEncoder
from quintet.errors import UsageError

ConfigT = TypeVar("ConfigT", bound=RunConfig)
Frozen = Mapping[str, "Pipeline[Any]"]
"""The pipelines that another one builds on, by the key that names them."""
PipelineLike: TypeAlias = "str | Path | Pipeline[Any]"
"""A run, an exported folder, or a pipeline that is open already."""


@dataclass(frozen=True)
class Origin:
    """Where the weights of a pipeline were read."""

    folder: Path
    step: int | None = None
    builtin: bool = False
    """Whether it is a model without training: then `folder` is its name, and there is no such folder."""

    @property
    def is_export(self) -> bool:
        return (self.folder / pretrained.CONFIG).is_file()

    @property
    def reference(self) -> str:
        """A reference that finds the same weights again."""
        if self.builtin:
            return str(self.folder)
        return str(self.folder.resolve()) + ("" if self.is_export else f"@{self.step}")


class Pipeline(ABC, Generic[ConfigT]):
    """Trained modules with their configuration and the frozen pipelines that they build on."""

    recipe: ClassVar[str]
    """The name of the recipe that trains it."""
    exported: ClassVar[str]
    """The module that `quintet export` writes as `model.safetensors`."""
    model_class: ClassVar[type[nn.Module]]
    """What that module is, made of `config.model`, unless `build_modules` says otherwise."""
    auxiliary_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that it is better with, such as a critic; there where the configuration has them."""

    def __init__(
        self,
        config: ConfigT,
        modules: Mapping[str, nn.Module],
        frozen: Frozen | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.config = config
        used = (self.exported, *self.auxiliary_modules)
        self.modules: dict[str, nn.Module] = {name: modules[name] for name in used if name in modules}
        self.frozen: Frozen = dict(frozen or {})
        self.origin = origin
        self.reference = f"a {type(self.model).__name__} in Python" if origin is None else str(origin.folder)
        """What the person called it."""

    @classmethod
    def build_modules(cls, config: ConfigT, frozen: Frozen) -> dict[str, nn.Module]:
        """Its modules with fresh weights, which loading replaces."""
        return {cls.exported: cls.model_class(config.model)}

    @classmethod
    def fit(cls, config: ConfigT, frozen: Frozen) -> ConfigT:
        """The configuration with the keys that follow from frozen pipelines; `UsageError` where they contradict it."""
        for name, pipeline in frozen.items():
            config = config.adopt(f"the {name} {pipeline.reference}", {f"{name}_hash": pipeline.digest})
        return config

    @classmethod
    def from_pretrained(cls, reference: str | Path, *, device: str | None = None) -> Self:
        """A run, RUN@step, RUN@best, an exported folder, or the name of a built-in model; averaged weights alone."""
        from quintet.pipelines.loading import open_pipeline

        pipeline = open_pipeline(reference)
        if not isinstance(pipeline, cls):
            raise UsageError(f"{reference} is of recipe '{pipeline.recipe}', which is no {cls.__name__}")
        if device is not None:
            pipeline.config = pipeline.config.changed({"engine.device": device})
        pipeline.place()
        return pipeline

    @classmethod
    def from_transformers(cls, folder: Path) -> Pipeline[Any]:
        """Around a model that `transformers` wrote, of one of the types that its configuration class names."""
        raise UsageError(f"recipe {cls.recipe} opens no models of transformers")

    # --- where it computes ----------------------------------------------------------------------------------

    def place(self) -> None:
        """Move everything to the device of `engine.device`, its own modules in the precision of the run."""
        device = Device(self.config.engine)
        device.to_device(self.modules)
        for pipeline in self.frozen.values():
            pipeline.to(device.device)

    def to(self, device: torch.device) -> None:
        """Move everything to a device; the precision stays."""
        for module in self.modules.values():
            module.to(device)
        for pipeline in self.frozen.values():
            pipeline.to(device)

    @property
    def device(self) -> torch.device:
        # A model may have nothing to learn and still have tables.
        tensors: Iterator[Tensor] = chain(self.model.parameters(), self.model.buffers())
        return next(tensors).device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights: what others build on stays in float32, whatever it was trained in."""
        tensors: Iterator[Tensor] = chain(self.model.parameters(), self.model.buffers())
        return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)

    def media(self, values: Tensor, *, is_bytes: bool = True) -> Tensor:
        """Pixels or samples that a person gives, as the model takes them; bytes 0 to 255 become numbers 0 to 1."""
        if values.dtype == torch.uint8 and is_bytes:
            return values.to(self.device, self.dtype) / 255
        if not values.is_floating_point():
            raise UsageError(f"values of type {values.dtype} have no known range; give floating-point numbers")
        return values.to(self.device, self.dtype)

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Eval mode, no gradients, the precision of the run."""
        bf16 = self.config.engine.precision == "bf16"
        with inference_mode(self.modules), torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            yield

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        return self.modules[self.exported]

    @cached_property
    def digest(self) -> str:
        """A hash of the weights: two models with the same one encode alike."""
        return weights_digest(self.recipe, self.model)

    def freeze(self) -> Self:
        """For others to build on: nothing of it is trained."""
        for module in self.modules.values():
            module.eval().requires_grad_(False)
        return self

    def with_keys(self, changes: Mapping[str, Any]) -> Self:
        """The same modules under other keys, such as `sample.steps`."""
        changed = copy.copy(self)
        changed.config = self.config.changed(changes)
        return changed

    # --- export ---------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path, metrics: Mapping[str, float] | None = None) -> None:
        """Write the averaged weights with all that `from_pretrained` needs, frozen pipelines in folders inside."""
        files.refuse_existing(Path(folder))
        write_folder(Path(folder), self.contents(metrics))

    def contents(self, metrics: Mapping[str, float] | None = None) -> Contents:
        """The files of an export."""
        about = {
            "recipe": self.recipe,
            "step": None if self.origin is None else self.origin.step,
            "figures": dict(metrics or {}),
            "run": self.config.model_dump(mode="json"),
        }
        contents = pretrained.export_contents(self.model, about)
        for name in self.modules.keys() - {self.exported}:
            contents.tensors[name] = self.modules[name].state_dict()
        for name, pipeline in self.frozen.items():
            inside = pipeline.contents()
            for kind in ("tensors", "json", "text"):
                own = getattr(inside, kind)
                getattr(contents, kind).update({f"{name}/{file}": value for file, value in own.items()})
        return contents

    # --- data -----------------------------------------------------------------------------------------------

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        """Items of its data as the fields of one batch."""
        return collate_equal(items)


class Tokenizer(Pipeline[ConfigT]):
    """Media to codes and back."""

    @abstractmethod
    def splits(self) -> Splits:
        """The media that the configuration names, as it encodes them."""

    @abstractmethod
    def encode_batch(self, batch: Batch) -> Tensor:
        """Codes of a batch of items, batch first."""

    @abstractmethod
    def decode_files(self, codes: Tensor, name: str) -> list[Artifact]:
        """What a batch of codes stands for, as files named after `name`."""

    def token_encoder(self) -> TokenEncoder:
        """For a token cache: in eval mode, wherever the model is."""

        def encode(batch: Batch) -> Tensor:
            with inference_mode(self.modules):
                return self.encode_batch(batch.to(self.device, self.dtype))

        return TokenEncoder(self.digest, self.collate, encode)


class Generator(Pipeline[ConfigT]):
    """Prompts to media. Each has typed options: those of `__call__`, and `OPTIONS` of its configuration class."""

    @property
    def unconditional(self) -> bool:
        """Whether it generates without any prompt."""
        return False

    @property
    def prompted(self) -> bool:
        """Whether it generates from a text."""
        return not self.unconditional

    @abstractmethod
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Media for each prompt, `num` of each; the same seed gives the same ones."""

    @abstractmethod
    def files(self, prompts: Sequence[str], options: Any) -> list[Artifact]:
        """What `quintet sample` writes for prompts and options of the type that `config.OPTIONS` names."""


class Embedder(Pipeline[ConfigT]):
    """Media and texts to vectors of one space."""

    @abstractmethod
    def splits(self) -> Splits:
        """The media that the configuration names."""

    @abstractmethod
    def embed_batch(self, batch: Batch) -> Tensor:
        """One vector an item, of length one."""

    @abstractmethod
    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """One vector a text, in the same space: the nearer to an item's, the better the text describes it."""


def as_tokenizer(pipeline: Pipeline[Any]) -> Tokenizer[Any]:
    if isinstance(pipeline, Tokenizer):
        return pipeline
    hint = "; its layers make semantic tokens (--layer N)" if hasattr(pipeline, "audio_features") else ""
    raise UsageError(f"recipe {pipeline.recipe} is not a tokenizer: it has no codes to encode to{hint}")


def as_generator(pipeline: Pipeline[Any]) -> Generator[Any]:
    if isinstance(pipeline, Generator):
        return pipeline
    raise UsageError(f"recipe {pipeline.recipe} is not a generator: it takes no --text")


def as_embedder(pipeline: Pipeline[Any]) -> Embedder[Any]:
    if isinstance(pipeline, Embedder):
        return pipeline
    raise UsageError(f"recipe {pipeline.recipe} has no embeddings; `quintet recipes` lists those that have")
