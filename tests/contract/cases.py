"""How each recipe is tried in seconds. A new recipe joins all contract tests by one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import TINY, TWELVE_STEPS
from quintet.common.batch import Item
from quintet.nn.quantize.vector import VectorQuantizer
from quintet.training.task import Task

GOLDEN = Path(__file__).parents[1] / "faults" / "golden"
"""Small trained models that are kept for ever."""

TINY_MUSE = (
    *("--preset", "debug", f"tokenizer={GOLDEN / 'vqgan-format-1' / 'hub'}"),
    *("model.dim=16", "model.depth=1", "model.text_dim=16", "model.text_length=32"),
    *("eval.num_generated=4", "sample.steps=2", "data.allow_missing_captions=true"),
    *TWELVE_STEPS,
)
"""A transformer of a few thousand weights over grids of 4 x 4 codes."""

TINY_MESH_AUTOENCODER = (
    *("--preset", "debug", "model.bins=32", "model.coordinate_dim=8", "model.angle_dim=4", "model.area_dim=4"),
    *("model.normal_dim=4", "model.encoder_dims=[16,16]", "model.code_dim=8", "model.codebook_size=256"),
    "model.decoder_dims=[16,16]",
    *TWELVE_STEPS,
)
"""A mesh tokenizer of ten thousand weights."""

TINY_MESH_TRANSFORMER = (
    *("--preset", "debug", "tokenizer=coordinates:32", "model.dim=16", "model.depth=1", "model.text_dim=16"),
    *("model.text_length=32", "eval.num_generated=4", "sample.max_faces=4", "data.allow_missing_captions=true"),
    *TWELVE_STEPS,
)
"""A transformer of a few thousand weights over the coordinates of faces."""

POINTS = ("model.condition=points", "data.point_crop=0.3")
"""A mesh transformer that is also conditioned on point clouds, with all random choices of these."""

TINY_MULAN = (
    *(
        "--preset",
        "debug",
        "data.seconds=0.5",
        "model.audio.sample_rate=8000",
        "model.audio.n_fft=256",
        "model.audio.hop_length=80",
    ),
    *("model.audio.n_mels=16", "model.audio.patch_size=8", "model.audio.frequency_mask=8"),
    *("model.audio.dim=16", "model.audio.head_dim=8", "model.text.dim=16", "model.text.head_dim=8"),
    *("model.latent_dim=8", "data.max_windows=2", 'eval.zero_shot_labels=["flute","violin","kick drum"]'),
    *TWELVE_STEPS,
)
"""Two towers of some thousand weights each."""

TINY_CVIVIT = (
    *("--preset", "debug", "model.image_size=16", "model.dim=16", "model.head_dim=8", "model.quantizer=fsq"),
    *("loss.discriminator_dim=8", "loss.discriminator_start=4", "loss.discriminator_ramp=4"),
    *TWELVE_STEPS,
)
"""A tokenizer of video of some thousand weights with an active discriminator."""

TINY_PHENAKI = (
    *("--preset", "debug", f"tokenizer={GOLDEN / 'cvivit-format-1' / 'hub'}"),
    *("model.dim=16", "model.depth=1", "model.text_dim=16", "model.text_length=32"),
    *("eval.num_generated=4", "sample.steps=2"),
    *TWELVE_STEPS,
)
"""A transformer of a few thousand weights over three latent frames of 2 x 2 codes."""

TINY_AUDIO_CODEC = (
    *("--preset", "debug", "data.seconds=0.25", "eval.seconds=0.5", "model.sample_rate=8000", "model.strides=[4,4,2]"),
    *(
        "model.dim=4",
        "model.latent_dim=8",
        "model.num_quantizers=2",
        "model.codebook_size=32",
        "loss.mel_windows=[256,64]",
    ),
    *("loss.stft_windows=[128]", "loss.discriminator_start=4", "loss.discriminator_ramp=4"),
    *TWELVE_STEPS,
)
"""A codec of some thousand weights with active discriminators."""

BY_A_TRANSFORM = ("model.transform=32", "model.strides=[]", "model.latent_dim=null", "model.dim=8")
"""The same codec on loudness and phase of each frequency."""

STEREO = (*BY_A_TRANSFORM, "model.channels=2", "model.num_quantizers=4")
"""The same in stereo."""

TINY_SOUNDSTORM = (
    *("--preset", "debug", f"tokenizer={GOLDEN / 'audio-codec-format-1' / 'hub'}"),
    *(f"condition={GOLDEN / 'mulan-format-1' / 'hub'}", "data.seconds=0.3", "model.dim=16", "model.depth=1"),
    *("model.head_dim=8", "eval.num_generated=4", "sample.steps=[2,1]"),
    *TWELVE_STEPS,
)
"""A conformer of some thousand weights over 75 frames of two levels."""

Train = Callable[..., Path]
"""A tiny training of a recipe by the command, with more words; returns its folder."""


def spoilt_pictures(item: Item, value: float) -> Item:
    return {**item, "images": torch.full(item["images"].shape, value)}


def spoilt_meshes(item: Item, value: float) -> Item:
    return {**item, "vertices": torch.full(item["vertices"].shape, value)}


def spoilt_sounds(item: Item, value: float) -> Item:
    return {**item, "wavs": torch.full(item["wavs"].shape, value)}


def spoilt_videos(item: Item, value: float) -> Item:
    return {**item, "videos": torch.full(item["videos"].shape, value)}


def unchanged(recipe: Task[Any]) -> None:
    pass


def hasten_the_death_of_codes(recipe: Task[Any]) -> None:
    """Codes that nothing is assigned to are dead by step 50, at which the dead are revived."""
    for part in recipe.modules[recipe.pipeline_class.exported].modules():
        if isinstance(part, VectorQuantizer):
            part.decay = 0.9


SHARDED = ("engine.fsdp=true",)
"""In one process it is the same as none."""


@dataclass(frozen=True)
class Case:
    """What the contract tests have to know about a recipe."""

    data: str
    """The fixture that gives the folder to train on."""
    tiny: tuple[str, ...]
    """Words that make the smallest training: a preset, a small model without dropout, and `TWELVE_STEPS`."""
    additive: tuple[str, ...] | None
    """Keys that leave no term in the loss that depends on how a batch is split into micro-batches; None: no such keys,
    because the loss is a mean over tokens whose number differs from item to item."""
    worlds: Mapping[str, tuple[str, ...]]
    """Trainings in which two processes must agree with one in everything, in fp64."""
    brief: tuple[str, ...]
    """Keys of a training of so few steps that rounding in fp32 cannot grow: there the losses must agree."""
    poison: Callable[[Item, float], Item] | None
    """Puts a non-finite value into an item; None: the item has only integers, or values that may not reach the loss."""
    resumed: tuple[str, ...] = ()
    """Further keys, each of which changes what a resumed run has to restore."""
    faults: tuple[str, ...] = ()
    """Further keys of the training that faults are tried on: those with the most state to lose."""
    golden: tuple[str, ...] = ()
    """Further keys of the golden run, which is kept in the repository and should be small."""
    reshaped: str = "model.dim=24"
    """A key that gives the weights another shape."""
    on_device: tuple[str, ...] = ()
    """Further keys of the training on another device."""
    samples: tuple[tuple[str, ...], ...] = ()
    """Words of `quintet sample`, in turn; names in braces are files that the test makes."""
    prepare: Callable[[Task[Any]], None] = unchanged
    """Changes a new task so that rare events happen within a few steps."""
    tokenizer: bool = False
    opens_media: bool = True
    """Whether training opens the files itself; otherwise it reads codes that were made at the start."""

    @property
    def links(self) -> tuple[str, ...]:
        """The command-line options of the frozen models of the recipe."""
        return tuple(word for word in self.tiny if word.startswith(("tokenizer=", "condition=")))


CASES: Mapping[str, Case] = {
    "vqgan": Case(
        data="pictures",
        tiny=TINY,
        additive=("loss.adaptive_weight=false", "model.quantizer=fsq"),
        worlds={
            "fsq": ("model.quantizer=fsq", "loss.lecam=0.01"),
            "lfq": ("model.quantizer=lfq", "train.grad_accum_steps=2"),
            "vq": (
                "model.quantizer=vq",
                "train.grad_accum_steps=2",
                "train.steps=52",
                "checkpoint.every=25",
                "eval.every=26",
            ),
            "residual vq": ("model.quantizer=vq", "model.num_quantizers=2", "model.codebook_size=16"),
            "shortcut": (
                "model.shortcut=true",
                "model.quantizer=vq",
                "model.codebook_size=16",
                "optim.name=muon",
                "optim.muon_kernels=true",
            ),
        },
        brief=("train.steps=4", "loss.discriminator_start=2"),
        poison=spoilt_pictures,
        resumed=(
            "model.quantizer=vq",
            "optim.name=lion optim.max_grad_norm=0.5",
            "optim.name=muon optim.muon_kernels=true optim.discriminator.name=adamw model.shortcut=true",
            "ema.every=2 ema.start=3",
        ),
        faults=("model.quantizer=vq",),
        golden=("model.codebook_size=32",),
        prepare=hasten_the_death_of_codes,
        tokenizer=True,
    ),
    "muse": Case(
        data="pictures",
        tiny=TINY_MUSE,
        additive=None,
        worlds={
            "plain": (),
            "critic": ("loss.critic=true", "train.grad_accum_steps=2", "optim.name=muon"),
            "self-critic": ("model.self_critic=true", "train.grad_accum_steps=2"),
            "sharded": ("loss.critic=true", "train.grad_accum_steps=2", *SHARDED),
            "super-resolution": (f"base={GOLDEN / 'muse-format-1' / 'hub'}",),
        },
        brief=("train.steps=4",),
        poison=None,
        resumed=(
            "loss.critic=true",
            "model.self_critic=true model.self_conditioning=true",
            "data.variants=2 data.flip=true optim.name=muon",
            f"base={GOLDEN / 'muse-format-1' / 'hub'}",
        ),
        faults=("loss.critic=true",),
        on_device=("loss.critic=true", "model.self_conditioning=true", "optim.name=muon"),
        samples=(("--text", "a red circle"), ("--text", "a red circle", "--image", "{medium}", "--mask", "{mask}")),
        opens_media=False,
    ),
    "mulan": Case(
        data="sounds",
        tiny=TINY_MULAN,
        additive=(),
        worlds={
            "softmax": (),
            "accumulated": ("train.grad_accum_steps=2", "model.num_quantizers=2", "model.codebook_size=8"),
            "sigmoid": ("model.contrastive_loss=sigmoid", "model.intermediate_losses=1", "optim.name=lion"),
        },
        brief=("train.steps=4",),
        poison=spoilt_sounds,
        reshaped="model.latent_dim=24",
        resumed=(
            "model.num_quantizers=2 model.codebook_size=8 train.grad_accum_steps=2",
            "model.contrastive_loss=decoupled model.audio.dropout=0.1 model.text.dropout=0.1",
        ),
        faults=("model.num_quantizers=2", "model.codebook_size=8"),
    ),
    "cvivit": Case(
        data="videos",
        tiny=TINY_CVIVIT,
        additive=("model.quantizer=fsq",),
        worlds={
            "fsq": ("model.quantizer=fsq",),
            "lfq": ("model.quantizer=lfq", "train.grad_accum_steps=2"),
            "vq": (
                "model.quantizer=vq",
                "train.grad_accum_steps=2",
                "train.steps=52",
                "checkpoint.every=25",
                "eval.every=26",
            ),
            "prediction": (
                *("model.shortcut=true", "model.temporal_prediction=true"),
                *("model.quantizer=vq", "model.codebook_size=16"),
            ),
        },
        brief=("train.steps=4", "loss.discriminator_start=2"),
        poison=spoilt_videos,
        resumed=(
            "model.quantizer=vq data.flip=true data.random_crop=true "
            "model.shortcut=true model.temporal_prediction=true",
            "loss.reconstruction=l1 data.stride=2",
        ),
        faults=("model.quantizer=vq",),
        golden=("model.codebook_size=32",),
        on_device=("model.shortcut=true", "model.quantizer=vq", "model.codebook_size=16"),
        prepare=hasten_the_death_of_codes,
        tokenizer=True,
    ),
    "phenaki": Case(
        data="videos",
        tiny=TINY_PHENAKI,
        additive=None,
        worlds={
            "plain": (),
            "critic": ("loss.critic=true", "train.grad_accum_steps=2", "optim.name=muon"),
            "self-critic": ("model.self_critic=true", "model.self_conditioning=true", "train.grad_accum_steps=2"),
            "sharded": ("model.self_critic=true", "model.self_conditioning=true", "optim.name=muon", *SHARDED),
            "primed": ("loss.continuation_prob=0.9", "data.frames=17", "data.variants=2", "model.text=none"),
        },
        brief=("train.steps=4",),
        poison=None,
        resumed=(
            "loss.critic=true",
            "model.self_critic=true model.self_conditioning=true loss.continuation_prob=0.5",
            "data.variants=2 data.flip=true data.stride=2 optim.name=muon model.dropout=0.1",
        ),
        faults=("loss.critic=true",),
        golden=("eval.num_generated=0",),  # one code that tips over elsewhere makes another clip
        on_device=("model.self_critic=true", "optim.name=lion"),
        samples=(
            ("--text", "a red circle"),
            ("--text", "a red circle", "--images"),
            ("--text", "a red circle", "--prime", "{medium}"),
            ("--scenes", "{scenes}"),
        ),
        opens_media=False,
    ),
    "audio-codec": Case(
        data="sounds",
        tiny=TINY_AUDIO_CODEC,
        additive=("model.quantizer=fsq", "model.codebook_size=256"),
        worlds={
            # A hinge gives the last bias a gradient of nothing, as long as it says yes and no equally little, and Adam
            # would enlarge what rounding makes of that.
            "fsq": ("model.quantizer=fsq", "model.codebook_size=256", "data.seconds=1.6", "optim.eps=1e-6"),
            "lfq": (
                "model.quantizer=lfq",
                "model.causal=true",
                "loss.gan_loss=least-squares",
                "train.grad_accum_steps=2",
            ),
            "transform": (*BY_A_TRANSFORM, "optim.eps=1e-6", "train.grad_accum_steps=2"),
            "vq": (
                "optim.eps=1e-6",
                "train.grad_accum_steps=2",
                "train.steps=52",
                "checkpoint.every=25",
                "eval.every=26",
                "model.codebook_size=256",  # more codes than a step has frames: some die
            ),
        },
        brief=("train.steps=4", "loss.discriminator_start=2"),
        poison=spoilt_sounds,
        resumed=(
            "model.quantizer=fsq model.codebook_size=256 model.activation=elu",
            "model.causal=true model.num_quantizers=1 optim.max_grad_norm=0.5",
            " ".join(BY_A_TRANSFORM),
            " ".join(STEREO),
        ),
        golden=("eval.seconds=4",),
        prepare=hasten_the_death_of_codes,
        tokenizer=True,
    ),
    "soundstorm": Case(
        data="sounds",
        tiny=TINY_SOUNDSTORM,
        additive=None,
        worlds={
            "plain": (),
            "self-critic": ("model.self_critic=true", "model.self_conditioning=true", "train.grad_accum_steps=2"),
            "sharded": ("model.self_critic=true", "model.self_conditioning=true", "optim.name=lion", *SHARDED),
            "captions": (
                "loss.caption_cond_prob=0.5",
                "model.condition_form=quantized",
                "loss.mask_span=3",
                "optim.name=muon",
            ),
            "untold": ("condition=null", "loss.coarse_bias=2", "train.grad_accum_steps=2"),
            "words": ("condition=null", "model.text=words", "model.text_dim=16", "train.grad_accum_steps=2"),
        },
        brief=("train.steps=4",),
        poison=None,
        resumed=(
            "model.self_critic=true model.self_conditioning=true optim.name=muon",
            "condition=null model.text=words model.text_dim=16 data.windows=2 optim.name=muon",
            "loss.caption_cond_prob=0.5 model.dropout=0.1",
            "condition=null",
        ),
        faults=("model.self_critic=true",),
        golden=("eval.num_generated=0",),  # one code that tips over elsewhere makes another clip
        samples=(("--text", "a low note"), ("--text", "a low note", "--prompt", "{clip}")),
        opens_media=False,
    ),
    "mesh-autoencoder": Case(
        data="meshes",
        tiny=TINY_MESH_AUTOENCODER,
        additive=None,
        worlds={
            "lfq": ("train.grad_accum_steps=2",),
            "vq": ("model.quantizer=vq", "train.steps=52", "checkpoint.every=25", "eval.every=26"),
            "fsq": ("model.quantizer=fsq", "model.encoder_attention=1", "model.attention_head_dim=8"),
        },
        brief=("train.steps=4",),
        poison=spoilt_meshes,
        reshaped="model.coordinate_dim=16",
        resumed=(
            "model.quantizer=vq",
            "model.quantizer=fsq model.encoder_attention=1 model.decoder_attention=1 model.attention_head_dim=8",
            "model.dropout=0.1 optim.max_grad_norm=0.5",
        ),
        faults=("model.quantizer=vq",),
        golden=("model.codebook_size=32",),
        prepare=hasten_the_death_of_codes,
        tokenizer=True,
    ),
    "mesh-transformer": Case(
        data="meshes",
        tiny=TINY_MESH_TRANSFORMER,
        additive=None,
        worlds={
            "plain": (),
            "flat": ("model.kind=flat", "loss.window_faces=16", "train.grad_accum_steps=2", "optim.name=muon"),
            "woven": ("tokenizer=woven:32", "train.grad_accum_steps=2"),
            "window": ("loss.window_faces=16", "data.variants=2", "train.grad_accum_steps=2", *POINTS),
            "sharded": (
                *POINTS,
                "loss.window_faces=16",
                "train.grad_accum_steps=2",
                "engine.activation_checkpointing=true",
                *SHARDED,
            ),
        },
        brief=("train.steps=4",),
        poison=None,
        resumed=(
            "model.kind=flat loss.window_faces=16",
            "model.dropout=0.1 data.variants=2 optim.name=muon",
            f"model.text=none model.face_buckets=0 loss.window_faces=16 {' '.join(POINTS)}",
            f"tokenizer=woven:32 data.variants=2 {' '.join(POINTS)}",
            "tokenizer=woven:32 loss.window_faces=4",
        ),
        golden=("eval.num_generated=0",),  # one token that tips over elsewhere makes another mesh
        on_device=(f"tokenizer={GOLDEN / 'mesh-autoencoder-format-1' / 'hub'}", *POINTS),
        samples=(("--text", "a table"), ("--text", "a table", "--mesh", "{face}"), ("--points", "{cloud}")),
        opens_media=False,
    ),
}


def case_of(recipe: str) -> Case:
    if recipe not in CASES:
        pytest.fail(f"recipe '{recipe}' is registered but has no entry in tests/contract/cases.py")
    return CASES[recipe]
