"""The cases: data sets, trainings at `debug` size, and the commands that use the trained models.

Keys and options are written in the vocabulary of the working tree; `keys.py` translates them for the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from identity import inputs

GOLDEN = Path(__file__).parents[1] / "faults" / "golden"
"""Small trained models that never change: tokenizers and conditions of the generators."""

DATA = "{data}"
"""In a command: the folder of the case's data set."""

COMMON = (
    *("--preset", "debug", "train.steps=20", "log.every=1", "log.trackers=[]", "engine.threads=1"),
    *("data.num_workers=0", "data.cache_dir=cache", "data.validation_fraction=0.25"),
)

PRECISIONS = ("fp32", "fp64")


@dataclass(frozen=True)
class Case:
    """Commands that one side runs one after the other in a folder of its own."""

    name: str
    recipe: str
    """The recipe that is trained; empty for a data set."""
    data: str
    """The data set that is trained on, or that is made."""
    commands: tuple[tuple[str, ...], ...]
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    """Files that the commands read, by name."""
    processes: int = 1
    """Processes of the training."""


@dataclass(frozen=True)
class Recipe:
    """How the cases of a recipe are made."""

    data: str
    uses: tuple[tuple[str, ...], ...]
    """What is done with the model of each precision, apart from `eval`."""
    brief_use: tuple[str, ...]
    """What is done with the model of a variant, apart from `eval`."""
    links: tuple[str, ...] = ()
    """Options that name the models the recipe builds on."""
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further keys by name; a name that starts with `two-processes` is trained by two processes."""
    before: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Commands that a variant's training needs, by the variant's name."""
    own_use: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Uses instead of `brief_use`, by the variant's name."""


DATA_SETS: Mapping[str, tuple[str, ...]] = {
    "shapes": ("--num", "120", "--size", "32"),
    "motions": ("--num", "40", "--size", "32"),
    "sounds": ("--num", "24"),
    "solids": ("--num", "24"),
}

TEXT = ("--text", "a red circle")
SOUND_TEXT = ("--text", "a rising flute")
MESH_TEXT = ("--text", "a tall table")


def hub(recipe: str) -> str:
    return str(GOLDEN / f"{recipe}-format-1" / "hub")


