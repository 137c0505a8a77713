"""Owns the facts about the original trainers: their every keyword, its default, and where it goes.

Data, with the few conversions it needs; `compat.py` applies it and makes `docs/migration.md` from it. Adding a family
to quintet means setting its trainer's `planned` to False here: tests then hold every key against its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
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


Converter = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Rule:
    """What happens to one keyword. Exactly one of `keys`, `argument`, `parts`, `spread`, `refused`, `always` is set."""

    keyword: str
    default: Any
    """The original's default, a fact for the page."""
    explanation: str
    """One sentence, for people who move."""
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
    convert: Converter = same
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
COUNT = whole(0, 100)
SEED = whole(0, 42)
WORKERS = whole(0, 2)
CONTRASTIVE = whole(2, 64, " (a contrastive loss compares items with each other)")
RATE = number("a number above 0", "3e-4", lambda value: value > 0)
NORM = number("a number above 0, or None for no clipping", "0.5", lambda value: value > 0)
NOT_NEGATIVE = number("a number of at least 0", "0.0", lambda value: value >= 0)
SHARE = number("a number from 0 to below 1", "0.05", lambda value: 0 <= value < 1)
DECAY = number("a number between 0 and 1, both excluded", "0.995", lambda value: 0 < value < 1)
FRAMES = whole(1, 17)
PRECISION = choice("no", "fp16", "bf16")
BACKEND = choice("no", "inductor")
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


def is_inductor(name: str) -> bool:
    return name == "inductor"


# --- the ways a rule can go ---------------------------------------------------------------------------------


def to_key(keyword: str, default: Any, key: str, kind: Kind, explanation: str, convert: Converter = same) -> Rule:
    return Rule(keyword, default, explanation, keys=(key,), kind=kind, convert=convert)


def to_argument(keyword: str, default: Any, argument: str, explanation: str, kind: Kind | None = None) -> Rule:
    return Rule(keyword, default, explanation, argument=argument, kind=kind)


def to_parts(keyword: str, parts: tuple[Rule, ...], default: Any = MappingProxyType({})) -> Rule:
    return Rule(keyword, dict(default), "Its entries are in a table [below](#entries-of-dictionaries).", parts=parts)


def no_effect(keyword: str, default: Any, fits: tuple[Any, ...], why: str) -> Rule:
    return Rule(keyword, default, _sentence(why), always=why, fits=fits)


def refuse(keyword: str, default: Any, fits: tuple[Any, ...], why: str) -> Rule:
    return Rule(keyword, default, _sentence(why), refused=why, fits=fits)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


# --- quintet's own names ------------------------------------------------------------------------------------

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


# --- entries of the dictionaries that trainers take ---------------------------------------------------------

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
    to_key("mixed_precision", None, "engine.precision", PRECISION, "`no` is fp32; fp16 becomes bf16.", precision),
    to_key("log_with", None, "log.trackers", TRACKERS, "Trackers beside `metrics.jsonl`, which is always written."),
    to_key("cpu", False, "engine.device", FLAG, "Compute on the CPU.", if_true("cpu")),
    to_key("dynamo_backend", None, "engine.compile", BACKEND, "`torch.compile` every module.", is_inductor),
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
    to_key("beta", 0.9999, "ema.decay", DECAY, "Decay of the average."),
    to_key("update_after_step", 100, "ema.start", COUNT, "The average is a plain copy before."),
    to_key("update_every", 10, "ema.every", FEW, "Steps between two updates."),
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
    to_key("betas", (0.9, 0.99), "optim.betas", BETAS, "Decay rates of the moments."),
    to_key("eps", 1e-8, "optim.eps", RATE, "Term that keeps the division finite."),
    no_effect("filter_by_requires_grad", False, FLAGS, "only parameters that require gradients are optimized"),
    no_effect("omit_gammas_and_betas_from_wd", True, (True,), "vectors are never decayed"),
)

SCHEDULER_PARTS: tuple[Rule, ...] = (
    to_key("T_max", REQUIRED, "optim.horizon", STEPS, "Step at which the cosine ends."),
    to_key("eta_min", 0.0, "optim.final_lr", NOT_NEGATIVE, "Rate at the end of the cosine."),
)

PARTS: Mapping[str, tuple[Rule, ...]] = {
    "accelerate_kwargs, accelerator_kwargs": ENGINE_PARTS,
    "ema_kwargs": EMA_PARTS,
    "optimizer_kwargs": OPTIMIZER_PARTS,
    "scheduler_kwargs": SCHEDULER_PARTS,
}


