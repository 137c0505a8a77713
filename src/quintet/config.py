"""Owns the schema of a run: its sections, YAML, `key=value` overrides and the messages for wrong keys.

A `RunConfig` is the whole input of a run. It round-trips without loss through `config.yaml`, and a resumed run is
built from it. Families subclass the sections they extend, in a `config.py` that imports no torch, so that help
is quick.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from quintet.errors import UsageError

Tree = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e4 and 3e-4 for text; everyone who writes them means numbers.

    No aliases: a few lines of them stand for more values than any memory holds. No integers of more than 64 bits.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read; write the value out")
        return super().compose_node(parent, index)

    def construct_integer(self, node: Any) -> int:
        text = str(self.construct_scalar(node))
        value = self.construct_yaml_int(node) if len(text) <= _LONGEST_INTEGER else 2**64
        if abs(value) >= 2**64:
            raise yaml.YAMLError(f"{_short(text)} is too large a number")
        return value


_LONGEST_INTEGER = 100
"""Characters: enough for 64 bits in base 2, and too few to keep the reader busy."""
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""What PyYAML raises for texts that are not YAML; tags on values they do not fit let its own errors through."""


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would take for numbers."""

    def analyze_scalar(self, scalar: str) -> Any:
        analysis = super().analyze_scalar(scalar)
        if "\x85" in scalar:  # PyYAML writes it raw and reads it as a line break
            analysis.allow_single_quoted = analysis.allow_flow_plain = analysis.allow_block_plain = False
        return analysis


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+$"), list("+-.0123456789")
    )


RESUMABLE = (
    *("train.steps", "train.minutes", "train.accumulate", "train.max_bad_steps", "train.max_rollbacks"),
    *("data.path", "data.validation_path", "data.workers", "data.cache", "data.memory_megabytes"),
    *("log.", "eval.", "sample.", "checkpoint.", "engine."),
)
"""What a resumed run may change; see docs/decisions/0003-resumable-keys.md."""


class Section(BaseModel):
    """A group of keys. Unknown keys are refused; values do not change after they were checked."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )


class DataConfig(Section):
    path: str | None = Field(
        None,
        description="Folder of media or of shards, or an address of shards; none when Python handed over a data set.",
    )
    validation_path: str | None = Field(None, description="A folder of its own for validation, instead of a split.")
    validation_fraction: float = Field(
        0.05, ge=0, lt=1, description="Share split off for validation; 0 validates on the training items."
    )
    validation_group: str | None = Field(
        None, description="Regular expression; files with the same first group stay on one side of the split."
    )
    split_seed: int = Field(42, ge=0, description="Seed of the validation split.")
    shuffle_shards: int | None = Field(
        None, ge=1, description="Shuffle so many shards at a time, for data that is copied on the way; none: all items."
    )
    cache: str | None = Field(
        None, description="Folder of caches (codes, indexes and copies of shards); none: the user's own cache folder."
    )
    workers: int = Field(
        2, ge=0, description="Processes that read data beside the training; 0 reads in the training process."
    )


class PictureDataConfig(DataConfig):
    """The data of recipes that read pictures."""

    flip: bool = Field(True, description="Mirror half of the training pictures.")
    random_crop: bool = Field(False, description="Crop training pictures at random places instead of the centre.")
    truncated: Literal["skip", "use"] = Field("skip", description="What to do with files that end too early.")
    memory_megabytes: int = Field(512, ge=0, description="Decoded pictures each process keeps; 0: none.")


class MeshDataConfig(DataConfig):
    """The data of recipes that read meshes."""

    max_faces: int = Field(800, gt=0, description="Faces of the largest mesh that is used.")
    decimate: bool = Field(False, description="Reduce meshes of more faces instead of leaving them out.")
    augment: bool = Field(True, description="Stretch (0.75 to 1.25) and shift training meshes along each axis.")
    memory_megabytes: int = Field(512, ge=0, description="Meshes each process keeps once read; 0: none.")


class SoundDataConfig(DataConfig):
    """The data of recipes that read sound; outside training clips come whole."""

    seconds: float = Field(2.0, gt=0, description="Length of a window; what is shorter is taken whole.")
    loudness: float | None = Field(
        None, ge=-60, le=0, description="Bring every window to this loudness in LUFS (-23, say); none: as it is."
    )
    memory_megabytes: int = Field(512, ge=0, description="Decoded clips each process keeps; 0: none.")


