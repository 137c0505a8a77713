"""The sections of a run's configuration that all recipes have: training, optimizers, EMA, evaluation, engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from quintet.config.section import Section
from quintet.config.tree import flatten


class TrainConfig(Section):
    steps: int = Field(10_000, gt=0, le=10**12, description="Total number of optimizer steps.")
    epochs: float | None = Field(
        None,
        gt=0,
        le=10**6,
        description="Length of the run in epochs; sets `train.steps` when the run starts. null uses `train.steps`.",
    )
    minutes: float | None = Field(
        None,
        gt=0,
        description="Time limit of this process, in minutes: it validates, saves, samples and stops; null: no limit.",
    )
    batch_size: int = Field(
        16, gt=0, description="Global batch size: items per optimizer step, over all processes and micro-batches."
    )
    grad_accum_steps: Annotated[int, Field(gt=0)] | Literal["auto"] = Field(
        1,
        description="Gradient accumulation: micro-batches per optimizer step. More micro-batches need less memory. "
        "auto is the smallest number that fits into the memory of the device; it is found and recorded when the run "
        "starts.",
    )
    seed: int = Field(
        0, ge=0, lt=2**63, description="Random seed of initial weights, data order and all other random choices."
    )
    max_nonfinite_steps: int = Field(
        10, gt=0, description="Number of consecutive steps with non-finite loss or gradients after which the run stops."
    )
    max_rollbacks: int = Field(
        0,
        ge=0,
        description="Instead of stopping, go back to the last good checkpoint and use other items, up to N times.",
    )
    patience: int | None = Field(
        None,
        gt=0,
        description="Early stopping: end the run after N validations in a row without a new best value of the metric "
        "that selects the best checkpoint; null: never.",
    )
    freeze: tuple[str, ...] = Field(
        (),
        description="Parts of the model that are not trained: dotted prefixes of parameter names such as "
        '`["text_encoder"]`, in which `*` and `?` are wildcards.',
    )
    lora: int | None = Field(
        None,
        gt=0,
        le=4096,
        description="Rank of low-rank adapters (LoRA), which are trained instead of the weights of `--init`; null "
        "trains the weights.",
    )

    @property
    def micro_batches(self) -> int:
        """`grad_accum_steps`, or 1 as long as `auto` is not resolved."""
        return 1 if self.grad_accum_steps == "auto" else self.grad_accum_steps

    @field_validator("grad_accum_steps", mode="before")
    @classmethod
    def _check_grad_accum_steps(cls, value: Any) -> Any:
        """One message for both types; pydantic has one for each of them."""
        if value != "auto" and (type(value) is not int or value < 1):
            raise ValueError("must be auto or an integer of 1 or more")
        return value


Probability = Annotated[float, Field(ge=0, lt=1)]
Betas = tuple[Probability, Probability]


OptimizerName = Literal["adamw", "adam", "lion", "muon"]


class OptimizerConfig(Section):
    name: OptimizerName = Field(
        "adamw",
        description="Optimizer; `adam` adds weight decay to the gradient, `muon` is AdamW outside transformer blocks.",
    )
    lr: float = Field(3e-4, gt=0, description="Peak learning rate.")
    muon_lr: float = Field(
        0.02,
        gt=0,
        description="Peak learning rate of the weight matrices inside transformer blocks (muon).",
    )
    muon_kernels: bool = Field(
        False, description="Let Muon also update the kernels of convolutions, with `optim.muon_lr` (muon)."
    )
    betas: Betas = Field((0.9, 0.99), description="Decay rates of the optimizer's moment estimates.")
    eps: float = Field(1e-8, gt=0, description="Epsilon added to the denominator (adam, adamw).")
    weight_decay: float = Field(
        0.0, ge=0, description="Weight decay of matrices and convolution kernels; vectors are never decayed."
    )
    max_grad_norm: float | None = Field(
        None, gt=0, description="Maximum gradient norm (gradient clipping); null disables clipping."
    )
    amsgrad: bool = Field(
        False, description="Divide by the largest second moment so far instead of the current one (adam, adamw)."
    )

    @model_validator(mode="after")
    def _check_amsgrad(self) -> OptimizerConfig:
        if self.amsgrad and self.name not in ("adam", "adamw"):
            raise ValueError(f"optim.amsgrad=true needs optim.name=adam or adamw, not {self.name}")
        return self


class PhaseOptimConfig(Section):
    """Optimizer keys of another phase; a null key takes the value of `optim`."""

    name: OptimizerName | None = Field(None, description="Optimizer of this phase; null uses `optim.name`.")
    lr: float | None = Field(None, gt=0, description="Peak learning rate of this phase; null uses `optim.lr`.")
    betas: Betas | None = Field(
        None, description="Decay rates of the optimizer's moment estimates; null uses `optim.betas`."
    )
    weight_decay: float | None = Field(None, ge=0, description="Weight decay; null uses `optim.weight_decay`.")
    max_grad_norm: float | None = Field(
        None, gt=0, description="Maximum gradient norm of this phase; null uses `optim.max_grad_norm`."
    )


class OptimConfig(OptimizerConfig):
    warmup_steps: int = Field(0, ge=0, description="Steps of linear learning rate warm-up.")
    initial_lr: float = Field(0.0, ge=0, description="Learning rate at the start of the warm-up.")
    schedule: Literal["constant", "cosine", "linear"] = Field(
        "cosine", description="Learning rate schedule after the warm-up."
    )
    final_lr: float = Field(0.0, ge=0, description="Learning rate at `optim.decay_steps` and after it.")
    decay_steps: int | None = Field(
        None,
        gt=0,
        description="Step at which the learning rate schedule ends; null sets it to `train.steps` when the run starts.",
    )
    decay_extensions: tuple[tuple[NonNegativeInt, PositiveInt], ...] = Field(
        (),
        description="Pairs [A, B], added when a run is resumed beyond the end of its schedule: from step A on, the "
        "schedule ends at step B instead of `optim.decay_steps`.",
    )
    scheduler: str | None = Field(
        None,
        description="Scheduler of torch instead of `optim.schedule`, such as `StepLR(step_size=1000, gamma=0.5)`; its "
        "rates are scaled by the warm-up. null uses `optim.schedule`.",
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Factor of the learning rate per block below the output: the first blocks learn slowest. 1: none.",
    )
    lr_scale: tuple[tuple[str, Annotated[float, Field(gt=0)]], ...] = Field(
        (),
        description="Factors of the learning rate by parameter name, such as `{text_encoder: 0.1}`, with patterns as "
        "in `train.freeze`; recorded as pairs.",
    )

    @field_validator("lr_scale", mode="before")
    @classmethod
    def _as_pairs(cls, value: Any) -> Any:
        """A mapping from patterns to factors. Its dots were read as those of keys."""
        return tuple(flatten(value).items()) if isinstance(value, Mapping) else value

    @field_validator("decay_extensions")
    @classmethod
    def _check_extensions(cls, extensions: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        starts = [start for start, _ in extensions]
        if starts != sorted(set(starts)) or any(start >= end for start, end in extensions):
            raise ValueError("give pairs [A, B] with A before B, in ascending order of A")
        return extensions

    def decay_end(self, step: int) -> int | None:
        """The end of the schedule that a step follows."""
        ends = [end for start, end in self.decay_extensions if start <= step]
        return ends[-1] if ends else self.decay_steps

    def for_phase(self, override: PhaseOptimConfig | None = None) -> OptimizerConfig:
        """The optimizer keys of one phase: those of `optim`, overridden by the phase's own."""
        values = {name: getattr(self, name) for name in OptimizerConfig.model_fields}
        if override is not None:
            values.update({name: value for name, value in override if value is not None})
        return OptimizerConfig(**values)