RECIPES: Mapping[str, Recipe] = {
    "vqgan": Recipe(
        data="shapes",
        uses=(("sample", "--num", "4"), ("encode", DATA), ("decode", "encode-1")),
        brief_use=("encode", DATA),
        variants={
            "lfq": ("model.quantizer=lfq", "train.grad_accum_steps=2"),
            "fsq": ("model.quantizer=fsq", "loss.lecam=0.01", "data.random_crop=true"),
            "residual": (
                "model.num_quantizers=2",
                "model.codebook_size=16",
                "optim.name=lion",
                "optim.max_grad_norm=0.5",
            ),
            "revival": (
                *("model.image_size=16", "model.dim=8", "loss.discriminator=false", "train.batch_size=4"),
                *("train.steps=260", "eval.every=130", "sample.every=130", "checkpoint.every=130"),
            ),
            "workers": (
                "data.num_workers=2",
                "train.steps=8",
                "engine.channels_last=false",
                "loss.adaptive_weight=false",
            ),
            "two-processes": ("train.grad_accum_steps=2",),
        },
    ),
    "muse": Recipe(
        data="shapes",
        links=("--tokenizer", hub("vqgan")),
        uses=(
            ("sample", *TEXT, "--text", "two blue squares", "--negative", "green", "--num", "2"),
            ("sample", *TEXT, "--image", f"{DATA}/images/00000.png", "--mask", "mask.png", "--num", "2"),
        ),
        brief_use=("sample", *TEXT, "--num", "2", "sample.choice_temperature=3", "sample.guidance_scale=2"),
        inputs={"mask.png": inputs.half_mask(32)},
        variants={
            "critic": ("loss.critic=true", "train.grad_accum_steps=2", "optim.name=muon"),
            "self-critic": ("model.self_critic=true", "model.self_conditioning=true", "model.rotary=true"),
            "merged": (
                "model.code_patch_size=[2,2]",
                "loss.codebook_smoothing=0.5",
                "loss.label_smoothing=0",
                "model.dropout=0.1",
            ),
            "super-resolution": ("--base", hub("muse")),
            "augmented": (
                "data.variants=2",
                "data.flip=true",
                "model.text=words",
                "loss.cond_drop_prob=0.3",
                "optim.max_grad_norm=0.5",
            ),
            "bf16": ("engine.precision=bf16",),
            "two-processes": ("loss.critic=true", "train.grad_accum_steps=2"),
            "two-processes-sharded": ("loss.critic=true", "engine.fsdp=true", "engine.activation_checkpointing=true"),
        },
    ),
    "mulan": Recipe(
        data="sounds",
        uses=(("sample", "--num", "4"), ("embed", "--audio", DATA, *SOUND_TEXT, "--text", "slow drums")),
        brief_use=("embed", "--audio", DATA, *SOUND_TEXT),
        variants={
            "quantizer": ("model.num_quantizers=2", "model.codebook_size=8", "train.grad_accum_steps=2"),
            "sigmoid": ("model.contrastive_loss=sigmoid", "model.intermediate_losses=1", "optim.name=lion"),
            "bf16": ("engine.precision=bf16",),
            "decoupled": ("model.contrastive_loss=decoupled", "model.audio.dropout=0.1", "model.text.dropout=0.1"),
            "two-processes": ("train.grad_accum_steps=2",),
        },
    ),
    "cvivit": Recipe(
        data="motions",
        uses=(("sample", "--num", "4"), ("encode", DATA), ("decode", "encode-1")),
        brief_use=("encode", DATA),
        variants={
            "lfq": ("model.quantizer=lfq", "train.grad_accum_steps=2", "data.random_crop=true", "data.flip=true"),
            "fsq": ("model.quantizer=fsq", "model.filter_dim=8", "loss.frame_difference=0.5"),
            "shortcut": ("model.shortcut=true", "model.num_quantizers=2", "loss.reconstruction=l1"),
            "two-processes": (),
        },
    ),
    "phenaki": Recipe(
        data="motions",
        links=("--tokenizer", hub("cvivit")),
        uses=(
            ("sample", *TEXT, "--negative", "green", "--num", "2"),
            ("sample", *TEXT, "--prime", f"{DATA}/videos/00000.webp", "--frames", "9", "--num", "1"),
            ("sample", "--scenes", "scenes.txt", "--num", "1"),
            ("sample", *TEXT, "--images", "--num", "2"),
        ),
        brief_use=("sample", *TEXT, "--frames", "9", "--num", "2"),
        inputs={"scenes.txt": inputs.SCENES},
        variants={
            "bf16": ("engine.precision=bf16",),
            "frame-order": ("loss.frame_autoregressive=true", "sample.later_steps=2"),
            "critic": ("loss.critic=true", "train.grad_accum_steps=2", "optim.name=muon"),
            "self-critic": ("model.self_critic=true", "model.self_conditioning=true", "loss.continuation_prob=0.5"),
            "merged": (
                "model.code_patch_size=[1,2,2]",
                "loss.codebook_smoothing=0.5",
                "loss.label_smoothing=0",
                "data.stride=2",
            ),
            "merged-frame-order": (
                "model.code_patch_size=[1,2,2]",
                "loss.frame_autoregressive=true",
                "model.dropout=0.1",
            ),
            "two-processes": ("model.self_critic=true", "model.self_conditioning=true"),
        },
    ),
    "audio-codec": Recipe(
        data="sounds",
        uses=(("sample", "--num", "4"), ("encode", DATA), ("decode", "encode-1")),
        brief_use=("encode", DATA),
        variants={
            "lfq": (
                "model.quantizer=lfq",
                "model.causal=true",
                "loss.gan_loss=least-squares",
                "train.grad_accum_steps=2",
            ),
            "fsq": ("model.quantizer=fsq", "model.activation=elu", "model.num_quantizers=2", "optim.max_grad_norm=0.5"),
            "transform": ("model.transform=64", "model.strides=[]", "model.latent_dim=null"),
            "two-processes": (),
        },
    ),
    "soundstorm": Recipe(
        data="sounds",
        links=("--tokenizer", hub("audio-codec"), "--condition", hub("mulan")),
        uses=(
            ("sample", *SOUND_TEXT, "--num", "2", "--seconds", "0.5", "sample.guidance_scale=2"),
            ("sample", *SOUND_TEXT, "--num", "1", "--prompt", "prompt.wav", "--seconds", "0.8"),
        ),
        brief_use=("sample", *SOUND_TEXT, "--num", "2", "--seconds", "0.5"),
        inputs={"prompt.wav": inputs.tone(0.3)},
        variants={
            "self-critic": ("model.self_critic=true", "model.self_conditioning=true", "train.grad_accum_steps=2"),
            "captions": (
                "loss.caption_cond_prob=0.5",
                "model.condition_form=quantized",
                "loss.mask_span=3",
                "optim.name=muon",
            ),
            "dropout": ("model.dropout=0.1", "loss.coarse_bias=2", "loss.cond_drop_prob=0.3"),
            "semantic": ("data.semantic_tokens=encode-tokens", "model.self_conditioning=true"),
            "two-processes": ("optim.name=lion",),
        },
        before={
            "semantic": ("encode", hub("mulan"), DATA, "--layer", "1", "--clusters", "8", "--out", "encode-tokens"),
        },
        own_use={"semantic": ("sample", "--num", "2")},
    ),
    "mesh-autoencoder": Recipe(
        data="solids",
        uses=(("sample", "--num", "4"), ("encode", DATA), ("decode", "encode-1")),
        brief_use=("encode", DATA),
        variants={
            "vq": ("model.quantizer=vq", "train.grad_accum_steps=2"),
            "fsq": (
                *("model.quantizer=fsq", "model.encoder_attention=1", "model.decoder_attention=1"),
                *("model.attention_head_dim=8", "model.dropout=0.1", "optim.max_grad_norm=0.5"),
            ),
            "two-processes": ("model.quantizer=vq",),
        },
    ),
    "mesh-transformer": Recipe(
        data="solids",
        links=("--tokenizer", "coordinates"),
        uses=(
            ("sample", *MESH_TEXT, "--num", "2", "sample.guidance_scale=2"),
            ("sample", *MESH_TEXT, "--num", "1", "--mesh", "part.obj", "sample.grammar=strict"),
        ),
        brief_use=("sample", *MESH_TEXT, "--num", "2"),
        inputs={"part.obj": inputs.MESH},
        variants={
            "bf16": ("engine.precision=bf16",),
            "flat": ("model.kind=flat", "loss.window_faces=16", "train.grad_accum_steps=2", "optim.name=muon"),
            "window": ("loss.window_faces=16", "data.variants=2", "model.dropout=0.1"),
            "words": ("model.text=words", "model.face_buckets=0", "engine.activation_checkpointing=true"),
            "two-processes": ("loss.window_faces=16", "engine.fsdp=true"),
        },
    ),
}