class VideoDataConfig(DataConfig):
    """The data of recipes that read video."""

    frames: int = Field(17, gt=0, description="Frames of a clip; of a file that has fewer all are taken.")
    stride: int = Field(1, gt=0, description="Every which frame of a file is taken.")
    fps: float | None = Field(
        None, gt=0, description="Frames a second by the time stamps of a file, instead of every `data.stride`-th."
    )
    flip: bool = Field(False, description="Mirror half of the training clips; not for captions that say left or right.")
    random_crop: bool = Field(False, description="Crop training clips at random places instead of the centre.")
    memory_megabytes: int = Field(512, ge=0, description="Decoded clips each process keeps; 0: none.")

    @model_validator(mode="after")
    def _one_pace(self) -> VideoDataConfig:
        if self.fps is not None and self.stride != 1:
            raise ValueError(f"data.fps={self.fps:g} and data.stride={self.stride} contradict each other; set one")
        return self


class AudioDataConfig(SoundDataConfig):
    """The data of recipes to which a long clip is several windows."""

    stride: float = Field(
        1.0, gt=0, description="Seconds from one window of a long clip to the next, where clips are validated whole."
    )
    max_windows: int = Field(16, gt=0, description="Windows of one validation clip; of longer ones evenly fewer.")


class TrainConfig(Section):
    steps: int = Field(10_000, gt=0, description="Optimizer steps of the whole run.")
    epochs: float | None = Field(
        None, gt=0, description="Length in passes over the data; decides `train.steps` at the start."
    )
    minutes: float | None = Field(
        None, gt=0, description="Time limit of this process: saves and stops, to be resumed at will."
    )
    batch_size: int = Field(16, gt=0, description="Items of one optimizer step, over all processes and micro-batches.")
    accumulate: int = Field(1, gt=0, description="Micro-batches a step is cut into; more of them need less memory.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of weights, order and every random choice.")
    max_bad_steps: int = Field(10, gt=0, description="Non-finite steps in a row after which the run stops.")
    max_rollbacks: int = Field(
        0, ge=0, description="Times the run goes back to its last good checkpoint, and on with other items, instead."
    )


Share = Annotated[float, Field(ge=0, lt=1)]
Betas = tuple[Share, Share]


class OptimizerConfig(Section):
    name: Literal["adamw", "adam", "lion", "muon"] = Field(
        "adamw", description="Optimizer; `adam` couples the decay with the gradient; `muon` is AdamW outside of blocks."
    )
    lr: float = Field(3e-4, gt=0, description="Peak learning rate.")
    matrix_lr: float = Field(0.02, gt=0, description="Peak rate of the matrices inside of blocks (muon).")
    betas: Betas = Field((0.9, 0.99), description="Decay rates of the moments.")
    eps: float = Field(1e-8, gt=0, description="Term that keeps the division finite (Adam, AdamW).")
    weight_decay: float = Field(0.0, ge=0, description="Decay of matrices and kernels; vectors are never decayed.")
    clip: float | None = Field(None, gt=0, description="Largest norm of the phase's whole gradient.")


class PhaseOptimConfig(Section):
    """Another phase's optimizer; what is not given is as in `optim`."""

    lr: float | None = Field(None, gt=0, description="Peak learning rate of this phase; none: `optim.lr`.")
    betas: Betas | None = Field(None, description="Decay rates of the moments; none: `optim.betas`.")
    weight_decay: float | None = Field(None, ge=0, description="Weight decay; none: `optim.weight_decay`.")
    clip: float | None = Field(None, gt=0, description="Largest norm of this phase's gradient; none: `optim.clip`.")


class OptimConfig(OptimizerConfig):
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up; the peak is reached at this step.")
    initial_lr: float = Field(0.0, ge=0, description="Rate the warm-up sets out from.")
    schedule: Literal["constant", "cosine", "linear"] = Field(
        "cosine", description="Course of the rate after the warm-up."
    )
    final_lr: float = Field(0.0, ge=0, description="Rate at the horizon and after it.")
    horizon: int | None = Field(
        None, gt=0, description="Step at which the schedule ends; fixed to `train.steps` when the run starts."
    )

    def for_phase(self, override: PhaseOptimConfig | None = None) -> OptimizerConfig:
        """The optimizer of one phase: the common keys, changed by the phase's own."""
        values = {name: getattr(self, name) for name in OptimizerConfig.model_fields}
        if override is not None:
            values.update({name: value for name, value in override if value is not None})
        return OptimizerConfig(**values)


