"""Rules that several trainers share: quintet's own keywords, what the originals have in common, and the entries of the
dictionaries that they take, such as `accelerate_kwargs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintet.compat import kinds
from quintet.compat.rules import REQUIRED, Noted, Rule, if_true, no_effect, refuse, to_argument, to_key
from quintet.training.options import FLAG, FUNCTION, POSITIVE, RATE, SEED, STEPS, WORKERS, Kind

OWN: tuple[Rule, ...] = (
    to_argument("model", None, "model", "The model to train; also the first value by position."),
    to_argument("data", None, "data", "A folder, or a data set object."),
    to_argument("validation", None, "validation", "A folder or data set of its own for validation, not a split."),
    to_argument("declared", None, "declared", "Names of the values in the data set's tuples."),
    to_argument("out", None, "out", "The run folder; `runs/<recipe>-<n>` by default."),
    to_argument("resume", False, "resume", "Continue the run in `out`.", FLAG),
    to_argument("preset", None, "preset", "`debug`, `small` or `base`."),
    to_argument("lr_schedule", None, "lr_schedule", "Any course of the rate: a function of the step.", FUNCTION),
    to_key("steps", None, "train.steps", STEPS, "Optimizer steps of the run."),
    to_key("batch_size", None, "train.batch_size", POSITIVE, "Items of one optimizer step, over all processes."),
    to_key("grad_accum_steps", None, "train.grad_accum_steps", POSITIVE, "Micro-batches a step is cut into."),
    to_key("lr", None, "optim.lr", RATE, "Peak learning rate."),
    to_key("seed", None, "train.seed", SEED, "Seed of weights, order and every random choice."),
    to_key("num_workers", None, "data.num_workers", WORKERS, "Processes that read data."),
    Rule("config", None, 'Any other keys, as in `config={"ema.decay": 0.999}`.', spread=True),
)
"""Every trainer has these."""


def model(keyword: str, name: str) -> Rule:
    return to_argument(keyword, REQUIRED, "model", f"The `{name}` to train; also the first value by position.")


def batch_size(default: Any = REQUIRED, kind: Kind = POSITIVE) -> Rule:
    explanation = "Items of a whole step, over all processes; given with `grad_accum_every`, multiplied by it."
    keys = ("train.batch_size",)
    return Rule("batch_size", default, explanation, keys=keys, kind=kind, times_accumulation=True)


def steps(keyword: str, default: Any, explanation: str = "Optimizer steps of the run.") -> Rule:
    return to_key(keyword, default, "train.steps", STEPS, explanation)


def accumulation(default: Any) -> Rule:
    return to_key("grad_accum_every", default, "train.grad_accum_steps", POSITIVE, "Micro-batches of one step.")


def rate(keyword: str, default: float) -> Rule:
    return to_key(keyword, default, "optim.lr", RATE, "Peak learning rate.")


def betas(keyword: str) -> Rule:
    return to_key(keyword, (0.9, 0.99), "optim.betas", kinds.BETAS, "Decay rates of the moments.")


def clip(default: float | None, explanation: str = "Largest norm of the whole gradient.") -> Rule:
    # Where the original clips by default, None asks for something: not to clip.
    keeps_none = default is not None
    return Rule(
        "max_grad_norm", default, explanation, keys=("optim.max_grad_norm",), kind=kinds.NORM, keeps_none=keeps_none
    )


def weight_decay(keyword: str, default: float) -> Rule:
    return to_key(
        keyword, default, "optim.weight_decay", kinds.NOT_NEGATIVE, "Of matrices and kernels, never of vectors."
    )


def warmup(keyword: str, default: Any) -> Rule:
    return to_key(keyword, default, "optim.warmup_steps", kinds.COUNT, "The peak rate is reached at this step.")


def checkpoints(keyword: str) -> Rule:
    explanation = "The last step is always saved; `checkpoint.keep` tells how many stay."
    return to_key(keyword, 1000, "checkpoint.every", kinds.INTERVAL, explanation)


def validations(keyword: str, default: int) -> Rule:
    return to_key(keyword, default, "eval.every", kinds.INTERVAL, "Steps between two validations.")


def data_set(default: Any) -> Rule:
    return to_argument("dataset", default, "data", "A data set object; a folder can stand here too.")


def out(keyword: str, default: str) -> Rule:
    return to_argument(
        keyword, default, "out", "An existing run is refused, never cleared: resume it or choose another."
    )


def declared(keyword: str, default: Any) -> Rule:
    return to_argument(keyword, default, "declared", "Names of the values in tuples; a data set's own names win.")


def only_train(part: str) -> Rule:
    return to_key(f"only_train_{part}", False, "loss.train_only", FLAG, f"Train the {part} alone.", if_true(part))


SPLIT: tuple[Rule, ...] = (
    to_key(
        "valid_frac",
        0.05,
        "data.validation_fraction",
        kinds.SHARE,
        "Share held out; 0 validates on the training items.",
    ),
    to_key("random_split_seed", 42, "data.split_seed", SEED, "Seed of the split."),
)
CLEAR = refuse(
    "force_clear_prev_results",
    None,
    (False,),
    "nothing is ever deleted: name another `out`, or remove the old folder yourself",
)

# --- entries of dictionaries ---------------------------------------------------------------------------------

FP16_NOTICE = "fp16 is not offered: bf16 needs no loss scaling and is used instead"


def precision(name: str) -> Any:
    return {"no": "fp32", "bf16": "bf16", "fp16": Noted("bf16", FP16_NOTICE)}[name]


def is_inductor(name: str) -> bool:
    return name == "inductor"


FLAGS = (True, False)
EMPTY: tuple[Any, ...] = ((), [], set())
GLOBAL_BATCH = "the batch size is that of all processes together"
NOT_DDP = "torch's DDP is all there is, set by `engine.*` keys and the launcher; leave it out"
RUN_FOLDER = "logs lie in the run folder, and the tracker's project is the key `log.project`"
RAMP = "the ramp of the average is fixed; leave it out, and set its decay and start alone"
EVERYTHING = "all parameters are averaged; leave it out"
ONE_WAY = "the average never flows back into the weights; leave it out"
OWN_WAY = "how the average is computed is not for choice"
OWN_ORDER = "order, batches and random choices are functions of seed and step"

ENGINE_PARTS: tuple[Rule, ...] = (
    to_key("mixed_precision", None, "engine.precision", kinds.PRECISION, "`no` is fp32; fp16 becomes bf16.", precision),
    to_key(
        "log_with", None, "log.trackers", kinds.TRACKERS, "Trackers beside `metrics.jsonl`, which is always written."
    ),
    to_key("cpu", False, "engine.device", FLAG, "Compute on the CPU.", if_true("cpu")),
    to_key("dynamo_backend", None, "engine.compile", kinds.BACKEND, "`torch.compile` every module.", is_inductor),
    no_effect("split_batches", False, (True,), GLOBAL_BATCH),
    refuse("gradient_accumulation_steps", 1, (1,), "use the trainer's `accumulate` or `grad_accum_every`"),
    no_effect("kwargs_handlers", None, EMPTY, "each recipe sets DDP's flags by itself"),
    no_effect("project_dir", None, (), RUN_FOLDER),
    no_effect("project_config", None, (), RUN_FOLDER),
    no_effect("device_placement", True, (True,), "modules and batches are always placed"),
    no_effect("step_scheduler_with_optimizer", True, FLAGS, "the learning rate is a function of the step"),
    no_effect("rng_types", None, (), OWN_ORDER),
    no_effect("dataloader_config", None, (), OWN_ORDER),
    refuse("deepspeed_plugin", None, (), NOT_DDP),
    refuse("deepspeed_plugins", None, (), NOT_DDP),
    refuse("fsdp_plugin", None, (), NOT_DDP),
    refuse("megatron_lm_plugin", None, (), NOT_DDP),
    refuse("torch_tp_plugin", None, (), NOT_DDP),
    refuse("parallelism_config", None, (), NOT_DDP),
    refuse("dynamo_plugin", None, (), "the key `engine.compile` is all there is; leave it out"),
    refuse("gradient_accumulation_plugin", None, (), "use the trainer's `accumulate` or `grad_accum_every`"),
)

EMA_PARTS: tuple[Rule, ...] = (
    to_key("beta", 0.9999, "ema.decay", kinds.DECAY, "Decay of the average."),
    to_key("update_after_step", 100, "ema.start", kinds.COUNT, "The average is a plain copy before."),
    to_key("update_every", 10, "ema.every", POSITIVE, "Steps between two updates."),
    refuse("inv_gamma", 1.0, (1.0, 1), RAMP),
    refuse("power", 2 / 3, (2 / 3,), RAMP),
    refuse("min_value", 0.0, (0.0, 0), RAMP),
    refuse("param_or_buffer_names_no_ema", set(), EMPTY, EVERYTHING),
    refuse("ignore_names", set(), EMPTY, EVERYTHING),
    refuse("ignore_startswith_names", set(), EMPTY, EVERYTHING),
    refuse("ema_model", None, (), "the average copies the model by itself; leave it out"),
    refuse("update_model_with_ema_every", None, (), ONE_WAY),
    refuse("update_model_with_ema_beta", 0.0, (0.0, 0), ONE_WAY),
    no_effect("include_online_model", True, FLAGS, OWN_WAY),
    no_effect("allow_different_devices", False, FLAGS, OWN_WAY),
    no_effect("use_foreach", False, FLAGS, OWN_WAY),
    no_effect("forward_method_names", (), EMPTY, OWN_WAY),
    no_effect("move_ema_to_online_device", False, FLAGS, OWN_WAY),
    no_effect("coerce_dtype", False, FLAGS, OWN_WAY),
    no_effect("lazy_init_ema", False, FLAGS, OWN_WAY),
)

OPTIMIZER_PARTS: tuple[Rule, ...] = (
    to_key("betas", (0.9, 0.99), "optim.betas", kinds.BETAS, "Decay rates of the moments."),
    to_key("eps", 1e-8, "optim.eps", RATE, "Term that keeps the division finite."),
    no_effect("filter_by_requires_grad", False, FLAGS, "only parameters that require gradients are optimized"),
    no_effect("omit_gammas_and_betas_from_wd", True, (True,), "vectors are never decayed"),
)

SCHEDULER_PARTS: tuple[Rule, ...] = (
    to_key("T_max", REQUIRED, "optim.decay_steps", STEPS, "Step at which the cosine ends."),
    to_key("eta_min", 0.0, "optim.final_lr", kinds.NOT_NEGATIVE, "Rate at the end of the cosine."),
)

PARTS: Mapping[str, tuple[Rule, ...]] = {
    "accelerate_kwargs, accelerator_kwargs": ENGINE_PARTS,
    "ema_kwargs": EMA_PARTS,
    "optimizer_kwargs": OPTIMIZER_PARTS,
    "scheduler_kwargs": SCHEDULER_PARTS,
}
