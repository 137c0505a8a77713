"""Owns the facts about the original trainers: their every keyword, its default, and where it goes.

Data, with the few conversions it needs; `compat.py` applies it and makes `docs/migration.md` from it. Adding a family
to quintet means setting its trainer's `planned` to False here: tests then hold every key against its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final

REQUIRED: Final = object()
"""Stands for the default of a keyword that has none."""
SKIP: Final = object()
"""What a conversion returns when the value asks for nothing."""


@dataclass(frozen=True)
class Kind:
    """The possible values of a keyword. `accept` returns the value in plain form, or raises TypeError or ValueError."""

    phrase: str
    example: str
    accept: Callable[[Any], Any]


@dataclass(frozen=True)
class Noted:
    """A converted value about which something should be said."""

    value: Any
    notice: str


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Rule:
    """What happens to one keyword. Exactly one of `keys`, `argument`, `parts`, `spread`, `refused`, `always` is set."""

    keyword: str
    explanation: str
    """One sentence, for people who move."""
    default: Any = REQUIRED
    """The original's default, a fact for the page."""
    keys: tuple[str, ...] = ()
    """The dotted keys that take the value."""
    argument: str = ""
    """The argument of quintet's trainer that takes the value."""
    parts: tuple[Rule, ...] = ()
    """The value is a dictionary; these are the rules of its entries."""
    spread: bool = False
    """The value is a mapping of quintet's own keys."""
    refused: str = ""
    """Why it cannot be, and what to do instead; for any value but those in `fits`."""
    always: str = ""
    """Why it has no effect here; said for any value but those in `fits`."""
    fits: tuple[Any, ...] = ()
    kind: Kind | None = None
    convert: Callable[[Any], Any] = same
    keeps_none: bool = False
    """None is a value of its own here, not the absence of one."""
    times_accumulation: bool = False
    """The original counts in micro-batches; with `grad_accum_every` the number grows by that factor."""


@dataclass(frozen=True)
class OriginalTrainer:
    """One of the six trainers people come from."""

    name: str
    recipe: str
    package: str
    version: str
    positional: int
    """How many of its first keywords may also be given by position."""
    planned: bool
    """The recipe is not in this version of quintet."""
    rules: tuple[Rule, ...]


# --- the kinds of values ------------------------------------------------------------------------------------


def whole(minimum: int, example: int, why: str = "") -> Kind:
    def accept(value: Any) -> int:
        # People write 1e5 for a number of steps, and numpy's integers are integers too.
        if isinstance(value, bool) or not isinstance(value, Integral | float):
            raise TypeError
        if not isfinite(value) or value != int(value) or value < minimum:
            raise ValueError
        return int(value)

    return Kind(f"a whole number of at least {minimum}{why}", str(example), accept)


