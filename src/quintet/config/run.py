"""`RunConfig`: the whole input of a run.

It round-trips without loss through `config.yaml`, and a resumed run is built from it. Families subclass the sections
they extend, in a `config.py` that imports no torch, so that help is quick.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field, model_validator

from quintet.config.data import DataConfig
from quintet.config.options import GenerateOptions
from quintet.config.section import Section, migrated, validate
from quintet.config.tree import Tree, expand, flatten, merge_into, read_yaml, to_yaml
from quintet.errors import UsageError

RESUMABLE = (
    *("train.steps", "train.minutes", "train.grad_accum_steps", "train.max_nonfinite_steps", "train.max_rollbacks"),
    *("data.path", "data.validation_path", "data.num_workers", "data.cache_dir", "data.memory_megabytes"),
    *("log.", "eval.", "sample.", "checkpoint.", "engine."),
)
"""What a resumed run may change; see docs/decisions/0003-resumable-keys.md."""


class TrainConfig(Section):
    steps: int = Field(10_000, gt=0, description="Optimizer steps of the whole run.")
    epochs: float | None = Field(
        None, gt=0, description="Length in passes over the data; decides `train.steps` at the start."
    )
    minutes: float | None = Field(
        None, gt=0, description="Time limit of this process: saves and stops, to be resumed at will."
    )
    batch_size: int = Field(16, gt=0, description="Items of one optimizer step, over all processes and micro-batches.")
    grad_accum_steps: int = Field(
        1, gt=0, description="Micro-batches a step is cut into; more of them need less memory."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of weights, order and every random choice.")
    max_nonfinite_steps: int = Field(10, gt=0, description="Non-finite steps in a row after which the run stops.")
    max_rollbacks: int = Field(
        0, ge=0, description="Times the run goes back to its last good checkpoint, and on with other items, instead."
    )


Probability = Annotated[float, Field(ge=0, lt=1)]
Betas = tuple[Probability, Probability]


class OptimizerConfig(Section):
    name: Literal["adamw", "adam", "lion", "muon"] = Field(
        "adamw", description="Optimizer; `adam` couples the decay with the gradient; `muon` is AdamW outside of blocks."
    )
    lr: float = Field(3e-4, gt=0, description="Peak learning rate.")
    muon_lr: float = Field(0.02, gt=0, description="Peak rate of the matrices inside of blocks (muon).")
    betas: Betas = Field((0.9, 0.99), description="Decay rates of the moments.")
    eps: float = Field(1e-8, gt=0, description="Term that keeps the division finite (Adam, AdamW).")
    weight_decay: float = Field(0.0, ge=0, description="Decay of matrices and kernels; vectors are never decayed.")
    max_grad_norm: float | None = Field(None, gt=0, description="Largest norm of the phase's whole gradient.")


class PhaseOptimConfig(Section):
    """Another phase's optimizer; what is not given is as in `optim`."""

    lr: float | None = Field(None, gt=0, description="Peak learning rate of this phase; none: `optim.lr`.")
    betas: Betas | None = Field(None, description="Decay rates of the moments; none: `optim.betas`.")
    weight_decay: float | None = Field(None, ge=0, description="Weight decay; none: `optim.weight_decay`.")
    max_grad_norm: float | None = Field(
        None, gt=0, description="Largest norm of this phase's gradient; none: `optim.max_grad_norm`."
    )


class OptimConfig(OptimizerConfig):
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up; the peak is reached at this step.")
    initial_lr: float = Field(0.0, ge=0, description="Rate the warm-up sets out from.")
    schedule: Literal["constant", "cosine", "linear"] = Field(
        "cosine", description="Course of the rate after the warm-up."
    )
    final_lr: float = Field(0.0, ge=0, description="Rate at the horizon and after it.")
    decay_steps: int | None = Field(
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
    num_generated: int = Field(
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
    activation_checkpointing: bool = Field(
        False, description="Activation checkpointing: recompute blocks in the backward pass to save memory."
    )
    threads: int | None = Field(None, gt=0, description="CPU threads of a process; none: as torch finds them.")
    world_size: int | None = Field(None, gt=0, description="Refuse to start in a world of any other size.")
    timeout_seconds: int = Field(600, gt=0, description="How long a process waits for the others before it fails.")
    fsdp: bool = Field(
        False, description="Shard weights, moving average and optimizer state over the processes (FSDP2)."
    )
    bucket_megabytes: int = Field(25, gt=0, description="Size of DDP's gradient buckets.")


class RunConfig(Section):
    """Every value of a run. Families subclass it and narrow `recipe`, `data`, `model` and `optim`."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named sets of keys, dotted."""
    FROZEN_KEYS: ClassVar[tuple[str, ...]] = ()
    """Keys that name another trained model which this one stands on; a run keeps a copy of each in its folder. Beside
    each stands a key NAME_hash, filled in when the run starts: later the weights must still be those."""
    TRANSFORMERS: ClassVar[tuple[str, ...]] = ()
    """Types of models, as `transformers` calls them, that the recipe opens as its own, from the folders it writes."""

    OPTIONS: ClassVar[type[GenerateOptions] | None] = None
    """Of a generator: the options of its pipeline, beside the prompts."""

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
        missing = {key for name in cls.FROZEN_KEYS for key in (name, f"{name}_hash")} - cls.model_fields.keys()
        if missing:
            raise TypeError(
                f"{cls.__name__} has FROZEN_KEYS={cls.FROZEN_KEYS}, so it needs the keys {', '.join(sorted(missing))}"
            )

    @model_validator(mode="after")
    def _batches_divide(self) -> RunConfig:
        if self.train.batch_size % self.train.grad_accum_steps:
            raise ValueError(
                f"train.batch_size={self.train.batch_size} is not divisible by train.grad_accum_steps={self.train.grad_accum_steps}"
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
        return to_yaml(self.model_dump(mode="json"), sort_keys=False)


ConfigT = TypeVar("ConfigT", bound=RunConfig)


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
        merge_into(tree, migrated(schema, read_yaml(file)))
    merge_into(tree, expand(overrides or {}))
    return validate(schema, tree)


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
