"""Owns `quintet demo audio`: synthesised sounds; a MuLaN that finds them by words; their codec; SoundStorm, which makes
sounds of words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from quintet.data.sounds import DRUMS, NOISES, TIMBRES
from quintet.demos.script import Script, every, figures

TEXTS = ("a slow drum", "a rising flute", "a loud low bell", "quiet noise")


@dataclass(frozen=True)
class AudioDemo:
    """How long each form of the demo trains."""

    num: int
    mulan_steps: int
    mulan_every: int
    codec_steps: int
    codec_every: int
    storm_steps: int
    storm_every: int
    judged: int


QUICK = AudioDemo(
    num=2000,
    mulan_steps=200,
    mulan_every=100,
    codec_steps=60,
    codec_every=30,
    storm_steps=400,
    storm_every=200,
    judged=48,
)
FULL = AudioDemo(
    num=12_000,
    mulan_steps=1000,
    mulan_every=250,
    codec_steps=300,
    codec_every=100,
    storm_steps=1800,
    storm_every=600,
    judged=200,
)


def audio_demo(out: Path, full: bool, script: Script) -> None:
    demo = FULL if full else QUICK
    data, mulan, codec, storm, made = (out / name for name in ("data", "mulan", "codec", "soundstorm", "made"))
    script.make("sounds", data, demo.num)
    timbres = json.dumps([*TIMBRES, *DRUMS, *NOISES])
    script.train(
        "mulan", data, mulan, demo.mulan_steps, f"train.steps={demo.mulan_steps}", *every(demo.mulan_every),
        "eval.distinct=200", f"eval.labels={timbres}", "eval.prompt=a {}",
    )  # fmt: skip
    script.run("eval", str(mulan))
    script.run("search", str(mulan), str(data), *(word for text in TEXTS for word in ("--text", text)), "--top", "3")
    # The discriminators are active for the last eighth.
    script.train(
        "audio-codec", data, codec, demo.codec_steps, f"train.steps={demo.codec_steps}",
        f"loss.discriminator_start={demo.codec_steps * 7 // 8}", *every(demo.codec_every), "eval.batches=8",
    )  # fmt: skip
    script.run("eval", str(codec))
    script.train(
        "soundstorm", data, storm, demo.storm_steps, "--tokenizer", str(codec), "--condition", str(mulan),
        f"train.steps={demo.storm_steps}", "loss.tell_caption=0.5", f"eval.generated={demo.judged}",
        *every(demo.storm_every), "eval.batches=8",
    )  # fmt: skip
    script.run("eval", str(storm))
    script.sample(storm, TEXTS, 4, made)
    script.say(summary(mulan, codec, storm))
    script.say(
        f"listen to: {made}/ (four of each text; {made}/spectrograms.png shows them), {codec}/samples/ (clips and what "
        f"the codec makes of them), {storm}/samples/"
    )
    script.say(f'next: quintet sample {storm} --text "a fast trumpet" --seconds 3 --num 4 --out out/')
    script.say(f'next: quintet search {mulan} YOUR_FOLDER --text "slow drums"')
    script.say("next: quintet train audio-codec YOUR_FOLDER")


def summary(mulan: Path, codec: Path, storm: Path) -> str:
    found, kept, made = (figures(run) for run in (mulan, codec, storm))
    return (
        f"\namong {found['compared']:.0f} clips that were never heard, a caption finds its own first in "
        f"{found['text_to_audio_r1']:.0%} of all cases and among the first ten in {found['text_to_audio_r10']:.0%}; "
        f"by the name alone the instrument is told right in {found['zero_shot_accuracy']:.0%}\n"
        f"the codec keeps unseen clips at {kept['bitrate_kbps']:.1f} kbit/s with {kept['si_sdr']:.1f} dB SI-SDR and a "
        f"mel distance of {kept['mel_distance']:.2f}\n"
        "clips made from captions that were never trained on sound as the caption says: "
        + ", ".join(f"{what} {made[f'match_{what}']:.0%}" for what in ("timbre", "register"))
        + " (of real clips through the codec: "
        + ", ".join(f"{what} {made[f'match_{what}_reconstruction']:.0%}" for what in ("timbre", "register"))
        + ")"
    )
