"""`Pipeline`: a trained model that is ready to use, and its kinds: `Tokenizer`, `Generator`, `Embedder`.

    pipeline = Pipeline.from_pretrained("runs/muse")       # or MusePipeline, which refuses other families
    images = pipeline(["a red circle"], num=4, seed=0)

This package and the packages it uses never import `quintet.training`. A generator uses other pipelines, such as its
tokenizer; they are in `frozen`, by the configuration key that names them.
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
from quintet.common.batch import Batch, Collate
from quintet.common.batch import collate as collate_equal
from quintet.common.device import Device, numerics_of
from quintet.common.inference import inference_mode
from quintet.common.pixels import report_range
from quintet.common.precision import autocast_dtype, choose_precision
from quintet.common.weights import pretrained
from quintet.common.weights.checkpoint import Contents, write_folder
from quintet.common.weights.loading import rounded, unchanged, weights_digest
from quintet.config import RunConfig
from quintet.data.splits import Splits
from quintet.data.tokenized import TokenEncoder
from quintet.errors import UsageError

ConfigT = TypeVar("ConfigT", bound=RunConfig)
Frozen = Mapping[str, "Pipeline[Any]"]
"""Frozen pipelines that another pipeline uses, by the configuration key that names them."""
PipelineLike: TypeAlias = "str | Path | Pipeline[Any]"
"""A run, an exported folder, or a loaded pipeline."""


@dataclass(frozen=True)
class Origin:
    """The source of a pipeline's weights."""

    folder: Path
    step: int | None = None
    builtin: bool = False
    """Whether this is a built-in model; then `folder` is its name and does not exist on disk."""
    pinned: str | None = None
    """The reference with its hash, if it was opened by a name: on the hub, or a starter model."""

    @property
    def is_export(self) -> bool:
        return (self.folder / pretrained.CONFIG).is_file()

    @property
    def reference(self) -> str:
        """A reference that `from_pretrained` resolves to the same weights."""
        if self.pinned is not None:
            return self.pinned
        if self.builtin:
            return str(self.folder)
        return str(self.folder.resolve()) + ("" if self.is_export else f"@{self.step}")