class EMAConfig(Section):
    enabled: bool = Field(True, description="Keep a moving average of the weights; validation and samples use it.")
    decay: float = Field(0.999, gt=0, lt=1, description="Decay of the average, reached after a short ramp.")
    start: int = Field(0, ge=0, description="Step before which the average is a plain copy.")
    every: int = Field(1, gt=0, description="Steps between two updates.")


class EvalConfig(Section):
    every: int = Field(500, gt=0, description="Steps between two validations.")
    batches: int | None = Field(
        8, gt=0, description="Validation batches while training; none: all. `quintet eval` takes all."
    )
    batch_size: int | None = Field(
        None, gt=0, description="Items of a validation batch, over all processes; none: a micro-batch's."
    )
    live: bool = Field(True, description="Validate the live weights beside the average.")
    generated: int = Field(
        500, ge=0, description="Validation items from which `quintet eval` has a generator make something to judge."
    )


class SampleConfig(Section):
    every: int = Field(500, gt=0, description="Steps between two sets of samples.")
    num: int = Field(16, gt=0, description="Items shown in each set.")


class CheckpointConfig(Section):
    every: int = Field(1000, gt=0, description="Steps between two checkpoints; the last step is always saved.")
    keep: int = Field(3, gt=0, description="Newest checkpoints kept beside the best one.")


class LogConfig(Section):
    every: int = Field(20, gt=0, description="Steps between two rows of metrics.")
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        ("tensorboard",), description="Trackers beside metrics.jsonl."
    )
    project: str = Field("quintet", description="Project name for W&B and trackio.")
    name: str | None = Field(None, description="Run name for W&B and trackio; none: the folder's name.")


class EngineConfig(Section):
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="Where to compute.")
    precision: Literal["fp32", "bf16", "fp64"] = Field(
        "fp32", description="bf16: autocast of the forward pass; weights stay fp32."
    )
    compile: bool = Field(False, description="torch.compile every module.")
    channels_last: bool = Field(True, description="Channels-last memory for convolution kernels.")
    deterministic: bool = Field(False, description="Deterministic algorithms on CUDA too; on CPU they always are.")
    recompute: bool = Field(
        False, description="Activation checkpointing: recompute blocks in the backward pass to save memory."
    )
    threads: int | None = Field(None, gt=0, description="CPU threads of a process; none: as torch finds them.")
    processes: int | None = Field(None, gt=0, description="Refuse to start in a world of any other size.")
    timeout_seconds: int = Field(600, gt=0, description="How long a process waits for the others before it fails.")
    shard: Literal["none", "full"] = Field(
        "none", description="full: each process holds a part of weights, averages and optimizer state (FSDP2)."
    )
    bucket_megabytes: int = Field(25, gt=0, description="Size of DDP's gradient buckets.")