class EMAConfig(Section):
    enabled: bool = Field(
        True, description="Keep an exponential moving average (EMA) of the weights; validation and samples use it."
    )
    decay: float = Field(
        0.999, gt=0, lt=1, description="Upper limit of the EMA decay; at update u it is min(decay, (1 + u) / (10 + u))."
    )
    start: int = Field(
        0, ge=0, description="Step at which averaging starts; until then the EMA is a copy of the weights."
    )
    every: int = Field(1, gt=0, description="Update the EMA every N steps.")


class EvalConfig(Section):
    every: int = Field(500, gt=0, description="Validate every N steps.")
    batches: int | None = Field(
        8, gt=0, description="Validation batches during training; null uses all. `quintet eval` always uses all."
    )
    batch_size: int | None = Field(
        None, gt=0, description="Global validation batch size, over all processes; null uses the size of a micro-batch."
    )
    live: bool = Field(True, description="Also validate the live weights, in addition to the EMA.")
    num_generated: int = Field(
        500,
        ge=0,
        description="Number of validation items for which `quintet eval` generates samples and computes metrics.",
    )


class SampleConfig(Section):
    every: int = Field(500, gt=0, description="Write samples every N steps.")
    num: int = Field(16, gt=0, le=10**6, description="Number of items in each set of samples.")