class Pipeline(ABC, Generic[ConfigT]):
    """Trained modules with their configuration and the frozen pipelines that they use."""

    recipe: ClassVar[str]
    """The name of the recipe that trains it."""
    exported: ClassVar[str]
    """The module that `quintet export` writes as `model.safetensors`."""
    model_class: ClassVar[type[nn.Module]]
    """The class of that module, which is built from `config.model` unless `build_modules` is overridden."""
    auxiliary_modules: ClassVar[tuple[str, ...]] = ()
    """Optional modules that improve the results, such as a critic; present if the configuration enables them."""

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
        """How the user referred to it."""

    @classmethod
    def build_modules(cls, config: ConfigT, frozen: Frozen) -> dict[str, nn.Module]:
        """Its modules with random weights, which loading replaces."""
        return {cls.exported: cls.model_class(config.model)}

    @classmethod
    def fit(cls, config: ConfigT, frozen: Frozen) -> ConfigT:
        """The configuration with the keys that frozen pipelines determine; `UsageError` if a key contradicts them."""
        for name, pipeline in frozen.items():
            config = config.adopt(f"the {name} {pipeline.reference}", {f"{name}_hash": pipeline.digest})
        return config

    @classmethod
    def from_pretrained(cls, reference: str | Path, *, device: str | None = None) -> Self:
        """Load a run, RUN@step, RUN@best, an exported folder, a built-in model by its name, `starter:NAME` or
        `hub:USER/NAME`; EMA weights."""
        from quintet.pipelines.loading import open_pipeline

        pipeline = open_pipeline(reference)
        if not isinstance(pipeline, cls):
            raise UsageError(f"{reference} is a model of recipe '{pipeline.recipe}', not a {cls.__name__}")
        if device is not None:
            pipeline.config = pipeline.config.changed({"engine.device": device})
        pipeline.move_to_device()
        return pipeline

    @classmethod
    def from_transformers(cls, folder: Path) -> Pipeline[Any]:
        """Load a model saved by `transformers`, of one of the types in `TRANSFORMERS` of the configuration class."""
        raise UsageError(f"recipe '{cls.recipe}' cannot load models of transformers")

    # --- device and precision -------------------------------------------------------------------------------

    def move_to_device(self) -> None:
        """Move all modules to `engine.device`, its own modules with the precision of the run."""
        device = Device(self.config.engine)
        device.to_device(self.modules)
        for pipeline in self.frozen.values():
            pipeline.to(device.device)

    def to(self, device: torch.device) -> None:
        """Move all modules, including frozen pipelines, to a device; dtypes are unchanged."""
        for module in self.modules.values():
            module.to(device)
        for pipeline in self.frozen.values():
            pipeline.to(device)

    @property
    def device(self) -> torch.device:
        # A model may have buffers and no parameters.
        tensors: Iterator[Tensor] = chain(self.model.parameters(), self.model.buffers())
        return next(tensors).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights; frozen pipelines stay in float32, whatever precision they were trained in."""
        tensors: Iterator[Tensor] = chain(self.model.parameters(), self.model.buffers())
        return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)

    def media(self, values: Tensor, *, is_bytes: bool = True) -> Tensor:
        """Pixels or audio samples from the user, as input of the model; uint8 0 to 255 becomes float 0 to 1."""
        if values.dtype == torch.uint8 and is_bytes:
            return values.to(self.device, self.dtype) / 255
        if not values.is_floating_point():
            raise UsageError(f"the range of {values.dtype} values is unknown; pass floating-point values")
        if is_bytes:
            report_range(values, "the input", "the tokenizer was trained on 0 to 1 and encodes the others badly")
        return values.to(self.device, self.dtype)

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Eval mode, no gradients, the precision of the run."""
        dtype = autocast_dtype(choose_precision(self.config.engine.precision, self.device.type))
        with inference_mode(self.modules), torch.autocast(self.device.type, dtype, enabled=dtype is not None):
            yield

    # --- modules and weights --------------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        return self.modules[self.exported]

    @cached_property
    def digest(self) -> str:
        """A hash of the weights; models with the same hash encode identically."""
        return weights_digest(self.recipe, self.model)

    def freeze(self) -> Self:
        """Set eval mode and disable gradients, for use inside another model."""
        for module in self.modules.values():
            module.eval().requires_grad_(False)
        return self

    def with_keys(self, changes: Mapping[str, Any]) -> Self:
        """A copy that shares the modules, with other configuration keys, such as `sample.steps`."""
        changed = copy.copy(self)
        changed.config = self.config.changed(changes)
        return changed

    # --- export ---------------------------------------------------------------------------------------------

    def save_pretrained(
        self, folder: str | Path, metrics: Mapping[str, float] | None = None, dtype: torch.dtype | None = None
    ) -> None:
        """Write the EMA weights and everything else that `from_pretrained` needs; frozen pipelines in subfolders.

        `dtype` is that of the stored weights; None: as they are."""
        files.refuse_existing(Path(folder))
        write_folder(Path(folder), self.contents(metrics, dtype))

    def contents(self, metrics: Mapping[str, float] | None = None, dtype: torch.dtype | None = None) -> Contents:
        """The contents of an export, by file name."""
        metadata = {
            "recipe": self.recipe,
            "step": None if self.origin is None else self.origin.step,
            "figures": dict(metrics or {}),
            "run": self.config.model_dump(mode="json"),
        }
        contents = pretrained.export_contents(self.model, metadata)
        for name in self.modules.keys() - {self.exported}:
            contents.tensors[name] = self.modules[name].state_dict()
        if dtype is not None:
            contents.tensors = {name: rounded(tensors, dtype) for name, tensors in contents.tensors.items()}
        for name, pipeline in self.frozen.items():
            inside = pipeline.contents()
            if dtype is not None:  # the configuration has the hash of the frozen weights, which must not change
                inside.tensors = {file: unchanged(tensors, dtype) for file, tensors in inside.tensors.items()}
            for kind in ("tensors", "json", "text"):
                own = getattr(inside, kind)
                getattr(contents, kind).update({f"{name}/{file}": value for file, value in own.items()})
        return contents

    # --- data -----------------------------------------------------------------------------------------------

    @property
    def collate(self) -> Collate:
        """The function that combines items into the fields of a batch; it refers to no module."""
        return collate_equal