def all_cases() -> list[Case]:
    """Every case; the data sets come first, because the others read them."""
    cases = [data_case(name) for name in DATA_SETS]
    for name, recipe in RECIPES.items():
        cases.extend(precision_case(name, recipe, precision) for precision in PRECISIONS)
        cases.extend(variant_case(name, recipe, variant) for variant in recipe.variants)
    return cases


def data_case(name: str) -> Case:
    return Case(f"data-{name}", "", name, (("data", "make", name, "files", *DATA_SETS[name]),))


def precision_case(name: str, recipe: Recipe, precision: str) -> Case:
    keys = (f"engine.precision={precision}",)
    return trained_case(f"{name}-{precision}", name, recipe, keys, recipe.uses)


def variant_case(name: str, recipe: Recipe, variant: str) -> Case:
    uses = (recipe.own_use.get(variant, recipe.brief_use),)
    made = trained_case(f"{name}-{variant}", name, recipe, recipe.variants[variant], uses)
    before = (recipe.before[variant],) if variant in recipe.before else ()
    return replace(made, commands=(*before, *made.commands), processes=2 if variant.startswith("two") else 1)


def trained_case(
    case: str, name: str, recipe: Recipe, words: tuple[str, ...], uses: tuple[tuple[str, ...], ...]
) -> Case:
    train = ("train", name, DATA, "--out", "run", *recipe.links, *COMMON, *words)
    commands = (train, ("eval", "run"), *(use_command(number, use) for number, use in enumerate(uses)))
    return Case(case, name, recipe.data, commands, recipe.inputs)


def use_command(number: int, use: tuple[str, ...]) -> tuple[str, ...]:
    """The command with the model and its output folder put in; outputs are numbered, because verbs come twice."""
    verb, *words = use
    out = f"{verb}-{number}" + (".npz" if verb == "embed" else "")
    seed = ("--seed", "0") if verb == "sample" else ()
    return (verb, "run", *words, *seed, "--out", out)


def chosen_cases(recipes: list[str]) -> list[Case]:
    """The cases of some recipes with their data sets; of all recipes if none is named."""
    wanted = [case for case in all_cases() if case.recipe and (not recipes or case.recipe in recipes)]
    sets = {case.data for case in wanted}
    return [data_case(name) for name in DATA_SETS if name in sets] + wanted
