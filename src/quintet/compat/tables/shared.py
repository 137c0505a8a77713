"""Rules that several trainers share: quintet's own keywords, common keywords of the originals, and the entries of
dictionaries such as `accelerate_kwargs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintet.compat import kinds
from quintet.compat.rules import REQUIRED, Implied, Noted, Rule, if_true, no_effect, refuse, to_argument, to_key
from quintet.training.options import FLAG, FUNCTION, POSITIVE, RATE, SEED, STEPS, WORKERS, Kind

OWN: tuple[Rule, ...] = (
    to_argument("model", None, "model", "The model to train; also the first positional argument."),
    to_argument("data", None, "data", "A folder, or a dataset object."),
    to_argument("validation", None, "validation", "A separate folder or dataset for validation, instead of a split."),
    to_argument("declared", None, "declared", "Names of the fields of the dataset's tuples."),
    to_argument("out", None, "out", "Run folder; default: `runs/<recipe>-<n>`."),
    to_argument("resume", False, "resume", "Resume the run in `out`.", FLAG),
    to_argument("preset", None, "preset", "Preset: `debug`, `small` or `base`."),
    to_argument("lr_schedule", None, "lr_schedule", "Learning-rate schedule: a function of the step.", FUNCTION),
    to_key("steps", None, "train.steps", STEPS, "Number of optimizer steps."),
    to_key("batch_size", None, "train.batch_size", POSITIVE, "Number of items per optimizer step, over all processes."),
    to_key("grad_accum_steps", None, "train.grad_accum_steps", POSITIVE, "Number of micro-batches per optimizer step."),
    to_key("lr", None, "optim.lr", RATE, "Peak learning rate."),
    to_key("seed", None, "train.seed", SEED, "Random seed of the run."),
    to_key("num_workers", None, "data.num_workers", WORKERS, "Number of processes that read data."),
    Rule("config", None, 'Any other keys, for example `config={"ema.decay": 0.999}`.', spread=True),
)
"""Keywords of every trainer."""


def model(keyword: str, name: str) -> Rule:
    return to_argument(keyword, REQUIRED, "model", f"The `{name}` to train; also the first positional argument.")


def batch_size(default: Any = REQUIRED, kind: Kind = POSITIVE) -> Rule:
    explanation = (
        "Number of items of a micro-batch on one process; `train.batch_size` is this times `grad_accum_every` and the "
        "number of processes."
    )
    keys = ("train.batch_size",)
    return Rule("batch_size", default, explanation, keys=keys, kind=kind, times_accumulation=True)


def steps(keyword: str, default: Any, explanation: str = "Number of optimizer steps.") -> Rule:
    return to_key(keyword, default, "train.steps", STEPS, explanation)


def accumulation(default: Any) -> Rule:
    return to_key(
        "grad_accum_every", default, "train.grad_accum_steps", POSITIVE, "Number of micro-batches per optimizer step."
    )


def rate(keyword: str, default: float) -> Rule:
    return to_key(keyword, default, "optim.lr", RATE, "Peak learning rate.")


def betas(keyword: str) -> Rule:
    return to_key(keyword, (0.9, 0.99), "optim.betas", kinds.BETAS, "Decay rates of the optimizer's moments.")


def clip(default: float | None, explanation: str = "Maximum gradient norm; None disables clipping.") -> Rule:
    return Rule("max_grad_norm", default, explanation, keys=("optim.max_grad_norm",), kind=kinds.NORM, keeps_none=True)


def weight_decay(keyword: str, default: float) -> Rule:
    return to_key(
        keyword,
        default,
        "optim.weight_decay",
        kinds.NOT_NEGATIVE,
        "Weight decay of matrices and kernels; vectors are not decayed.",
    )


def warmup(keyword: str, default: Any) -> Rule:
    return to_key(
        keyword, default, "optim.warmup_steps", kinds.COUNT, "Number of warm-up steps to the peak learning rate."
    )


def checkpoints(keyword: str) -> Rule:
    explanation = "Number of steps between two checkpoints; all of them remain."
    return to_key(keyword, 1000, "checkpoint.every", kinds.INTERVAL, explanation)


def validations(keyword: str, default: int, only_with: str = "") -> Rule:
    return Rule(
        keyword,
        default,
        "Number of steps between two validations.",
        keys=("eval.every",),
        kind=kinds.INTERVAL,
        only_with=only_with,
    )


def dataset(default: Any) -> Rule:
    return to_argument("dataset", default, "data", "A dataset object, or a folder.")


def results(keyword: str, default: str) -> Rule:
    explanation = "Folder of the run folders `<recipe>-<n>`, of which each trainer makes a new one."
    return to_argument(keyword, default, "results", explanation)


def declared(keyword: str, default: Any) -> Rule:
    return to_argument(
        keyword, default, "declared", "Names of the fields of tuples; names defined by the dataset take precedence."
    )


def only_train(part: str) -> Rule:
    return to_key(f"only_train_{part}", False, "loss.train_only", FLAG, f"Train only the {part}.", if_true(part))


SPLIT: tuple[Rule, ...] = (
    to_key(
        "valid_frac",
        0.05,
        "data.validation_fraction",
        kinds.FRACTION,
        "Fraction of items held out; 0 validates on the training items.",
    ),
    to_key("random_split_seed", 42, "data.split_seed", SEED, "Random seed of the split."),
)
CLEAR = no_effect(
    "force_clear_prev_results", None, (False,), "nothing is ever deleted: each trainer makes a new run folder"
)

# --- what the originals always do ------------------------------------------------------------------------------

NEVER = 10**9
"""Interval of something that an original never does; quintet does it after the last step."""

ALWAYS: tuple[Implied, ...] = (
    Implied("log.trackers", (), "No tracker, unless the engine's arguments name one."),
    Implied("log.every", 1, "Every step is logged."),
    Implied("checkpoint.keep", NEVER, "All checkpoints are kept."),
)
NO_WORKERS = Implied("data.num_workers", 0, "Items are read in the training process.")
NO_AVERAGE = Implied("ema.enabled", False, "There is no average of the weights.")
ADAM = Implied("optim.name", "adam", "The optimizer is Adam.")
ADAMW = Implied("optim.name", "adamw", "The optimizer is Adam, with decoupled weight decay if there is any.")
CONSTANT = Implied("optim.schedule", "constant", "The learning rate is constant after the warm-up.")
NO_WARMUP = Implied("optim.warmup_steps", 0, "There is no warm-up.")
NO_DECAY = Implied("optim.weight_decay", 0.0, "There is no weight decay.")


def implied_betas(first: float, second: float) -> Implied:
    return Implied("optim.betas", (first, second), "Decay rates of the optimizer's moments.")


# --- entries of dictionaries ---------------------------------------------------------------------------------

FP16_NOTICE = "fp16 becomes bf16, which needs no loss scaling and which every recipe can be trained in"


def precision(name: str) -> Any:
    return {"no": "fp32", "bf16": "bf16", "fp16": Noted("bf16", FP16_NOTICE)}[name]


def is_inductor(name: str) -> bool:
    return name == "inductor"


FLAGS = (True, False)
EMPTY: tuple[Any, ...] = ((), [], set())
SPLIT_BATCHES = to_argument(
    "split_batches", False, "split_batches", "Whether the batch size is the total over all processes.", FLAG
)
OTHER_ENGINE = (
    "distributed training is configured by the launcher and `engine.*` keys, such as `engine.fsdp`; leave it out"
)
SAME_RESULT = "it changes how the optimizer is computed, not its result"
RUN_FOLDER = "logs are written to the run folder, and the project of a tracker is the key `log.project`"
RAMP = "the ramp of the average is fixed; leave it out and set only its decay and start"
EVERYTHING = "all parameters are averaged; leave it out"
ONE_WAY = "the average never changes the weights; leave it out"
FIXED = "the computation of the average cannot be configured"
OWN_ORDER = "order, batches and random numbers are functions of seed and step"

ENGINE_PARTS: tuple[Rule, ...] = (
    to_key("mixed_precision", None, "engine.precision", kinds.PRECISION, "`no` is fp32; fp16 becomes bf16.", precision),
    to_key(
        "log_with",
        None,
        "log.trackers",
        kinds.TRACKERS,
        "Trackers in addition to `metrics.jsonl`, which is always written.",
    ),
    to_key("cpu", False, "engine.device", FLAG, "Compute on the CPU.", if_true("cpu")),
    to_key(
        "dynamo_backend", None, "engine.compile", kinds.BACKEND, "Use `torch.compile` for every module.", is_inductor
    ),
    SPLIT_BATCHES,
    refuse("gradient_accumulation_steps", 1, (1,), "use the trainer's `grad_accum_steps` or `grad_accum_every`"),
    no_effect("kwargs_handlers", None, EMPTY, "each recipe sets the flags of DDP"),
    no_effect("project_dir", None, (), RUN_FOLDER),
    no_effect("project_config", None, (), RUN_FOLDER),
    no_effect("device_placement", True, (True,), "modules and batches are always moved to the device"),
    no_effect("step_scheduler_with_optimizer", True, FLAGS, "the learning rate is a function of the step"),
    no_effect("rng_types", None, (), OWN_ORDER),
    no_effect("dataloader_config", None, (), OWN_ORDER),
    refuse("deepspeed_plugin", None, (), OTHER_ENGINE),
    refuse("deepspeed_plugins", None, (), OTHER_ENGINE),
    refuse("fsdp_plugin", None, (), OTHER_ENGINE),
    refuse("megatron_lm_plugin", None, (), OTHER_ENGINE),
    refuse("torch_tp_plugin", None, (), OTHER_ENGINE),
    refuse("parallelism_config", None, (), OTHER_ENGINE),
    refuse("dynamo_plugin", None, (), "`torch.compile` has only the key `engine.compile`; leave it out"),
    refuse("gradient_accumulation_plugin", None, (), "use the trainer's `grad_accum_steps` or `grad_accum_every`"),
)

EMA_PARTS: tuple[Rule, ...] = (
    to_key("beta", 0.9999, "ema.decay", kinds.DECAY, "Decay of the moving average."),
    to_key(
        "update_after_step", 100, "ema.start", kinds.COUNT, "Before this step, the average is a copy of the weights."
    ),
    to_key("update_every", 10, "ema.every", POSITIVE, "Number of steps between two updates of the average."),
    refuse("inv_gamma", 1.0, (1.0, 1), RAMP),
    refuse("power", 2 / 3, (2 / 3,), RAMP),
    refuse("min_value", 0.0, (0.0, 0), RAMP),
    refuse("param_or_buffer_names_no_ema", set(), EMPTY, EVERYTHING),
    refuse("ignore_names", set(), EMPTY, EVERYTHING),
    refuse("ignore_startswith_names", set(), EMPTY, EVERYTHING),
    refuse("ema_model", None, (), "the average is created from the model; leave it out"),
    refuse("update_model_with_ema_every", None, (), ONE_WAY),
    refuse("update_model_with_ema_beta", 0.0, (0.0, 0), ONE_WAY),
    no_effect("include_online_model", True, FLAGS, FIXED),
    no_effect("allow_different_devices", False, FLAGS, FIXED),
    no_effect("use_foreach", False, FLAGS, FIXED),
    no_effect("forward_method_names", (), EMPTY, FIXED),
    no_effect("move_ema_to_online_device", False, FLAGS, FIXED),
    no_effect("coerce_dtype", False, FLAGS, FIXED),
    no_effect("lazy_init_ema", False, FLAGS, FIXED),
)

OPTIMIZER_PARTS: tuple[Rule, ...] = (
    to_key("betas", (0.9, 0.99), "optim.betas", kinds.BETAS, "Decay rates of the optimizer's moments."),
    to_key("eps", 1e-8, "optim.eps", RATE, "Epsilon of the optimizer."),
    to_key("amsgrad", False, "optim.amsgrad", FLAG, "Divide by the largest second moment so far."),
    no_effect("filter_by_requires_grad", False, FLAGS, "only parameters that require gradients are optimized"),
    refuse("omit_gammas_and_betas_from_wd", True, (True,), "vectors are never decayed; leave it out"),
    refuse("maximize", False, (False,), "a loss is minimised; leave it out"),
    *(no_effect(name, None, FLAGS, SAME_RESULT) for name in ("foreach", "fused", "capturable", "differentiable")),
)

PARTS: Mapping[str, tuple[Rule, ...]] = {
    "accelerate_kwargs, accelerator_kwargs": ENGINE_PARTS,
    "ema_kwargs": EMA_PARTS,
    "optimizer_kwargs": OPTIMIZER_PARTS,
}
