"""The four demos: the stages of each medium, the figures they are held to, and what else is shown.

image: pictures of shapes; their tokenizer, resumed once; Muse, which draws from captions.
video: clips of moving shapes; their tokenizer; Phenaki, which makes clips from captions, and one video of two scenes.
audio: synthesised sounds; a MuLaN that finds them by words; their codec; SoundStorm, which makes sounds of words.
mesh: low-poly solids; a tokenizer of them; a transformer that makes meshes from captions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from quintet.demos.demo import Demo, Figure, Length, Row, Stage
from quintet.demos.script import Show
from quintet.synthetic.sounds import DRUMS, NOISES, TIMBRES

# --- image -------------------------------------------------------------------------------------------------------

VQGAN = Stage(
    name="tokenizer",
    recipe="vqgan",
    quick=Length(steps=1500, every=250),
    full=Length(steps=5000, every=500),
    share=0.3,
    pace=12.0,
    # The discriminator is active for the last third.
    keys=lambda steps, judged: (f"loss.discriminator_start={steps * 2 // 3}",),
    interrupted=True,
    figures=(
        Figure("psnr", "PSNR of unseen pictures", 30.0, "dB"),
        Figure("codebook_usage", "codes in use", 0.5),
    ),
)
MUSE = Stage(
    name="muse",
    recipe="muse",
    quick=Length(steps=800, every=200),
    full=Length(steps=9000, every=1000),
    share=0.7,
    pace=3.5,
    links=(("tokenizer", "tokenizer"),),
    keys=lambda steps, judged: (f"eval.num_generated={judged}",),
    figures=(
        Figure("match_colour", "colour as unseen captions say", 0.95),
        Figure("match_position", "position", 0.9),
        Figure("match_shape", "shape", 0.9, of="match_shape_reconstruction", why="0.9 of reconstructions"),
        Figure("match_withheld", "colour and shape of pairs never trained on", 0.6),
    ),
)
IMAGE = Demo(
    medium="image",
    data="shapes",
    quick_num=4000,
    full_num=48_000,
    quick_judged=128,
    full_judged=500,
    minutes=60,
    stages=(VQGAN, MUSE),
    texts=(
        "a large red heart in the centre",
        "a small blue star at the top left and a large yellow ring at the bottom right",
        "a green triangle on the left",
        "a black cross on the right and a pink circle on the left",
    ),
    each=8,
    made="drawn",
    look="OUT/drawn/grid.png (a row for each text), OUT/tokenizer/samples/, OUT/muse/samples/",
    then=('quintet sample OUT/muse --text "a purple diamond at the top" --out out/', "quintet train vqgan YOUR_FOLDER"),
)

# --- video -------------------------------------------------------------------------------------------------------

SCENES = ("a red circle moves right", "a red circle moves left")
LARGEST_SEAM = 3.0

CVIVIT = Stage(
    name="tokenizer",
    recipe="cvivit",
    quick=Length(steps=200, every=100),
    full=Length(steps=2000, every=1000),
    share=0.25,
    pace=3.0,
    figures=(
        Figure("psnr", "PSNR of unseen clips", 26.0, "dB"),
        Figure("codebook_usage", "codes in use"),
    ),
)
PHENAKI = Stage(
    name="phenaki",
    recipe="phenaki",
    quick=Length(steps=500, every=250),
    full=Length(steps=18_000, every=3000),
    share=0.75,
    pace=4.0,
    links=(("tokenizer", "tokenizer"),),
    keys=lambda steps, judged: (f"eval.num_generated={judged}",),
    figures=(
        Figure("match_colour", "colour as unseen captions say", 0.9),
        Figure("match_motion", "motion", 0.85),
        Figure("match_shape", "shape", 0.9, of="match_shape_reconstruction", why="0.9 of reconstructions"),
    ),
)


def tell(show: Show) -> list[Row]:
    """Videos of two scenes, and how much the picture changes from the one to the other."""
    story = show.out / "story"
    if not (story / "samples.jsonl").exists():
        scenes = story.with_suffix(".txt")
        scenes.write_text("\n".join(SCENES) + "\n", encoding="utf-8")
        words = ("--scenes", str(scenes), "--num", "4", "--out", str(story))
        show.timed("samples", "sample", str(show.out / "phenaki"), *words)
    found = seams(story, show.out / "phenaki")
    reached = bool(found) and all(seam < LARGEST_SEAM for seam in found)
    measured = ", ".join(f"{seam:.1f}" for seam in found)
    what = "change at the seam of two scenes, in median changes"
    return [Row("story", what, measured, f"< {LARGEST_SEAM:g}", "reached" if reached else "not reached")]


def seams(story: Path, phenaki: Path) -> list[float]:
    """Of each video of scenes the change at the seam, against the median change from frame to frame."""
    import numpy as np

    from quintet import registry
    from quintet.media.video import read_video

    first = registry.read_config(phenaki / "config.yaml").data.frames  # type: ignore[attr-defined]
    rows = [json.loads(line) for line in (story / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    found = []
    for row in rows:
        if not row["file"].endswith(".mp4"):  # a GIF has equal frames only once
            continue
        frames = read_video(story / row["file"]).astype(np.float64)
        changes = np.abs(np.diff(frames, axis=0)).mean((1, 2, 3))
        usual = float(np.median(changes))
        found.append(float(changes[first - 1]) / usual if usual else math.inf)
    return found


VIDEO = Demo(
    medium="video",
    data="motions",
    data_words=("--size", "32"),
    quick_num=1500,
    full_num=32_000,
    quick_judged=48,
    full_judged=200,
    minutes=120,
    stages=(CVIVIT, PHENAKI),
    texts=("a red circle moves right", "a blue star grows", "a yellow heart bounces", "a green square moves up"),
    each=4,
    made="made",
    look=(
        "OUT/made/ (four of each text; OUT/made/filmstrip.png shows them all), OUT/story/ (two scenes), "
        "OUT/tokenizer/samples/, OUT/phenaki/samples/"
    ),
    then=(
        'quintet sample OUT/phenaki --text "a purple ring shrinks" --num 4 --out out/',
        "quintet sample OUT/phenaki --scenes scenes.txt --out out/",
        "quintet train cvivit YOUR_FOLDER",
    ),
    besides=tell,
)

# --- audio -------------------------------------------------------------------------------------------------------

SOUNDS = ("a slow drum", "a rising flute", "a loud low bell", "quiet noise")

MULAN = Stage(
    name="mulan",
    recipe="mulan",
    quick=Length(steps=200, every=100),
    full=Length(steps=1000, every=250),
    share=0.35,
    pace=0.6,
    keys=lambda steps, judged: (
        "eval.distinct_captions=200",
        f"eval.zero_shot_labels={json.dumps([*TIMBRES, *DRUMS, *NOISES])}",
        "eval.zero_shot_template=a {}",
    ),
    figures=(
        Figure("text_to_audio_r1", "captions that find their unseen clip first", 0.6),
        Figure("text_to_audio_r10", "among the first ten", 0.95),
        Figure("zero_shot_accuracy", "instruments told by their name alone", 0.9),
    ),
)
CODEC = Stage(
    name="codec",
    recipe="audio-codec",
    quick=Length(steps=60, every=30),
    full=Length(steps=300, every=100),
    share=0.2,
    pace=0.7,
    # The discriminators are active for the last eighth.
    keys=lambda steps, judged: (f"loss.discriminator_start={steps * 7 // 8}", "eval.batches=8"),
    figures=(
        Figure("bitrate_kbps", "bitrate", 6.0, "kbit/s", below=True),
        Figure("mel_distance", "mel distance of unseen clips", 1.49, "", digits=2, below=True, why="Opus"),
        Figure("si_sdr", "SI-SDR of unseen clips, noises and all", 5.0, "dB"),
    ),
)
STORM = Stage(
    name="soundstorm",
    recipe="soundstorm",
    quick=Length(steps=400, every=200),
    full=Length(steps=3200, every=1600),
    share=0.45,
    pace=1.2,
    links=(("tokenizer", "codec"), ("condition", "mulan")),
    keys=lambda steps, judged: ("loss.caption_cond_prob=0.5", f"eval.num_generated={judged}", "eval.batches=8"),
    figures=(
        Figure("match_timbre", "instrument as unseen captions say", 0.8),
        Figure("match_register", "register", 0.8),
        Figure("match_timbre_reconstruction", "instrument of real clips through the codec"),
        Figure("match_register_reconstruction", "register of real clips through the codec"),
    ),
)


def search(show: Show) -> list[Row]:
    """What each text finds among all clips."""
    texts = [word for text in SOUNDS for word in ("--text", text)]
    show.timed("samples", "search", str(show.out / "mulan"), str(show.out / "data"), *texts, "--top", "3")
    return []


AUDIO = Demo(
    medium="audio",
    data="sounds",
    quick_num=2000,
    full_num=12_000,
    quick_judged=48,
    full_judged=200,
    minutes=120,
    stages=(MULAN, CODEC, STORM),
    texts=SOUNDS,
    each=4,
    made="made",
    look=(
        "OUT/made/ (four of each text; OUT/made/spectrograms.png shows them), OUT/codec/samples/ (clips and what the "
        "codec makes of them), OUT/soundstorm/samples/"
    ),
    then=(
        'quintet sample OUT/soundstorm --text "a fast trumpet" --seconds 3 --num 4 --out out/',
        'quintet search OUT/mulan YOUR_FOLDER --text "slow drums"',
        "quintet train audio-codec YOUR_FOLDER",
    ),
    besides=search,
)

# --- mesh --------------------------------------------------------------------------------------------------------

MESH_AUTOENCODER = Stage(
    name="tokenizer",
    recipe="mesh-autoencoder",
    quick=Length(steps=600, every=200),
    full=Length(steps=6000, every=1000),
    share=0.4,
    pace=4.0,
    figures=(
        Figure("coordinate_accuracy", "coordinates of unseen meshes within a bin", 0.97),
        Figure("chamfer", "Chamfer distance, longest side 1", 0.02, "", digits=4, below=True),
    ),
)
# Trained on plain coordinates, which is the shorter way to a generator: nothing has to be learned first, and its
# vocabulary is a thirtieth of the learned tokenizer's.
MESH_TRANSFORMER = Stage(
    name="transformer",
    recipe="mesh-transformer",
    quick=Length(steps=600, every=200),
    full=Length(steps=3600, every=600),
    share=0.6,
    pace=1.5,
    links=(("tokenizer", "coordinates"),),
    # There are enough meshes, and captions name proportions, which stretching would change.
    keys=lambda steps, judged: ("data.augment=false", f"eval.num_generated={judged}"),
    figures=(
        Figure("valid", "valid meshes from unseen captions", 0.9),
        Figure("match_class", "class as the caption says", 0.85),
        Figure("watertight", "watertight"),
    ),
)
MESH = Demo(
    medium="mesh",
    data="solids",
    quick_num=2000,
    full_num=20_000,
    quick_judged=64,
    full_judged=200,
    minutes=60,
    stages=(MESH_AUTOENCODER, MESH_TRANSFORMER),
    texts=("a tall table", "a low wide house", "a chair", "stairs"),
    each=4,
    made="made",
    look="OUT/made/sheet.png (a row for each text), OUT/made/*.glb, OUT/tokenizer/samples/",
    then=(
        'quintet sample OUT/transformer --text "a wide bench" --out out/',
        "quintet train mesh-autoencoder YOUR_FOLDER",
    ),
)

DEMOS: Mapping[str, Demo] = {demo.medium: demo for demo in (IMAGE, VIDEO, AUDIO, MESH)}
