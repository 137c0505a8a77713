"""Owns `quintet demo audio`: synthesised sounds; a MuLaN that finds them by words; their codec; SoundStorm, which makes
sounds of words."""

from __future__ import annotations

import json

from quintet.demos.demo import Demo, Length, Stage
from quintet.demos.script import Show
from quintet.demos.table import Figure, Row
from quintet.synthetic.sounds import DRUMS, NOISES, TIMBRES

TEXTS = ("a slow drum", "a rising flute", "a loud low bell", "quiet noise")

MULAN = Stage(
    name="mulan",
    recipe="mulan",
    quick=Length(steps=200, every=100),
    full=Length(steps=1000, every=250),
    share=0.35,
    pace=0.6,
    keys=lambda steps, judged: (
        "eval.distinct=200",
        f"eval.labels={json.dumps([*TIMBRES, *DRUMS, *NOISES])}",
        "eval.prompt=a {}",
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
    keys=lambda steps, judged: ("loss.tell_caption=0.5", f"eval.generated={judged}", "eval.batches=8"),
    figures=(
        Figure("match_timbre", "instrument as unseen captions say", 0.8),
        Figure("match_register", "register", 0.8),
        Figure("match_timbre_reconstruction", "instrument of real clips through the codec"),
        Figure("match_register_reconstruction", "register of real clips through the codec"),
    ),
)


def search(show: Show) -> list[Row]:
    """What each text finds among all clips."""
    texts = [word for text in TEXTS for word in ("--text", text)]
    show.timed("samples", "search", str(show.out / "mulan"), str(show.out / "data"), *texts, "--top", "3")
    return []


DEMO = Demo(
    medium="audio",
    data="sounds",
    quick_num=2000,
    full_num=12_000,
    quick_judged=48,
    full_judged=200,
    minutes=120,
    stages=(MULAN, CODEC, STORM),
    texts=TEXTS,
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