class Tokenizer(Pipeline[ConfigT]):
    """Encodes media to codes, and decodes codes to media."""

    @abstractmethod
    def splits(self) -> Splits:
        """The dataset splits of the configuration, preprocessed for encoding."""

    @abstractmethod
    def encode_batch(self, batch: Batch) -> Tensor:
        """Codes of a batch of items, (batch, ...)."""

    @abstractmethod
    def decode_files(self, codes: Tensor, name: str) -> list[Artifact]:
        """Decode a batch of codes (batch, ...) to files whose names start with `name`."""

    def checked_codes(self, codes: Tensor) -> Tensor:
        """Codes from the user, on the device of the model; `UsageError` unless they are codes of this model."""
        if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
            raise UsageError(f"codes are integers, not {str(codes.dtype).removeprefix('torch.')} values")
        if not codes.numel():
            raise UsageError(f"there are no codes in a tensor of shape {tuple(codes.shape)}")
        lowest, highest = int(codes.min()), int(codes.max())
        if lowest < -1 or highest >= self.model.num_codes:
            raise UsageError(
                f"the codes of this model are 0 to {self.model.num_codes - 1}, and -1 for padding, "
                f"not {lowest} to {highest}"
            )
        return codes.to(self.device, torch.int64)

    def token_encoder(self) -> TokenEncoder:
        """The encoder of a token cache; runs in eval mode on the device of the model."""

        def encode(batch: Batch) -> Tensor:
            with inference_mode(self.modules):
                return self.encode_batch(batch.to(self.device, self.dtype))

        return TokenEncoder(self.digest + numerics_of(self.device), self.collate, encode, device=self.device)


class Generator(Pipeline[ConfigT]):
    """Generates media from prompts. The options are arguments of `__call__`, and `OPTIONS` of the configuration."""

    @property
    def unconditional(self) -> bool:
        """Whether it generates without a prompt."""
        return False

    @property
    def prompted(self) -> bool:
        """Whether it generates from a text prompt."""
        return not self.unconditional

    @abstractmethod
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Generate `num` items per prompt; the same seed gives the same items."""

    @abstractmethod
    def files(self, prompts: Sequence[str], options: Any) -> list[Artifact]:
        """The files that `quintet sample` writes; `options` are an instance of `config.OPTIONS`."""


class Embedder(Pipeline[ConfigT]):
    """Embeds media and texts in one vector space."""

    @abstractmethod
    def splits(self) -> Splits:
        """The dataset splits of the configuration."""

    @abstractmethod
    def embed_batch(self, batch: Batch) -> Tensor:
        """One unit vector per item, (batch, dim)."""

    @abstractmethod
    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """One unit vector per text, (texts, dim), in the same space: the closer to an item, the better the match."""


def as_tokenizer(pipeline: Pipeline[Any]) -> Tokenizer[Any]:
    if isinstance(pipeline, Tokenizer):
        return pipeline
    hint = "; use --layer N to encode semantic tokens" if hasattr(pipeline, "audio_features") else ""
    raise UsageError(f"recipe '{pipeline.recipe}' is not a tokenizer{hint}")


def as_generator(pipeline: Pipeline[Any]) -> Generator[Any]:
    if isinstance(pipeline, Generator):
        return pipeline
    raise UsageError(f"recipe '{pipeline.recipe}' is not a generator")


def as_embedder(pipeline: Pipeline[Any]) -> Embedder[Any]:
    if isinstance(pipeline, Embedder):
        return pipeline
    raise UsageError(f"recipe '{pipeline.recipe}' has no embeddings; `quintet recipes` shows which recipes do")
