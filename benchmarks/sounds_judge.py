"""How far the judge of the data set `sounds` can be trusted, and how far its captions tell clips apart.

`sounds_judge.py`. The judge hears drawn sounds, clean and spoilt, and is compared with what was drawn. Captions say
less than there is, so of 200 unseen clips with distinct captions several may fit one text: the last figure is how often
a listener who hears everything right, and guesses among what fits, finds the clip that the text was written for.
"""

from __future__ import annotations

import argparse
import io
import re
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
import torch

from quintet.media.audio import resample
from quintet.media.audio_formats import Samples
from quintet.synthetic.sounds import LOUDNESS_WORDS, RATE, SoundItem, SoundRecord, draw_item, draw_words, split_of
from quintet.synthetic.sounds_judge import judge, match
from side_by_side import HERE, write_facts

CLIPS = 200
WORDS = ("timbre", "register", "tempo", "direction", "loudness")


def clean(wave: Samples) -> Samples:
    return wave


def with_noise(wave: Samples) -> Samples:
    """40 dB below the loudest sample."""
    noise = np.random.default_rng(len(wave)).standard_normal(len(wave))
    return np.asarray(wave + 0.01 * np.abs(wave).max() * noise, np.float32)


def in_eight_bits(wave: Samples) -> Samples:
    peak = np.abs(wave).max()
    return np.asarray(np.rint(wave / peak * 127) / 127 * peak, np.float32)


def as_mp3(wave: Samples) -> Samples:
    stream = io.BytesIO()
    soundfile.write(stream, wave, RATE, format="MP3")
    stream.seek(0)
    return np.asarray(soundfile.read(stream, dtype="float32")[0])


def at_half_the_rate(wave: Samples) -> Samples:
    return resample(resample(wave, RATE, RATE // 2), RATE // 2, RATE)


SPOILT: dict[str, Callable[[Samples], Samples]] = {
    "clean": clean,
    "noise 40 dB below": with_noise,
    "eight bits": in_eight_bits,
    "MP3": as_mp3,
    "at 8 kHz and back": at_half_the_rate,
}


def shares_right(items: list[SoundItem], spoil: Callable[[Samples], Samples]) -> dict[str, float]:
    """By word, by kind of sound (all its words at once), and of all sounds."""
    right: dict[str, list[bool]] = defaultdict(list)
    for item in items:
        found = match(item.record, judge(spoil(item.wave)))
        for word, value in found.items():
            right[word].append(value)
        for group in (f"kind {item.record['kind']}", "everything"):
            right[group].append(all(found.values()))
    return {name: statistics.fmean(values) for name, values in right.items()}


def listener_without_fault(seed: int) -> float:
    """R@1 from text to sound over unseen clips of distinct captions, if nothing is misheard."""
    clips: dict[str, SoundRecord] = {}
    index = 0
    while len(clips) < CLIPS:
        caption, record = draw_words(np.random.default_rng([seed, index]))
        index += 1
        if split_of(caption, record) == "validation":
            clips.setdefault(caption, record)
    fitting = [
        sum(_said(caption, other) == _said(caption, record) for other in clips.values())
        for caption, record in clips.items()
    ]
    return statistics.fmean(1 / count for count in fitting)


def _said(caption: str, record: SoundRecord) -> dict[str, object]:
    spoken = set(re.findall(r"[a-z-]+", caption))
    named = any(spoken & set(words) for words in LOUDNESS_WORDS.values())
    return {name: value for name, value in record.items() if named or name != "loudness"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=400)
    parser.add_argument("--seed", type=int, default=7919, help="one that no data set and no test is made with")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sounds-judge.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    items = [draw_item(arguments.seed, index) for index in range(arguments.num)]
    found = {}
    print(f"| {arguments.num} sounds | {' | '.join(WORDS)} | everything |\n|{'---|' * (len(WORDS) + 2)}")
    for name, spoil in SPOILT.items():
        found[name] = shares_right(items, spoil)
        print(f"| {name} | {' | '.join(f'{found[name][word]:.1%}' for word in (*WORDS, 'everything'))} |")
    kinds = {name: share for name, share in found["clean"].items() if name.startswith("kind ")}
    print(", ".join(f"{name} {share:.1%}" for name, share in kinds.items()))
    ceilings = [listener_without_fault(arguments.seed + number) for number in range(1, 4)]
    print(f"a listener without fault: R@1 {statistics.fmean(ceilings):.1%} of {CLIPS} clips (three drawings)")
    sizes = {"num": arguments.num, "seed": arguments.seed}
    write_facts(arguments.out, {**sizes, "shares_right": found, "listener_without_fault": ceilings})
    print(f"raw figures: {arguments.out}")


if __name__ == "__main__":
    main()
