"""The four demos: the stages of each medium, and their metrics with targets.

image: images of shapes; a VQ-GAN, resumed once; Muse, text to image.
video: clips of moving shapes; a C-ViViT; Phenaki, text to video, with one video of two scenes.
audio: synthesized clips; a MuLaN, which finds clips by text; an audio codec; SoundStorm, text to audio.
mesh: low-poly solids; a mesh transformer on woven meshes, text to mesh.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from quintet.demos.demo import Demo, Metric, Row, Schedule, Stage, verdict_of
from quintet.demos.script import DemoRun
from quintet.synthetic.sounds import DRUMS, NOISES, TIMBRES

ALL_CORES = ("engine.launch=auto",)
"""One process per core: with small models, threads share a step badly."""


def ema_decay(steps: int) -> float:
    """The decay that averages the weights over about the last twentieth of a run, and at least over two steps."""
    return max(0.5, round(1 - 20 / steps, 4))


# --- image -------------------------------------------------------------------------------------------------------

VQGAN = Stage(
    name="tokenizer",
    recipe="vqgan",
    quick=Schedule(steps=1500, every=750),
    full=Schedule(steps=3000, every=1500),
    fraction=0.3,
    steps_per_second=20.0,
    # The discriminator is active for the last sixth.
    keys=lambda steps, num_judged: (f"loss.discriminator_start={steps * 5 // 6}", *ALL_CORES),
    interrupted=True,
    metrics=(
        Metric("psnr", "PSNR of unseen images", full=30.0, unit="dB"),
        Metric("codebook_usage", "codes in use", full=0.5),
    ),
)
MUSE = Stage(
    name="muse",
    recipe="muse",
    quick=Schedule(steps=1350, every=675),
    full=Schedule(steps=4900, every=1225),
    fraction=0.7,
    steps_per_second=6.0,
    frozen=(("tokenizer", "tokenizer"),),
    keys=lambda steps, num_judged: (f"eval.num_generated={num_judged}", f"ema.decay={ema_decay(steps)}", *ALL_CORES),
    metrics=(
        Metric("match_colour", "color matches unseen captions", quick=0.95, full=0.98),
        Metric("match_position", "position matches", quick=0.95, full=0.98),
        Metric("match_shape", "shape matches", quick=0.8, full=0.95),
        Metric("match_withheld", "color and shape of withheld pairs match", quick=0.5, full=0.85),
    ),
)
IMAGE = Demo(
    medium="image",
    data="shapes",
    quick_num=24_000,
    full_num=48_000,
    quick_num_judged=192,
    full_num_judged=500,
    minutes=25,
    stages=(VQGAN, MUSE),
    texts=(
        "a large red heart in the centre",
        "a small blue star at the top left and a large yellow ring at the bottom right",
        "a green triangle on the left",
        "a black cross on the right and a pink circle on the left",
    ),
    num_per_text=8,
    samples_folder="drawn",
    outputs="OUT/drawn/grid.png (one row per text), OUT/tokenizer/samples/, OUT/muse/samples/",
    next_commands=(
        'quintet sample OUT/muse --text "a purple diamond at the top" --out out/',
        "quintet train vqgan YOUR_FOLDER",
    ),
)

# --- video -------------------------------------------------------------------------------------------------------

SCENES = ("a red circle moves right", "a red circle moves left")
MAX_SCENE_CHANGE = 3.0
"""Change of pixels from one scene to the next, as a multiple of the median change from frame to frame."""

CVIVIT = Stage(
    name="tokenizer",
    recipe="cvivit",
    quick=Schedule(steps=600, every=300),
    full=Schedule(steps=2000, every=1000),
    fraction=0.25,
    steps_per_second=6.0,
    keys=lambda steps, num_judged: ALL_CORES,
    metrics=(
        Metric("psnr", "PSNR of unseen clips", full=26.0, unit="dB"),
        Metric("codebook_usage", "codes in use"),
    ),
)
PHENAKI = Stage(
    name="phenaki",
    recipe="phenaki",
    # Motions are learned long before shapes, so nearly all of the short time goes to first frames.
    quick=Schedule(
        steps=980,
        every=980,
        keys=(
            "train.batch_size=192",
            "optim.muon_lr=0.017",
            "optim.lr=0.005",
            "loss.first_frame_prob=0.95",
            "sample.temperature=0.1",
            "eval.batch_size=96",
            "eval.batches=4",
        ),
    ),
    full=Schedule(steps=5000, every=1250),
    fraction=0.75,
    steps_per_second=4.0,
    frozen=(("tokenizer", "tokenizer"),),
    keys=lambda steps, num_judged: (f"eval.num_generated={num_judged}", f"ema.decay={ema_decay(steps)}", *ALL_CORES),
    metrics=(
        Metric("match_colour", "color matches unseen captions", quick=0.9, full=0.98),
        Metric("match_motion", "motion matches", quick=0.85, full=0.98),
        Metric("match_shape", "shape matches", quick=0.7, full=0.95),
        Metric("match_withheld", "shape and motion of withheld pairs match", full=0.88),
    ),
)


def generate_scenes(run: DemoRun) -> list[Row]:
    """Generate videos of two scenes, and measure the change from one scene to the next."""
    story = run.out / "story"
    if not (story / "samples.jsonl").exists():
        scenes = story.with_suffix(".txt")
        scenes.write_text("\n".join(SCENES) + "\n", encoding="utf-8")
        options = ("--scenes", str(scenes), "--num", "4", "--out", str(story))
        run.timed("samples", "sample", str(run.out / "phenaki"), *options)
    changes = scene_changes(story, run.out / "phenaki")
    measured = ", ".join(f"{change:.1f}" for change in changes)
    label = "change between two scenes, relative to the median"
    if run.length != "full":
        return [Row("story", label, measured)]
    reached = bool(changes) and all(change < MAX_SCENE_CHANGE for change in changes)
    return [Row("story", label, measured, f"< {MAX_SCENE_CHANGE:g}", verdict_of(reached))]


def scene_changes(story: Path, phenaki: Path) -> list[float]:
    """For each video, the change between its scenes divided by the median change from frame to frame."""
    import numpy as np

    from quintet import registry
    from quintet.media.video import read_video

    first = registry.read_config(phenaki / "config.yaml").data.frames  # type: ignore[attr-defined]
    rows = [json.loads(line) for line in (story / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    relative = []
    for row in rows:
        if not row["file"].endswith(".mp4"):  # a GIF stores equal frames only once
            continue
        frames = read_video(story / row["file"]).astype(np.float64)
        changes = np.abs(np.diff(frames, axis=0)).mean((1, 2, 3))
        median = float(np.median(changes))
        relative.append(float(changes[first - 1]) / median if median else math.inf)
    return relative


VIDEO = Demo(
    medium="video",
    data="motions",
    data_options=("--size", "32"),
    quick_num=12_000,
    full_num=32_000,
    quick_num_judged=96,
    full_num_judged=200,
    minutes=45,
    stages=(CVIVIT, PHENAKI),
    texts=("a red circle moves right", "a blue star grows", "a yellow heart bounces", "a green square moves up"),
    num_per_text=4,
    samples_folder="made",
    outputs=(
        "OUT/made/ (four videos per text; OUT/made/filmstrip.png shows all of them), OUT/story/ (two scenes), "
        "OUT/tokenizer/samples/, OUT/phenaki/samples/"
    ),
    next_commands=(
        'quintet sample OUT/phenaki --text "a purple ring shrinks" --num 4 --out out/',
        "quintet sample OUT/phenaki --scenes scenes.txt --out out/",
        "quintet train cvivit YOUR_FOLDER",
    ),
    extra=generate_scenes,
)

# --- audio -------------------------------------------------------------------------------------------------------

PROMPTS = ("a slow snare drum beat", "a rising run of high flute notes", "a loud low bell note", "a quiet hiss")

MULAN = Stage(
    name="mulan",
    recipe="mulan",
    quick=Schedule(steps=200, every=100),
    full=Schedule(steps=1000, every=250),
    fraction=0.35,
    steps_per_second=0.6,
    keys=lambda steps, num_judged: (
        "eval.distinct_captions=200",
        f"eval.zero_shot_labels={json.dumps([*TIMBRES, *DRUMS, *NOISES])}",
        "eval.zero_shot_template=a {}",
    ),
    metrics=(
        Metric("text_to_audio_r1", "unseen captions that rank their clip first", quick=0.55, full=0.6),
        Metric("text_to_audio_r10", "among the first ten", quick=0.95, full=0.95),
        Metric("zero_shot_accuracy", "zero-shot accuracy of instruments", quick=0.85, full=0.9),
    ),
)
CODEC = Stage(
    name="codec",
    recipe="audio-codec",
    quick=Schedule(steps=60, every=30),
    full=Schedule(steps=300, every=100),
    fraction=0.2,
    steps_per_second=0.7,
    # The discriminators are active for the last eighth.
    keys=lambda steps, num_judged: (f"loss.discriminator_start={steps * 7 // 8}", "eval.batches=8"),
    metrics=(
        Metric("bitrate_kbps", "bitrate", full=6.0, unit="kbit/s", lower_is_better=True),
        Metric(
            "mel_distance",
            "mel distance of unseen clips",
            full=1.49,
            unit="",
            digits=2,
            lower_is_better=True,
            note="Opus",
        ),
        Metric("si_sdr", "SI-SDR of unseen clips, including noises", full=5.0, unit="dB"),
    ),
)
STORM = Stage(
    name="soundstorm",
    recipe="soundstorm",
    quick=Schedule(steps=400, every=200),
    full=Schedule(steps=3200, every=1600),
    fraction=0.45,
    steps_per_second=1.2,
    frozen=(("tokenizer", "codec"), ("condition", "mulan")),
    keys=lambda steps, num_judged: ("loss.caption_cond_prob=0.5", f"eval.num_generated={num_judged}", "eval.batches=8"),
    metrics=(
        Metric("match_timbre", "instrument matches unseen captions", quick=0.75, full=0.8),
        Metric("match_register", "register matches", quick=0.95, full=0.8),
        Metric("match_timbre_reconstruction", "instrument of reconstructed clips matches"),
        Metric("match_register_reconstruction", "register of reconstructed clips matches"),
    ),
)


def search(run: DemoRun) -> list[Row]:
    """Print the clips that best match each prompt."""
    texts = [word for text in PROMPTS for word in ("--text", text)]
    run.timed("samples", "search", str(run.out / "mulan"), str(run.out / "data"), *texts, "--top", "3")
    return []


AUDIO = Demo(
    medium="audio",
    data="sounds",
    quick_num=2000,
    full_num=12_000,
    quick_num_judged=48,
    full_num_judged=200,
    minutes=120,
    stages=(MULAN, CODEC, STORM),
    texts=PROMPTS,
    num_per_text=4,
    samples_folder="made",
    outputs=(
        "OUT/made/ (four clips per text; OUT/made/spectrograms.png shows them), OUT/codec/samples/ (clips and "
        "their reconstructions), OUT/soundstorm/samples/"
    ),
    next_commands=(
        'quintet sample OUT/soundstorm --text "a fast rising run of trumpet notes" --seconds 3 --num 4 --out out/',
        'quintet search OUT/mulan YOUR_FOLDER --text "slow drums"',
        "quintet train audio-codec YOUR_FOLDER",
    ),
    extra=search,
)

# --- mesh --------------------------------------------------------------------------------------------------------

# Woven meshes need no trained tokenizer, and those that end are closed.
MESH_TRANSFORMER = Stage(
    name="transformer",
    recipe="mesh-transformer",
    quick=Schedule(steps=2200, every=1100),
    full=Schedule(steps=7000, every=1750),
    fraction=1.0,
    steps_per_second=4.5,
    frozen=(("tokenizer", "woven"),),
    # There are enough meshes, and augmentation would change the proportions that captions name.
    keys=lambda steps, num_judged: (
        "data.augment=false",
        "model.text=words",
        "sample.temperature=0.7",
        f"eval.num_generated={num_judged}",
        f"ema.decay={ema_decay(steps)}",
        *ALL_CORES,
    ),
    metrics=(
        Metric("valid", "valid meshes from unseen captions", quick=0.95, full=0.995),
        Metric("watertight", "watertight", quick=0.95, full=0.99),
        Metric("match_class", "class matches the caption", quick=0.85, full=0.95),
        Metric("match_proportions", "proportions match", full=0.95),
    ),
)
MESH = Demo(
    medium="mesh",
    data="solids",
    quick_num=10_000,
    full_num=20_000,
    quick_num_judged=64,
    full_num_judged=200,
    minutes=30,
    stages=(MESH_TRANSFORMER,),
    texts=("a tall table", "a low wide house", "a chair", "stairs"),
    num_per_text=4,
    samples_folder="made",
    outputs="OUT/made/sheet.png (one row per text), OUT/made/*.glb, OUT/transformer/samples/",
    next_commands=(
        'quintet sample OUT/transformer --text "a wide bench" --out out/',
        "quintet train mesh-autoencoder YOUR_FOLDER",
    ),
)

DEMOS: Mapping[str, Demo] = {demo.medium: demo for demo in (IMAGE, VIDEO, AUDIO, MESH)}