# --- rules that several trainers have -----------------------------------------------------------------------


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


# --- the six trainers ---------------------------------------------------------------------------------------

MULAN: tuple[Rule, ...] = (
    model("mulan", "MuLaN"),
    data_set(REQUIRED),
    steps("num_train_steps", None, "Optimizer steps of the run; the original took as many as there are items."),
    batch_size(kind=CONTRASTIVE),
    to_argument("data_max_length", None, "max_samples", "Becomes `data.seconds`, by the model's rate.", STEPS),
    no_effect("folder", None, (), "the original never read it; a folder can be given as `data`"),
    rate("lr", 3e-4),
    accumulation(1),
    betas("betas"),
    clip(0.5),
    *SPLIT,
    checkpoints("save_model_every"),
    out("results_folder", "./results"),
    to_parts("accelerate_kwargs", ENGINE_PARTS),
    to_key("use_lion", False, "optim.name", FLAG, "Lion instead of AdamW.", lambda flag: "lion" if flag else "adamw"),
    CLEAR,
)

SOUNDSTORM: tuple[Rule, ...] = (
    model("model", "SoundStorm"),
    steps("num_train_steps", REQUIRED),
    warmup("num_warmup_steps", REQUIRED),
    batch_size(),
    data_set(None),
    only_train("generator"),
    only_train("critic"),
    rate("lr", 3e-4),
    to_key("initial_lr", 1e-5, "optim.initial_lr", NOT_NEGATIVE, "Rate at the start of the warm-up."),
    accumulation(1),
    weight_decay("wd", 0.0),
    clip(0.5),
    *SPLIT,
    validations("save_results_every", 100),
    checkpoints("save_model_every"),
    out("results_folder", "./results"),
    to_parts("accelerate_kwargs", ENGINE_PARTS),
    no_effect("split_batches", False, (True,), GLOBAL_BATCH),
    no_effect(
        "drop_last", False, (False,), "batches run on over the end of an epoch: all are full, nothing is dropped"
    ),
    CLEAR,
)

VQGAN: tuple[Rule, ...] = (
    model("vae", "VQGanVAE"),
    to_argument("folder", REQUIRED, "data", "The folder of pictures."),
    steps("num_train_steps", REQUIRED),
    batch_size(),
    to_argument("image_size", REQUIRED, "image_size", "Belongs to the model, `model.image_size`; must be the same."),
    rate("lr", 3e-4),
    accumulation(1),
    clip(None, "Largest norm of the gradient; the discriminator's too, unless `discr_max_grad_norm` is given."),
    to_key("discr_max_grad_norm", None, "optim.discriminator.clip", NORM, "The same for the discriminator alone."),
    to_key("save_results_every", 100, "sample.every", INTERVAL, "Steps between two grids of reconstructions."),
    checkpoints("save_model_every"),
    out("results_folder", "./results"),
    *SPLIT,
    to_key("use_ema", True, "ema.enabled", FLAG, "Keep a moving average of the weights."),
    to_key("ema_beta", 0.995, "ema.decay", DECAY, "Decay of the average; the original ignored it."),
    to_key("ema_update_after_step", 0, "ema.start", COUNT, "The average is a plain copy before."),
    to_key("ema_update_every", 1, "ema.every", FEW, "Steps between two updates."),
    to_key(
        "apply_grad_penalty_every", 4, "loss.penalty_every", FEW, "The original ignored it: it penalised each step."
    ),
    to_parts("accelerate_kwargs", ENGINE_PARTS),
)

PHENAKI: tuple[Rule, ...] = (
    model("phenaki", "Phenaki"),
    to_argument("folder", None, "data", "The folder of videos or pictures."),
    to_key("train_on_images", False, "data.frames", FLAG, "Of a video one frame is taken.", if_true(1)),
    batch_size(16),
    accumulation(1),
    to_key("num_frames", 17, "data.frames", FRAMES, "Frames of a training clip; pictures are clips of one."),
    to_key("sample_num_frames", None, "sample.frames", FRAMES, "Frames of a sample."),
    rate("train_lr", 1e-4),
    steps("train_num_steps", 100_000),
    clip(None),
    to_key("ema_update_every", 10, "ema.every", FEW, "Steps between two updates; the original kept no average."),
    to_key("ema_decay", 0.995, "ema.decay", DECAY, "Decay of the average; the original kept no average."),
    betas("adam_betas"),
    weight_decay("wd", 0),
    Rule("save_and_sample_every", 1000, "Both at once.", keys=("sample.every", "checkpoint.every"), kind=INTERVAL),
    to_key("num_samples", 25, "sample.num", FEW, "Any number, not only squares."),
    out("results_folder", "./results"),
    to_key("amp", False, "engine.precision", FLAG, "Autocast to bf16.", if_true("bf16")),
    to_key("fp16", False, "engine.precision", FLAG, "Becomes bf16.", if_true("bf16", FP16_NOTICE)),
    no_effect("split_batches", True, (True,), GLOBAL_BATCH),
    no_effect("convert_image_to", None, (), "files are converted to the tokenizer's channels: 1 is L, 3 RGB, 4 RGBA"),
    to_key("sample_texts_file_path", None, "sample.texts", TEXTS_FILE, "Captions to sample, a line each."),
    to_key("sample_texts", None, "sample.texts", TEXTS, "Captions to sample; the original ignored them."),
    data_set(None),
    declared("dataset_fields", None),
)

