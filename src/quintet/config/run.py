"""`RunConfig`: the full configuration of a run.

It round-trips without loss through `config.yaml`, and a resumed run is built from it. Families subclass the sections
they extend, in a `config.py` that imports no torch, so that help is quick.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field, model_validator

from quintet.config.data import DataConfig
from quintet.config.options import GenerateOptions
from quintet.config.section import Section, migrated, validate
from quintet.config.sections import (
    CheckpointConfig,
    EMAConfig,
    EngineConfig,
    EvalConfig,
    LogConfig,
    OptimConfig,
    SampleConfig,
    TrainConfig,
)
from quintet.config.tree import Tree, expand, flatten, merge_into, read_yaml, to_yaml
from quintet.errors import UsageError

RESUMABLE = (
    *("train.steps", "train.minutes", "train.grad_accum_steps", "train.max_nonfinite_steps", "train.max_rollbacks"),
    "loss.logit_chunk",
    "train.patience",
    *("data.path", "data.validation_path", "data.num_workers", "data.cache_dir", "data.memory_megabytes"),
    *("log.", "eval.", "sample.", "checkpoint.", "engine."),
)
"""Keys that may change when a run is resumed; see docs/decisions/0003-resumable-keys.md."""


class RunConfig(Section):
    """The full configuration of a run. Families subclass it and narrow `recipe`, `data`, `model` and `optim`."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Presets: dotted keys with their values, by name."""
    FROZEN_KEYS: ClassVar[tuple[str, ...]] = ()
    """Keys that name a frozen model which this one uses, such as a tokenizer. A run saves a copy of each in its folder.
    Each has a second key NAME_hash, set when the run starts; weights with another hash are refused later."""
    CONDITIONS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Values of `--condition` that need no trained model, with the keys that each stands for."""
    RECORDED: ClassVar[tuple[str, ...]] = ()
    """Keys of `model` that a run records from its data; `--init` does not take them from the other run."""
    TRANSFORMERS: ClassVar[tuple[str, ...]] = ()
    """Model types of `transformers` that the pipeline of this recipe can load from a folder."""

    OPTIONS: ClassVar[type[GenerateOptions] | None] = None
    """For generators: the options of the pipeline, besides the prompts."""

    recipe: str = Field(description="Name of the recipe.")
    preset: str | None = Field(None, description="Preset that this configuration is based on; null for none.")
    init: str | None = Field(
        None,
        description="Run, exported folder, `starter:NAME` or `hub:USER/NAME` whose weights this run starts from; null "
        "starts from random weights.",
    )
    data: DataConfig = Field(default_factory=DataConfig, description="Data.")
    model: Section = Field(default_factory=Section, description="Model.")
    train: TrainConfig = Field(default_factory=TrainConfig, description="Training length and batch size.")
    optim: OptimConfig = Field(default_factory=OptimConfig, description="Optimizer and learning rate schedule.")
    ema: EMAConfig = Field(default_factory=EMAConfig, description="Exponential moving average of the weights.")
    eval: EvalConfig = Field(default_factory=EvalConfig, description="Validation.")
    sample: SampleConfig = Field(default_factory=SampleConfig, description="Samples during training.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="Checkpoints.")
    log: LogConfig = Field(default_factory=LogConfig, description="Logging.")
    engine: EngineConfig = Field(
        default_factory=EngineConfig, description="Device, precision and distributed training."
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **keywords: Any) -> None:
        missing = {key for name in cls.FROZEN_KEYS for key in (name, f"{name}_hash")} - cls.model_fields.keys()
        if missing:
            raise TypeError(
                f"{cls.__name__} has FROZEN_KEYS={cls.FROZEN_KEYS}, so it needs the keys {', '.join(sorted(missing))}"
            )

    @model_validator(mode="after")
    def _check_batch_size(self) -> RunConfig:
        if self.train.batch_size % self.train.micro_batches:
            raise ValueError(
                f"train.batch_size={self.train.batch_size} is not divisible by "
                f"train.grad_accum_steps={self.train.grad_accum_steps}"
            )
        return self

    def unreached_keys(self) -> dict[str, str]:
        """Keys that name a step after the end of the run, each with what therefore never happens."""
        steps, ema = self.train.steps, self.ema
        loss = getattr(self, "loss", None)
        found = (
            {f"loss.{key}": text for key, text in loss.unreached(steps).items()} if isinstance(loss, Section) else {}
        )
        if self.optim.warmup_steps >= steps:
            found["optim.warmup_steps"] = "the learning rate never reaches optim.lr"
        if ema.enabled and ema.start >= steps:
            found["ema.start"] = "the weights are never averaged"
        elif ema.enabled and ema.every > 1 and ema.start + ema.every >= steps:
            found["ema.every"] = "the averaged weights are those of one early step"
        return found

    def changed(self, overrides: Mapping[str, Any]) -> Self:
        """A copy with some dotted keys replaced, validated again."""
        tree = self.model_dump(mode="json")
        merge_into(tree, expand(overrides))
        return validate(type(self), tree)

    def adopt(self, owner: str, values: Mapping[str, Any]) -> Self:
        """A copy with keys that are determined by `owner`, such as a tokenizer; keys that contradict it are refused."""
        for key, expected in values.items():
            own: Any = self
            for name in key.split("."):
                own = getattr(own, name)
            if own is not None and own != expected:
                raise UsageError(f"{key}={own}, but {owner} has {expected}")
        return self.changed({key: list(value) if isinstance(value, tuple) else value for key, value in values.items()})

    def to_yaml(self) -> str:
        return to_yaml(self.model_dump(mode="json"), sort_keys=False)


ConfigT = TypeVar("ConfigT", bound=RunConfig)


def build(
    schema: type[ConfigT],
    *,
    base: Mapping[str, Any] | None = None,
    preset: str | None = None,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Merge defaults, the tree `base`, the preset, the file and the overrides, in this order; later values win."""
    tree: Tree = {}
    merge_into(tree, base or {})
    if preset is not None:
        if preset not in schema.PRESETS:
            raise UsageError(f"unknown preset '{preset}'; known: {', '.join(schema.PRESETS)}")
        merge_into(tree, expand(schema.PRESETS[preset]))
        tree["preset"] = preset
    if file is not None:
        merge_into(tree, migrated(schema, read_yaml(file)))
    merge_into(tree, expand(overrides or {}))
    return validate(schema, tree)


