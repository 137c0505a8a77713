"""Rules that several trainers share: quintet's own keywords, and what the originals have in common."""

from __future__ import annotations

from typing import Any

from quintet.compat.kinds import BETAS, COUNT, INTERVAL, NORM, NOT_NEGATIVE, SHARE
from quintet.compat.rules import REQUIRED, Rule, if_true, refuse, to_argument, to_key
from quintet.training.options import FEW, FLAG, FUNCTION, RATE, SEED, STEPS, WORKERS, Kind

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
    to_key("batch_size", None, "train.batch_size", FEW, "Items of one optimizer step, over all processes."),
    to_key("accumulate", None, "train.accumulate", FEW, "Micro-batches a step is cut into."),
    to_key("lr", None, "optim.lr", RATE, "Peak learning rate."),
    to_key("seed", None, "train.seed", SEED, "Seed of weights, order and every random choice."),
    to_key("workers", None, "data.workers", WORKERS, "Processes that read data."),
    Rule("config", None, 'Any other keys, as in `config={"ema.decay": 0.999}`.', spread=True),
)
"""Every trainer has these."""


def model(keyword: str, name: str) -> Rule:
    return to_argument(keyword, REQUIRED, "model", f"The `{name}` to train; also the first value by position.")


def batch_size(default: Any = REQUIRED, kind: Kind = FEW) -> Rule:
    explanation = "Items of a whole step, over all processes; given with `grad_accum_every`, multiplied by it."
    keys = ("train.batch_size",)
    return Rule("batch_size", default, explanation, keys=keys, kind=kind, times_accumulation=True)


def steps(keyword: str, default: Any, explanation: str = "Optimizer steps of the run.") -> Rule:
    return to_key(keyword, default, "train.steps", STEPS, explanation)


def accumulation(default: Any) -> Rule:
    return to_key("grad_accum_every", default, "train.accumulate", FEW, "Micro-batches of one step.")


def rate(keyword: str, default: float) -> Rule:
    return to_key(keyword, default, "optim.lr", RATE, "Peak learning rate.")


def betas(keyword: str) -> Rule:
    return to_key(keyword, (0.9, 0.99), "optim.betas", BETAS, "Decay rates of the moments.")


def clip(default: float | None, explanation: str = "Largest norm of the whole gradient.") -> Rule:
    # Where the original clips by default, None asks for something: not to clip.
    keeps_none = default is not None
    return Rule("max_grad_norm", default, explanation, keys=("optim.clip",), kind=NORM, keeps_none=keeps_none)


def weight_decay(keyword: str, default: float) -> Rule:
    return to_key(keyword, default, "optim.weight_decay", NOT_NEGATIVE, "Of matrices and kernels, never of vectors.")


def warmup(keyword: str, default: Any) -> Rule:
    return to_key(keyword, default, "optim.warmup_steps", COUNT, "The peak rate is reached at this step.")


def checkpoints(keyword: str) -> Rule:
    explanation = "The last step is always saved; `checkpoint.keep` tells how many stay."
    return to_key(keyword, 1000, "checkpoint.every", INTERVAL, explanation)


def validations(keyword: str, default: int) -> Rule:
    return to_key(keyword, default, "eval.every", INTERVAL, "Steps between two validations.")


def data_set(default: Any) -> Rule:
    return to_argument("dataset", default, "data", "A data set object; a folder can stand here too.")


def out(keyword: str, default: str) -> Rule:
    return to_argument(
        keyword, default, "out", "An existing run is refused, never cleared: resume it or choose another."
    )


def declared(keyword: str, default: Any) -> Rule:
    return to_argument(keyword, default, "declared", "Names of the values in tuples; a data set's own names win.")


def only_train(part: str) -> Rule:
    return to_key(f"only_train_{part}", False, "loss.only", FLAG, f"Train the {part} alone.", if_true(part))


SPLIT: tuple[Rule, ...] = (
    to_key("valid_frac", 0.05, "data.validation_fraction", SHARE, "Share held out; 0 validates on the training items."),
    to_key("random_split_seed", 42, "data.split_seed", SEED, "Seed of the split."),
)
CLEAR = refuse(
    "force_clear_prev_results",
    None,
    (False,),
    "nothing is ever deleted: name another `out`, or remove the old folder yourself",
)
