"""Owns `quintet demo audio`: synthesised sounds, and a MuLaN that finds them by words."""

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
    steps: int
    every: int


QUICK = AudioDemo(num=2000, steps=200, every=100)
FULL = AudioDemo(num=12_000, steps=1000, every=250)


def audio_demo(out: Path, full: bool, script: Script) -> None:
    demo = FULL if full else QUICK
    data, mulan = out / "data", out / "mulan"
    script.make("sounds", data, demo.num)
    timbres = json.dumps([*TIMBRES, *DRUMS, *NOISES])
    script.train(
        "mulan", data, mulan, demo.steps, f"train.steps={demo.steps}", *every(demo.every),
        "eval.distinct=200", f"eval.labels={timbres}", "eval.prompt=a {}",
    )  # fmt: skip
    script.run("eval", str(mulan))
    script.run("search", str(mulan), str(data), *(word for text in TEXTS for word in ("--text", text)), "--top", "3")
    script.say(summary(mulan))
    script.say(f"look at:  {mulan}/samples/ (how near clips and captions are), listen to the files named above")
    script.say(f'next: quintet search {mulan} YOUR_FOLDER --text "slow drums"')
    script.say("next: quintet train mulan YOUR_FOLDER")


def summary(mulan: Path) -> str:
    found = figures(mulan)
    return (
        f"\namong {found['compared']:.0f} clips that were never heard, a caption finds its own first in "
        f"{found['text_to_audio_r1']:.0%} of all cases and among the first ten in {found['text_to_audio_r10']:.0%}; "
        f"by the name alone the instrument is told right in {found['zero_shot_accuracy']:.0%}"
    )