class RunConfig(Section):
    """Every value of a run. Families subclass it and narrow `recipe`, `data`, `model` and `optim`."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named sets of keys, dotted."""
    LINKS: ClassVar[tuple[str, ...]] = ()
    """Keys that name another trained model which this one stands on; a run keeps a copy of each in its folder. Beside
    each stands a key NAME_hash, filled in when the run starts: later the weights must still be those."""
    TRANSFORMERS: ClassVar[tuple[str, ...]] = ()
    """Types of models, as `transformers` calls them, that the recipe opens as its own, from the folders it writes."""

    recipe: str = Field(description="What is trained.")
    preset: str | None = Field(None, description="The preset this configuration started from.")
    init: str | None = Field(None, description="A run or exported folder whose weights this run starts from.")
    data: DataConfig = Field(default_factory=DataConfig, description="The files.")
    model: Section = Field(default_factory=Section, description="The model.")
    train: TrainConfig = Field(default_factory=TrainConfig, description="Length and batches.")
    optim: OptimConfig = Field(default_factory=OptimConfig, description="Optimizer and schedule.")
    ema: EMAConfig = Field(default_factory=EMAConfig, description="Moving average of the weights.")
    eval: EvalConfig = Field(default_factory=EvalConfig, description="Validation.")
    sample: SampleConfig = Field(default_factory=SampleConfig, description="Samples while training.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="Saving.")
    log: LogConfig = Field(default_factory=LogConfig, description="Logging.")
    engine: EngineConfig = Field(default_factory=EngineConfig, description="Devices and precision.")

    @classmethod
    def __pydantic_init_subclass__(cls, **keywords: Any) -> None:
        missing = {key for name in cls.LINKS for key in (name, f"{name}_hash")} - cls.model_fields.keys()
        if missing:
            raise TypeError(f"{cls.__name__} has LINKS={cls.LINKS}, so it needs the keys {', '.join(sorted(missing))}")

    @model_validator(mode="after")
    def _batches_divide(self) -> RunConfig:
        if self.train.batch_size % self.train.accumulate:
            raise ValueError(
                f"train.batch_size={self.train.batch_size} is not divisible by train.accumulate={self.train.accumulate}"
            )
        return self

    def changed(self, overrides: Mapping[str, Any]) -> Self:
        """The same configuration with dotted keys replaced, checked anew."""
        tree = self.model_dump(mode="json")
        merge_into(tree, expand(overrides))
        return validate(type(self), tree)

    def adopt(self, whose: str, found: Mapping[str, Any]) -> Self:
        """The same with keys that follow from something else, which what was asked for must not contradict."""
        for key, theirs in found.items():
            own: Any = self
            for name in key.split("."):
                own = getattr(own, name)
            if own is not None and own != theirs:
                raise UsageError(f"{key}={own}, but {whose} has {theirs}")
        return self.changed({key: list(value) if isinstance(value, tuple) else value for key, value in found.items()})

    def to_yaml(self) -> str:
        return yaml.dump(self.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


_LARGEST_FILE = 2**20
"""Bytes of a configuration; all keys with comments take a hundredth of it."""
_DEEPEST_KEY = 20
_LONGEST_VALUE = 200
"""Characters of a wrong value or key that a message repeats."""

ConfigT = TypeVar("ConfigT", bound=RunConfig)
SectionT = TypeVar("SectionT", bound=Section)


# --- building a configuration -----------------------------------------------------------------------------


def build(
    schema: type[ConfigT],
    *,
    preset: str | None = None,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Defaults, then the preset, then the file, then the overrides: the later wins."""
    tree: Tree = {}
    if preset is not None:
        if preset not in schema.PRESETS:
            raise UsageError(f"unknown preset '{preset}'; known: {', '.join(schema.PRESETS)}")
        merge_into(tree, expand(schema.PRESETS[preset]))
        tree["preset"] = preset
    if file is not None:
        merge_into(tree, read_yaml(file))
    merge_into(tree, expand(overrides or {}))
    return validate(schema, tree)


def validate(schema: type[SectionT], tree: Tree) -> SectionT:
    """Check a tree of values against a schema; a failure is one sentence that names the key and the fix."""
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        raise UsageError("; ".join(_explain(schema, detail) for detail in error.errors())) from None


def parse_overrides(arguments: Sequence[str]) -> Tree:
    """`["train.steps=100", …]` to dotted keys and typed values, in the notation of YAML."""
    result: Tree = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{_short(argument)} is not of the form key=value (for example train.steps=1000)")
        result[key.strip()] = parse_value(text, key.strip())
    return result


def parse_value(text: str, key: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except _UNREADABLE:
        raise UsageError(f"{_plain(key)}: {_short(text)} is not a value YAML can read; put it in quotes") from None


def read_yaml(path: Path) -> Tree:
    try:
        tree = yaml.load(_read_text(path), _Loader)
        if not isinstance(tree, dict):
            raise UsageError(f"{path} does not hold a mapping of keys to values")
        # Both nested sections and dotted keys are welcome.
        return expand(tree)
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from None
    except _UNREADABLE as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path} is not YAML: {_plain(first)}") from None


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise UsageError(f"{path} is no configuration: it is larger than {_LARGEST_FILE // 2**20} MB")
    return content.decode("utf-8")


def expand(flat: Mapping[Any, Any]) -> Tree:
    """Dotted keys to nested sections; nested sections pass through."""
    tree: Tree = {}
    for key, value in flat.items():
        nested = expand(value) if isinstance(value, Mapping) else value
        parts = str(key).split(".")
        if len(parts) > _DEEPEST_KEY:
            raise UsageError(unknown_key(str(key), []))
        for part in reversed(parts):
            nested = {part: nested}
        merge_into(tree, nested)
    return tree


def merge_into(tree: Tree, other: Mapping[str, Any]) -> None:
    """Lay `other` over `tree` in place, section by section."""
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            merge_into(tree[key], value)
        else:
            tree[key] = dict(value) if isinstance(value, Mapping) else value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Nested sections to dotted keys."""
    flat: Tree = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def data_path(place: str | os.PathLike[str]) -> str:
    """A folder of data as a run keeps it, wherever it is resumed from; an address stays as it is."""
    return str(place) if "://" in str(place) else str(Path(place).resolve())


def differences(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, each with the old and the new value."""
    before, after = (flatten(config.model_dump(mode="json")) for config in (old, new))
    keys = [*before, *(key for key in after if key not in before)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def refuse_changes(old: RunConfig, new: RunConfig, allowed: Iterable[str] = RESUMABLE) -> None:
    """A resumed run keeps its mathematics: anything but the allowed keys is an error with the difference."""
    prefixes = tuple(allowed)
    refused = {key: pair for key, pair in differences(old, new).items() if not key.startswith(prefixes)}
    if refused:
        listed = "; ".join(f"{key}: {before!r} -> {after!r}" for key, (before, after) in refused.items())
        raise UsageError(
            f"a resumed run cannot change {listed}; start a new run from these weights with "
            "`quintet train … --init RUN`, or bend this one with `quintet resume RUN … --force`"
        )


# --- telling what there is --------------------------------------------------------------------------------


def keys(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a schema."""
    for name, field in schema.model_fields.items():
        section = _section_of(field.annotation)
        if section is not None:
            yield from keys(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def describe(config: RunConfig) -> str:
    """The commented YAML of all keys: meaning, choices and value."""
    return "\n".join(_describe(config, depth=0)) + "\n"


def _describe(section: BaseModel, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:  # {field.description or type(value).__doc__}"
            yield from _describe(value, depth + 1)
            continue
        plain = section.model_dump(mode="json", include={name})[name]
        text = yaml.dump(plain, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=math.inf)
        notes = " | ".join(part for part in (field.description, _choices(field.annotation)) if part)
        yield f"{indent}{name}: {text.removesuffix('...' + chr(10)).rstrip(chr(10))}" + (
            f"  # {notes}" if notes else ""
        )


def _choices(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    nested = [_choices(argument) for argument in get_args(annotation)]
    return next((choice for choice in nested if choice), "")


def _section_of(annotation: Any) -> type[BaseModel] | None:
    candidates = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for candidate in candidates:
        if candidate is not NoneType and isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _explain(schema: type[BaseModel], detail: Any) -> str:
    key = _key_of(schema, detail["loc"])
    if detail["type"] == "extra_forbidden":
        # A misspelt section is reported by the key the person wrote inside it.
        inside = detail["input"]
        while isinstance(inside, Mapping) and inside and key.count(".") < 5:
            name, inside = next(iter(inside.items()))
            key = f"{key}.{name}"
        return unknown_key(key, list(keys(schema)))
    message = str(detail["msg"]).removeprefix("Value error, ")
    whole_section = isinstance(detail["input"], Mapping)
    if not key or (whole_section and detail["type"] == "value_error"):
        return message  # about several keys, which it names
    got = "" if whole_section else f" (got {_short(detail['input'])})"
    return f"{_plain(key)}: {message[0].lower()}{message[1:]}{got}"


def _short(value: Any) -> str:
    """A value as it may stand in a sentence, whoever wrote it."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes out
        text = "a number too long to show"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _plain(text: str) -> str:
    """The same for a text that stands without quotes."""
    return _short(text) if len(text) > _LONGEST_VALUE or not text.isprintable() else text


def _key_of(schema: type[BaseModel], location: Sequence[int | str]) -> str:
    """The dotted key an error is about, without the parts that pydantic adds for unions and places in a list."""
    parts: list[str] = []
    section: type[BaseModel] | None = schema
    for part in location:
        parts.append(str(part))
        if section is None or part not in section.model_fields:
            break
        section = _section_of(section.model_fields[str(part)].annotation)
        if section is None:
            break
    return ".".join(parts)


def unknown_key(key: str, known: Sequence[str]) -> str:
    """The message for a key that does not exist, with the nearest that does."""
    key = key if len(key) <= _LONGEST_VALUE else f"{key[: _LONGEST_VALUE - 1]}…"  # comparing takes time
    by_last_part = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    near = [by_last_part[key]] if key in by_last_part else difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    near = near or [by_last_part[part] for part in difflib.get_close_matches(key.rsplit(".", 1)[-1], by_last_part, n=1)]
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"unknown key {_short(key)}{hint} (`quintet config RECIPE` lists all keys)"