class CheckpointConfig(Section):
    every: int = Field(1000, gt=0, description="Save a checkpoint every N steps; the last step is always saved.")
    keep: int = Field(3, gt=0, description="Number of recent checkpoints to keep, in addition to the best one.")
    background: bool = Field(
        True,
        description="Write checkpoints in a thread while training continues, which needs the memory of the state once "
        "more; false waits for each write. With engine.fsdp, training always waits.",
    )


class LogConfig(Section):
    every: int = Field(20, gt=0, description="Log metrics every N steps.")
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        ("tensorboard",), description="Experiment trackers, in addition to metrics.jsonl."
    )
    project: str = Field("quintet", description="Project name for W&B and trackio.")
    name: str | None = Field(None, description="Run name for W&B and trackio; null uses the name of the run folder.")


MAX_LAUNCHED = 1024
"""Largest value of `engine.launch`: more than the devices of any machine."""


class EngineConfig(Section):
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="Device; auto uses a GPU if there is one."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp64"] = Field(
        "fp32",
        description="Numerical precision; bf16 and fp16 use autocast in the forward pass, weights stay fp32. fp16 with "
        "loss scaling is for GPUs without bf16. auto is bf16 if the device has instructions for it, else fp16 on a "
        "GPU with tensor cores, else fp32; the choice is recorded when the run starts.",
    )
    compile: bool = Field(
        False,
        description="Compile the repeated blocks of each module and the losses over logits with torch.compile; this "
        "needs a C++ compiler, and the first steps take longer.",
    )
    channels_last: bool = Field(True, description="Channels-last memory format of convolution weights.")
    deterministic: bool = Field(False, description="Use deterministic algorithms on CUDA; on a CPU they always are.")
    tf32: bool = Field(
        False,
        description="Compute fp32 matrix products and convolutions in TF32 on CUDA: faster on Ampere and later, with "
        "10 bits of mantissa instead of 23.",
    )
    cudnn_benchmark: bool = Field(
        False,
        description="Let cuDNN time its convolution algorithms for each shape and take the fastest; ignored with "
        "engine.deterministic.",
    )
    activation_checkpointing: bool = Field(
        False, description="Activation checkpointing: recompute blocks in the backward pass, which needs less memory."
    )
    threads: int | None = Field(
        None, gt=0, le=1024, description="CPU threads per process; null uses the default of torch."
    )
    launch: Annotated[int, Field(gt=0, le=MAX_LAUNCHED)] | Literal["auto"] = Field(
        1,
        description="Number of processes that `quintet train` and `quintet resume` start on this machine; auto starts "
        "engine.world_size of them, or if that is null one per GPU, or one per CPU core if there is no GPU. Ignored "
        "under torchrun and other launchers.",
    )
    world_size: int | None = Field(
        None, gt=0, description="Expected number of processes; any other number is refused. null accepts any number."
    )
    timeout_seconds: int = Field(
        600, gt=0, le=10**7, description="Seconds that a process waits for the other processes before it fails."
    )
    fsdp: bool = Field(False, description="Shard weights, EMA and optimizer state over the processes (FSDP2).")
    bucket_megabytes: int = Field(25, gt=0, le=2**20, description="Size of the gradient buckets of DDP, in MiB.")

    @field_validator("launch", mode="before")
    @classmethod
    def _check_launch(cls, value: Any) -> Any:
        """One message for both types; pydantic has one for each of them."""
        if value != "auto" and (type(value) is not int or not 1 <= value <= MAX_LAUNCHED):
            raise ValueError(f"must be auto or an integer from 1 to {MAX_LAUNCHED}")
        return value


LogitChunk = Annotated[int, Field(gt=0, multiple_of=64)] | Literal["auto"] | None
"""Type of `loss.logit_chunk`."""
LOGIT_CHUNK: Any = Field(
    None,
    description="Compute output layer and loss for N positions at a time (a multiple of 64), and again in the backward "
    "pass, to keep fewer logits in memory; auto: for as many positions as have 2^25 logits; null: for all positions.",
)
"""Its default and description, for the sections `loss` of recipes with a vocabulary."""