def differences(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, each with the old and the new value."""
    before, after = (flatten(config.model_dump(mode="json")) for config in (old, new))
    keys = [*before, *(key for key in after if key not in before)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def refuse_changes(old: RunConfig, new: RunConfig, allowed: Iterable[str] = RESUMABLE) -> None:
    """Raise `UsageError` with the keys that differ and that a resumed run may not change (all but `allowed`)."""
    prefixes = tuple(allowed)
    refused = {key: pair for key, pair in differences(old, new).items() if not key.startswith(prefixes)}
    if refused:
        listed = "; ".join(f"{key}: {before!r} -> {after!r}" for key, (before, after) in refused.items())
        raise UsageError(
            f"a resumed run cannot change {listed}; start a new run from these weights with "
            "`quintet train … --init RUN`, or override with `quintet resume RUN … --force` (the run is then no longer "
            "reproducible from its configuration)"
        )


def describe(config: RunConfig) -> str:
    """YAML of all keys, each with its value and a comment: description and choices."""
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
        text = to_yaml(plain, default_flow_style=True, width=math.inf)
        notes = " | ".join(part for part in (field.description, _choices(field.annotation)) if part)
        yield f"{indent}{name}: {text.removesuffix('...' + chr(10)).rstrip(chr(10))}" + (
            f"  # {notes}" if notes else ""
        )


def _choices(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    nested = [_choices(argument) for argument in get_args(annotation)]
    return next((choice for choice in nested if choice), "")