MESH_FIELDS = ("vertices", "faces", "face_edges")
MESH_COMMON: tuple[Rule, ...] = (
    data_set(REQUIRED),
    steps("num_train_steps", REQUIRED),
    batch_size(),
    accumulation(REQUIRED),
)
VALIDATION_SET = to_argument("val_dataset", None, "validation", "A data set object; a folder can stand here too.")
VALIDATION_BATCHES = Rule(
    "val_num_batches",
    5,
    "Batches of a validation; given with `grad_accum_every`, multiplied by it, as it was.",
    keys=("eval.batches",),
    kind=FEW,
    times_accumulation=True,
)
SCHEDULE: tuple[Rule, ...] = (
    to_key("scheduler", None, "optim.schedule", SCHEDULER, "torch's CosineAnnealingLR; for others use `lr_schedule`."),
    to_parts("scheduler_kwargs", SCHEDULER_PARTS),
)
MESH_TRACKING = to_key(
    "use_wandb_tracking", False, "log.trackers", FLAG, "`log.project` and `log.name` name the run.", if_true(("wandb",))
)

MESH_AUTOENCODER: tuple[Rule, ...] = (
    model("model", "MeshAutoencoder"),
    *MESH_COMMON,
    VALIDATION_SET,
    validations("val_every", 100),
    VALIDATION_BATCHES,
    rate("learning_rate", 1e-4),
    weight_decay("weight_decay", 0.0),
    clip(None),
    to_parts("ema_kwargs", EMA_PARTS, {"use_foreach": True}),
    *SCHEDULE,
    to_parts("accelerator_kwargs", ENGINE_PARTS),
    to_parts("optimizer_kwargs", OPTIMIZER_PARTS),
    checkpoints("checkpoint_every"),
    out("checkpoint_folder", "./checkpoints"),
    declared("data_kwargs", list(MESH_FIELDS)),
    warmup("warmup_steps", 1000),
    MESH_TRACKING,
)

MESH_TRANSFORMER: tuple[Rule, ...] = (
    model("model", "MeshTransformer"),
    *MESH_COMMON,
    rate("learning_rate", 2e-4),
    weight_decay("weight_decay", 0.0),
    clip(0.5),
    VALIDATION_SET,
    validations("val_every", 1),
    VALIDATION_BATCHES,
    *SCHEDULE,
    to_parts("ema_kwargs", EMA_PARTS),
    to_parts("accelerator_kwargs", ENGINE_PARTS),
    to_parts("optimizer_kwargs", OPTIMIZER_PARTS),
    checkpoints("checkpoint_every"),
    out("checkpoint_folder", "./checkpoints"),
    declared("data_kwargs", [*MESH_FIELDS, "texts"]),
    warmup("warmup_steps", 1000),
    MESH_TRACKING,
)

TRAINERS: Mapping[str, OriginalTrainer] = {
    trainer.name: trainer
    for trainer in (
        OriginalTrainer("MuLaNTrainer", "mulan", "musiclm-pytorch", "0.2.8", 2, False, MULAN),
        OriginalTrainer("SoundStormTrainer", "soundstorm", "soundstorm-pytorch", "0.6.1", 1, False, SOUNDSTORM),
        OriginalTrainer("VQGanVAETrainer", "vqgan", "muse-maskgit-pytorch", "0.3.5", 1, False, VQGAN),
        OriginalTrainer("PhenakiTrainer", "phenaki", "phenaki-pytorch", "0.5.0", 1, False, PHENAKI),
        OriginalTrainer(
            "MeshAutoencoderTrainer", "mesh-autoencoder", "meshgpt-pytorch", "1.8.1", 21, False, MESH_AUTOENCODER
        ),
        OriginalTrainer(
            "MeshTransformerTrainer", "mesh-transformer", "meshgpt-pytorch", "1.8.1", 21, False, MESH_TRANSFORMER
        ),
    )
}