def number(phrase: str, example: str, test: Callable[[float], bool]) -> Kind:
    def accept(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        if not isfinite(value) or not test(float(value)):
            raise ValueError
        return float(value)

    return Kind(phrase, example, accept)


def choice(*known: str) -> Kind:
    def accept(value: Any) -> str:
        name = _plain(value)
        if name not in known:
            raise ValueError
        return name

    return Kind(f"one of {', '.join(map(repr, known))}", repr(known[-1]), accept)


def _plain(value: Any) -> str:
    """Names come as text or as members of an enumeration."""
    return str(getattr(value, "value", value)).lower()


def _accept_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _accept_betas(value: Any) -> tuple[float, float]:
    first, second = (SHARE.accept(each) for each in value)
    return first, second


def _accept_texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError
    texts = tuple(value)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError
    return texts


def _accept_texts_file(value: Any) -> tuple[str, ...]:
    try:
        lines = Path(value).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError from error
    return _accept_texts(line for line in lines if line.strip())


def _accept_trackers(value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list | tuple) else (value,)
    return tuple(choice("tensorboard", "wandb", "trackio").accept(each) for each in listed)


def _accept_scheduler(value: Any) -> str:
    # Named rather than compared, so that this file needs no torch.
    if getattr(value, "__name__", "") != "CosineAnnealingLR":
        raise ValueError
    return "cosine"


def _accept_function(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    return value


STEPS = whole(1, 10_000)
INTERVAL = whole(1, 1000)
FEW = whole(1, 4)
COUNT = whole(0, 0)
SEED = whole(0, 42)
CONTRASTIVE = whole(2, 64, " (a contrastive loss compares items with each other)")
RATE = number("a number above 0", "3e-4", lambda value: value > 0)
NORM = number("a number above 0, or None for no clipping", "0.5", lambda value: value > 0)
NOT_NEGATIVE = number("a number of at least 0", "0.0", lambda value: value >= 0)
SHARE = number("a number from 0 to below 1", "0.05", lambda value: 0 <= value < 1)
DECAY = number("a number between 0 and 1, both excluded", "0.995", lambda value: 0 < value < 1)
FLAG = Kind("True or False", "True", _accept_flag)
BETAS = Kind("two numbers from 0 to below 1", "(0.9, 0.99)", _accept_betas)
TEXTS = Kind("a list of captions", "['a red circle']", _accept_texts)
TEXTS_FILE = Kind("a readable text file with a caption on each line", "'captions.txt'", _accept_texts_file)
TRACKERS = Kind("'tensorboard', 'wandb' or 'trackio', or a list of them", "'wandb'", _accept_trackers)
SCHEDULER = Kind(
    "torch's CosineAnnealingLR (for any other course give `lr_schedule`, a function from the step to the rate)",
    "CosineAnnealingLR",
    _accept_scheduler,
)
FUNCTION = Kind("a function", "lambda step: 3e-4", _accept_function)


# --- conversions --------------------------------------------------------------------------------------------


def if_true(wanted: Any, notice: str = "") -> Callable[[bool], Any]:
    """True asks for a value of the key; False asks for nothing."""

    def convert(flag: bool) -> Any:
        if not flag:
            return SKIP
        return Noted(wanted, notice) if notice else wanted

    return convert


FP16_NOTICE = "fp16 is not offered: bf16 needs no loss scaling and is used instead"


def precision(name: str) -> Any:
    return {"no": "fp32", "bf16": "bf16", "fp16": Noted("bf16", FP16_NOTICE)}[name]


# --- rules that more than one trainer has -------------------------------------------------------------------


def split_batches(default: bool) -> Rule:
    explanation = "The batch size is always that of all processes together."
    always = "the batch size is that of all processes together"
    return Rule("split_batches", explanation, default, always=always, fits=(True,))


OWN: tuple[Rule, ...] = (
    Rule("model", "The model to train; also the first value by position.", argument="model"),
    Rule("data", "A folder, or a data set object.", argument="data"),
    Rule("validation", "A folder or data set of its own for validation, instead of a split.", argument="validation"),
    Rule("declared", "Names of the values in the data set's tuples.", argument="declared"),
    Rule("out", "The run folder; `runs/<recipe>-<n>` by default.", argument="out"),
    Rule("resume", "Continue the run in `out`.", argument="resume", kind=FLAG),
    Rule("preset", "`debug`, `small` or `base`.", argument="preset"),
    Rule(
        "lr_schedule", "Any course of the learning rate: a function of the step.", argument="lr_schedule", kind=FUNCTION
    ),
    Rule("steps", "Optimizer steps.", keys=("train.steps",), kind=STEPS),
    Rule("batch_size", "Items of one optimizer step, over all processes.", keys=("train.batch_size",), kind=FEW),
    Rule("accumulate", "Micro-batches a step is cut into.", keys=("train.accumulate",), kind=FEW),
    Rule("lr", "Peak learning rate.", keys=("optim.lr",), kind=RATE),
    Rule("seed", "Seed of weights, order and every random choice.", keys=("train.seed",), kind=SEED),
    Rule("workers", "Processes that read data.", keys=("data.workers",), kind=COUNT),
    Rule("config", 'Any other keys: `config={"ema.decay": 0.999}`.', spread=True),
)
"""quintet's own names, which every trainer has."""

NOT_DDP = "quintet runs on torch's DDP, set by `engine.*` keys and the launcher; leave it out"
ENGINE_PARTS: tuple[Rule, ...] = (
    Rule(
        "mixed_precision",
        "`no` is fp32; fp16 becomes bf16, which needs no loss scaling.",
        None,
        keys=("engine.precision",),
        kind=choice("no", "fp16", "bf16"),
        convert=precision,
    ),
    Rule(
        "log_with",
        "`metrics.jsonl` is always written; these trackers come beside it.",
        None,
        keys=("log.trackers",),
        kind=TRACKERS,
    ),
    Rule("cpu", "Compute on the CPU.", False, keys=("engine.device",), kind=FLAG, convert=if_true("cpu")),
    Rule(
        "dynamo_backend",
        "`torch.compile` of every module.",
        None,
        keys=("engine.compile",),
        kind=choice("no", "inductor"),
        convert=lambda name: name == "inductor",
    ),
    split_batches(False),
    Rule(
        "gradient_accumulation_steps",
        "The trainers have a keyword of their own for it.",
        1,
        refused="use `accumulate` (or `grad_accum_every`)",
        fits=(1,),
    ),
    Rule(
        "kwargs_handlers",
        "Each recipe knows whether parameters may stay unused; other DDP settings are `engine.*` keys.",
        None,
        always="each recipe sets DDP's flags by itself",
        fits=([], ()),
    ),
    Rule(
        "project_dir",
        "Logs lie in the run folder; the tracker's project is `log.project`.",
        None,
        always="logs lie in the run folder; the tracker's project is the key log.project",
    ),
    Rule(
        "project_config",
        "As `project_dir`.",
        None,
        always="logs lie in the run folder; the tracker's project is the key log.project",
    ),
    Rule("device_placement", "Modules and batches are always placed.", True, always="always so", fits=(True,)),
    Rule(
        "step_scheduler_with_optimizer",
        "The rate is a function of the step.",
        True,
        always="the learning rate is a function of the step",
        fits=(True, False),
    ),
    Rule(
        "rng_types", "Random choices are functions of seed, epoch and item.", None, always="random choices are seeded"
    ),
    Rule(
        "dataloader_config",
        "Order and batches are a function of seed and step; see `data.workers`.",
        None,
        always="order and batches are a function of seed and step",
    ),
    *(
        Rule(name, "Not offered; DDP is.", None, refused=NOT_DDP)
        for name in (
            "deepspeed_plugin",
            "deepspeed_plugins",
            "fsdp_plugin",
            "megatron_lm_plugin",
            "torch_tp_plugin",
            "parallelism_config",
            "dynamo_plugin",
            "gradient_accumulation_plugin",
        )
    ),
)

EMPTY: tuple[Any, ...] = ((), [], set())
EVERYTHING = "all parameters are averaged; leave it out"
RAMP = "the ramp of the average is fixed: leave it out, and set `ema.decay` and `ema.start` alone"
EMA_PARTS: tuple[Rule, ...] = (
    Rule("beta", "Decay of the average.", 0.9999, keys=("ema.decay",), kind=DECAY),
    Rule("update_after_step", "The average is a plain copy before.", 100, keys=("ema.start",), kind=COUNT),
    Rule("update_every", "Steps between two updates.", 10, keys=("ema.every",), kind=FEW),
    Rule("inv_gamma", "The ramp is fixed.", 1.0, refused=RAMP, fits=(1.0, 1)),
    Rule("power", "The ramp is fixed.", 2 / 3, refused=RAMP, fits=(2 / 3,)),
    Rule("min_value", "The ramp is fixed.", 0.0, refused=RAMP, fits=(0.0, 0)),
    *(
        Rule(name, "All parameters are averaged, buffers are copied.", (), refused=EVERYTHING, fits=EMPTY)
        for name in ("param_or_buffer_names_no_ema", "ignore_names", "ignore_startswith_names")
    ),
    Rule("ema_model", "The average copies the model given.", None, refused="the average copies the model by itself"),
    Rule(
        "update_model_with_ema_every",
        "The average never flows back.",
        None,
        refused="the average never flows back into the weights; leave it out",
    ),
    Rule(
        "update_model_with_ema_beta",
        "The average never flows back.",
        0.0,
        refused="the average never flows back into the weights; leave it out",
        fits=(0.0, 0),
    ),
    *(
        Rule(name, "How the average is computed is quintet's business.", default, always="no choice here", fits=fits)
        for name, default, fits in (
            ("use_foreach", False, (True, False)),
            ("include_online_model", True, (True, False)),
            ("allow_different_devices", False, (True, False)),
            ("move_ema_to_online_device", False, (True, False)),
            ("coerce_dtype", False, (True, False)),
            ("lazy_init_ema", False, (True, False)),
            ("forward_method_names", (), EMPTY),
        )
    ),
)

OPTIMIZER_PARTS: tuple[Rule, ...] = (
    Rule("betas", "Decay rates of the moments.", (0.9, 0.99), keys=("optim.betas",), kind=BETAS),
    Rule("eps", "Term that keeps the division finite.", 1e-8, keys=("optim.eps",), kind=RATE),
    Rule(
        "filter_by_requires_grad",
        "Only parameters that require gradients are ever optimized.",
        False,
        always="only parameters that require gradients are optimized",
        fits=(True, False),
    ),
    Rule(
        "omit_gammas_and_betas_from_wd",
        "Vectors are never decayed.",
        True,
        always="vectors are never decayed",
        fits=(True,),
    ),
)

SCHEDULER_PARTS: tuple[Rule, ...] = (
    Rule("T_max", "Step at which the cosine ends.", keys=("optim.horizon",), kind=STEPS),
    Rule("eta_min", "Rate at the end of the cosine.", 0.0, keys=("optim.final_lr",), kind=NOT_NEGATIVE),
)

PARTS: Mapping[str, tuple[Rule, ...]] = {
    "accelerate_kwargs, accelerator_kwargs": ENGINE_PARTS,
    "ema_kwargs": EMA_PARTS,
    "optimizer_kwargs": OPTIMIZER_PARTS,
    "scheduler_kwargs": SCHEDULER_PARTS,
}

FOLDER = "An existing run is refused, never cleared; resume it or name another folder."
CLIP = "Largest norm of the whole gradient."


def model(keyword: str, what: str) -> Rule:
    return Rule(keyword, f"The {what}; also the first value by position.", argument="model")


def steps(keyword: str, default: Any = REQUIRED, explanation: str = "Optimizer steps of the run.") -> Rule:
    return Rule(keyword, explanation, default, keys=("train.steps",), kind=STEPS)


def batch_size(default: Any = REQUIRED, kind: Kind = FEW) -> Rule:
    return Rule(
        "batch_size",
        "Items of one optimizer step, over all processes; given with `grad_accum_every` it is multiplied by it.",
        default,
        keys=("train.batch_size",),
        kind=kind,
        times_accumulation=True,
    )


def accumulation(default: Any = REQUIRED) -> Rule:
    return Rule("grad_accum_every", "Micro-batches of one step.", default, keys=("train.accumulate",), kind=FEW)


def rate(keyword: str, default: float) -> Rule:
    return Rule(keyword, "Peak learning rate.", default, keys=("optim.lr",), kind=RATE)


def clip(default: float | None, explanation: str = CLIP) -> Rule:
    keeps_none = default is not None
    return Rule("max_grad_norm", explanation, default, keys=("optim.clip",), kind=NORM, keeps_none=keeps_none)


def decay(keyword: str) -> Rule:
    explanation = "Decay of matrices and kernels; vectors are never decayed."
    return Rule(keyword, explanation, 0.0, keys=("optim.weight_decay",), kind=NOT_NEGATIVE)


def warmup(keyword: str, default: Any) -> Rule:
    return Rule(keyword, "The peak rate is reached at this step.", default, keys=("optim.warmup_steps",), kind=COUNT)


def every(keyword: str, key: str, default: int, explanation: str) -> Rule:
    return Rule(keyword, explanation, default, keys=(key,), kind=INTERVAL)


def data_set(keyword: str = "dataset", default: Any = REQUIRED) -> Rule:
    return Rule(keyword, "Goes where a folder can go too.", default, argument="data")


def out(keyword: str, default: str) -> Rule:
    return Rule(keyword, FOLDER, default, argument="out")


def engine(keyword: str) -> Rule:
    return Rule(keyword, f"See [`{keyword}`](#entries-of-dictionaries).", {}, parts=ENGINE_PARTS)


def declared(keyword: str, default: Any) -> Rule:
    return Rule(
        keyword,
        "Names of the values in the data set's tuples; a data set's own names win.",
        default,
        argument="declared",
    )


def only_train(part: str) -> Rule:
    return Rule(
        f"only_train_{part}", f"Train the {part} alone.", False, keys=("train.only",), kind=FLAG, convert=if_true(part)
    )


SPLIT: tuple[Rule, ...] = (
    Rule(
        "valid_frac",
        "Share held out for validation; 0 validates on the training items.",
        0.05,
        keys=("data.validation_fraction",),
        kind=SHARE,
    ),
    Rule("random_split_seed", "Seed of the split.", 42, keys=("data.split_seed",), kind=SEED),
)
SAVE = every("save_model_every", "checkpoint.every", 1000, "The last step is always saved; see `checkpoint.keep`.")
CLEAR = Rule(
    "force_clear_prev_results",
    "Nothing is ever deleted; False and None are accepted.",
    None,
    refused="nothing is ever deleted: name another `out`, or remove the old folder yourself",
    fits=(False,),
)


# --- the six trainers ---------------------------------------------------------------------------------------

MULAN = OriginalTrainer(
    "MuLaNTrainer",
    "mulan",
    "musiclm-pytorch",
    "0.2.8",
    positional=2,
    planned=True,
    rules=(
        model("mulan", "`MuLaN` to train"),
        data_set(),
        steps("num_train_steps", None, "Optimizer steps of the run; the original took as many as there are items."),
        batch_size(kind=CONTRASTIVE),
        Rule(
            "data_max_length",
            "In samples; becomes `data.max_seconds` by the model's sample rate, and crops at random places.",
            None,
            argument="max_samples",
            kind=STEPS,
        ),
        Rule(
            "folder",
            "The original never read it; a folder goes where `dataset` goes.",
            None,
            always="the original never read it; a folder can be given as `data`",
        ),
        rate("lr", 3e-4),
        accumulation(1),
        Rule("betas", "Decay rates of the moments.", (0.9, 0.99), keys=("optim.betas",), kind=BETAS),
        clip(0.5),
        *SPLIT,
        SAVE,
        out("results_folder", "./results"),
        engine("accelerate_kwargs"),
        Rule(
            "use_lion",
            "Lion instead of AdamW.",
            False,
            keys=("optim.name",),
            kind=FLAG,
            convert=lambda flag: "lion" if flag else "adamw",
        ),
        CLEAR,
    ),
)

SOUNDSTORM = OriginalTrainer(
    "SoundStormTrainer",
    "soundstorm",
    "soundstorm-pytorch",
    "0.6.1",
    positional=1,
    planned=True,
    rules=(
        model("model", "`SoundStorm` to train"),
        steps("num_train_steps"),
        warmup("num_warmup_steps", REQUIRED),
        batch_size(),
        data_set(default=None),
        only_train("generator"),
        only_train("critic"),
        rate("lr", 3e-4),
        Rule("initial_lr", "Rate at the start of the warm-up.", 1e-5, keys=("optim.initial_lr",), kind=NOT_NEGATIVE),
        accumulation(1),
        decay("wd"),
        clip(0.5),
        *SPLIT,
        every("save_results_every", "eval.every", 100, "Steps between two validations."),
        SAVE,
        out("results_folder", "./results"),
        engine("accelerate_kwargs"),
        split_batches(False),
        Rule(
            "drop_last",
            "Batches are always full: they run on over the end of an epoch, and nothing is dropped.",
            False,
            always="batches run on over the end of an epoch, so that all are full and nothing is dropped",
            fits=(False,),
        ),
        CLEAR,
    ),
)

VQGAN = OriginalTrainer(
    "VQGanVAETrainer",
    "vqgan",
    "muse-maskgit-pytorch",
    "0.3.5",
    positional=1,
    planned=False,
    rules=(
        model("vae", "`VQGanVAE` to train"),
        Rule("folder", "The folder of pictures.", argument="data"),
        steps("num_train_steps"),
        batch_size(),
        Rule(
            "image_size",
            "Belongs to the model (`model.image_size`); accepted when it is the model's.",
            argument="image_size",
        ),
        rate("lr", 3e-4),
        accumulation(1),
        clip(None, "Largest norm of the gradient; the discriminator's too, unless `discr_max_grad_norm` is given."),
        Rule(
            "discr_max_grad_norm",
            "Largest norm of the discriminator's gradient.",
            None,
            keys=("optim.discriminator.clip",),
            kind=NORM,
        ),
        every("save_results_every", "sample.every", 100, "Steps between two grids of input beside reconstruction."),
        SAVE,
        out("results_folder", "./results"),
        *SPLIT,
        Rule("use_ema", "Keep a moving average of the weights.", True, keys=("ema.enabled",), kind=FLAG),
        Rule("ema_beta", "Decay of the average; the original ignored it.", 0.995, keys=("ema.decay",), kind=DECAY),
        Rule("ema_update_after_step", "The average is a plain copy before.", 0, keys=("ema.start",), kind=COUNT),
        Rule("ema_update_every", "Steps between two updates.", 1, keys=("ema.every",), kind=FEW),
        Rule(
            "apply_grad_penalty_every",
            "Steps between two gradient penalties, which the original asked for but never applied.",
            4,
            keys=("loss.penalty_every",),
            kind=FEW,
        ),
        engine("accelerate_kwargs"),
    ),
)

PHENAKI = OriginalTrainer(
    "PhenakiTrainer",
    "phenaki",
    "phenaki-pytorch",
    "0.5.0",
    positional=1,
    planned=True,
    rules=(
        model("phenaki", "`Phenaki` to train"),
        Rule("folder", "The folder of videos or pictures.", None, argument="data"),
        Rule("train_on_images", "Train on single pictures.", False, keys=("data.train_on_images",), kind=FLAG),
        batch_size(16),
        accumulation(1),
        Rule("num_frames", "Frames of a training clip.", 17, keys=("data.num_frames",), kind=whole(1, 17)),
        Rule("sample_num_frames", "Frames of a sample.", None, keys=("sample.num_frames",), kind=whole(1, 17)),
        rate("train_lr", 1e-4),
        steps("train_num_steps", 100_000),
        clip(None),
        Rule(
            "ema_update_every",
            "Steps between two updates; the original kept no average.",
            10,
            keys=("ema.every",),
            kind=FEW,
        ),
        Rule(
            "ema_decay", "Decay of the average; the original kept no average.", 0.995, keys=("ema.decay",), kind=DECAY
        ),
        Rule("adam_betas", "Decay rates of the moments.", (0.9, 0.99), keys=("optim.betas",), kind=BETAS),
        decay("wd"),
        Rule(
            "save_and_sample_every",
            "Sets both intervals.",
            1000,
            keys=("sample.every", "checkpoint.every"),
            kind=INTERVAL,
        ),
        Rule("num_samples", "Any number, not only squares.", 25, keys=("sample.num",), kind=whole(1, 25)),
        out("results_folder", "./results"),
        Rule("amp", "Autocast to bf16.", False, keys=("engine.precision",), kind=FLAG, convert=if_true("bf16")),
        Rule(
            "fp16",
            "Becomes bf16, which needs no loss scaling.",
            False,
            keys=("engine.precision",),
            kind=FLAG,
            convert=if_true("bf16", FP16_NOTICE),
        ),
        split_batches(True),
        Rule(
            "convert_image_to",
            "Files are converted to the tokenizer's channels: 1 is L, 3 RGB, 4 RGBA.",
            None,
            always="files are converted to the tokenizer's channels",
        ),
        Rule(
            "sample_texts_file_path",
            "Captions to sample, a line each.",
            None,
            keys=("sample.texts",),
            kind=TEXTS_FILE,
        ),
        Rule(
            "sample_texts", "Captions to sample; the original ignored them.", None, keys=("sample.texts",), kind=TEXTS
        ),
        data_set(default=None),
        declared("dataset_fields", None),
    ),
)


def mesh_rules(
    what: str, learning_rate: float, norm: float | None, val_every: int, fields: Sequence[str]
) -> dict[str, Rule]:
    """The rules of both mesh trainers, by keyword: they differ in defaults and order alone."""
    rules = (
        model("model", f"`{what}` to train"),
        data_set(),
        steps("num_train_steps"),
        batch_size(),
        accumulation(),
        Rule("val_dataset", "A data set or a folder.", None, argument="validation"),
        every("val_every", "eval.every", val_every, "Steps between two validations."),
        Rule(
            "val_num_batches",
            "Batches of a validation; given with `grad_accum_every` it is multiplied by it, as in the original.",
            5,
            keys=("eval.batches",),
            kind=FEW,
            times_accumulation=True,
        ),
        rate("learning_rate", learning_rate),
        decay("weight_decay"),
        clip(norm),
        Rule("ema_kwargs", "See [`ema_kwargs`](#entries-of-dictionaries).", {}, parts=EMA_PARTS),
        Rule("scheduler", "A class of torch.", None, keys=("optim.schedule",), kind=SCHEDULER),
        Rule("scheduler_kwargs", "See [`scheduler_kwargs`](#entries-of-dictionaries).", {}, parts=SCHEDULER_PARTS),
        engine("accelerator_kwargs"),
        Rule("optimizer_kwargs", "See [`optimizer_kwargs`](#entries-of-dictionaries).", {}, parts=OPTIMIZER_PARTS),
        every("checkpoint_every", "checkpoint.every", 1000, SAVE.explanation),
        out("checkpoint_folder", "./checkpoints"),
        declared("data_kwargs", list(fields)),
        warmup("warmup_steps", 1000),
        Rule(
            "use_wandb_tracking",
            "Track with W&B; project and name are `log.project` and `log.name`.",
            False,
            keys=("log.trackers",),
            kind=FLAG,
            convert=if_true(("wandb",)),
        ),
    )
    return {rule.keyword: rule for rule in rules}


_AUTOENCODER = mesh_rules("MeshAutoencoder", 1e-4, None, 100, ("vertices", "faces", "face_edges"))
_TRANSFORMER = mesh_rules("MeshTransformer", 2e-4, 0.5, 1, ("vertices", "faces", "face_edges", "texts"))
_TRANSFORMER_ORDER = (
    "model dataset num_train_steps batch_size grad_accum_every learning_rate weight_decay max_grad_norm val_dataset "
    "val_every val_num_batches scheduler scheduler_kwargs ema_kwargs accelerator_kwargs optimizer_kwargs "
    "checkpoint_every checkpoint_folder data_kwargs warmup_steps use_wandb_tracking"
).split()

MESH_AUTOENCODER = OriginalTrainer(
    "MeshAutoencoderTrainer",
    "mesh-autoencoder",
    "meshgpt-pytorch",
    "1.8.1",
    positional=len(_AUTOENCODER),
    planned=True,
    rules=tuple(_AUTOENCODER.values()),
)

MESH_TRANSFORMER = OriginalTrainer(
    "MeshTransformerTrainer",
    "mesh-transformer",
    "meshgpt-pytorch",
    "1.8.1",
    positional=len(_TRANSFORMER_ORDER),
    planned=True,
    rules=tuple(_TRANSFORMER[keyword] for keyword in _TRANSFORMER_ORDER),
)

TRAINERS: Mapping[str, OriginalTrainer] = {
    trainer.name: trainer for trainer in (MULAN, SOUNDSTORM, VQGAN, PHENAKI, MESH_AUTOENCODER, MESH_TRANSFORMER)
}