# --- what else there was: methods, files, weights -----------------------------------------------------------

METHODS: tuple[tuple[str, str, str], ...] = (
    ("`train(log_fn)`", "`train(log_fn)`", "`log_fn` gets the figures of each step, and the grids of a sampling step."),
    ("`train(only_train_generator, only_train_critic)`", "`loss.only`", "A key of the run."),
    ("`trainer()`", "`trainer()`", "The same as `train()`."),
    ("`train_step()`", "`train_step()`", "Returns a dictionary of loss parts in every trainer, still on the device."),
    ("`save(path)`, `save(milestone)`, `save(overwrite=)`", "`save()`", "Into `checkpoints/` of the run, by step."),
    ("`load(path)`, `load(milestone)`", "`load(folder)`", "A checkpoint folder of quintet."),
    ("`load(path, restore_optimizer=False)`", "`load(folder, restore_optimizer=False)`", "Weights alone."),
    ("`print(msg)`", "`print(text)`", "Once, on the console and in `log.txt`."),
    ("`log(**values)`", "`log(**figures)`", "A row in `metrics.jsonl` and in every tracker."),
    ("`wait()`", "`wait()`", "For the other processes."),
    ("`device`, `is_main`, `is_local_main`", "`device`, `is_main`, `is_local_main`", "The same."),
    ("`is_distributed`", "`is_distributed`", "The same."),
    ("`steps`, `step`", "`step`", "An integer: steps taken so far."),
    ("`unwrapped_model`", "`recipe.modules`", "The bare modules by name."),
    ("`ema_vae`, `ema_model`, `ema_tokenizer`", "`state.averaged_nets()`", "The averaged modules by name."),
    ("`warmup(step)`", "`lr_schedule(step)`", "The rate of any step, not only of the warm-up."),
    ("`generate(…)`", "the model's `generate`", "Or `quintet sample RUN`."),
    ("`tokenize(…)`", "the tokenizer's `encode`", "Or `quintet encode RUN DATA`."),
    (
        "`wandb_tracking(project, run)`",
        "`log.trackers`, `log.project`, `log.name`",
        "Keys instead of a context manager.",
    ),
    ("`accelerator`", "`engine`", "`torchrun` and `accelerate launch` both start quintet."),
)

FILES: tuple[tuple[str, str], ...] = (
    ("`mulan.N.pt`, `soundstorm.N.pt`, `vae.N.pt`", "`checkpoints/step-N/<module>.safetensors`"),
    ("`vae.N.ema.pt`", "`checkpoints/step-N/ema/<module>.safetensors`"),
    ("`model-K.pt` (Phenaki)", "`checkpoints/step-N/`"),
    ("`mesh-autoencoder.ckpt.K.pt`, `mesh-transformer.ckpt.K.pt`", "`checkpoints/step-N/`"),
    ("`N.ema.png`", "`samples/step-N/reconstructions.png`"),
    ("`N.png` (VQ-GAN)", "`samples/step-N/live-reconstructions.png`"),
    ("`videos.K/<caption>.gif`, `K.png` (Phenaki)", "`samples/step-N/`, captions in `samples.jsonl`"),
    ("optimizer, scheduler and step inside the pickle", "`checkpoints/step-N/optim/`, `meta.json`"),
    ("model configuration inside the pickle, or nowhere", "`config.yaml`, in the run and in each checkpoint"),
)

OLD_WEIGHTS: tuple[tuple[str, str], ...] = (
    (
        "`VQGanVAE`",
        "Pixels enter and leave as 2 x 2 blocks, and residual blocks and quantizers are others; the discriminator is a "
        "module of its own.",
    ),
    (
        "`MuLaN`",
        "The audio tower hears log-mel spectrograms where the original heard raw power: its weights do not fit.",
    ),
    (
        "`SoundStorm`",
        "Masking, embedding of levels and heads differ, and the codes are those of the codec it was trained with.",
    ),
    (
        "`Phenaki`, `CViViT`",
        "The original's tokenizer is not causal in time, by a defect of its position module; one that is cannot use "
        "its weights, and a generator is of use with its own tokenizer only.",
    ),
    (
        "`MeshAutoencoder`",
        "Angles and areas of faces are measured and binned in another way, so the embeddings mean other things.",
    ),
    (
        "`MeshTransformer`",
        "It speaks the codes of one `MeshAutoencoder`; with another tokenizer its vocabulary has another meaning.",
    ),
)
