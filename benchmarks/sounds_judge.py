"""Accuracy of the judge of the dataset `sounds`, and an upper bound of retrieval by its captions.

`sounds_judge.py`. The judge is applied to synthetic clips, clean and degraded, and compared with their metadata.
Captions do not describe everything, so that several of 200 unseen clips with distinct captions may match one text: the
last metric is the retrieval accuracy of a perfect listener who guesses among all matching clips.
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
    """Noise 40 dB below the loudest sample."""
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


DEGRADATIONS: dict[str, Callable[[Samples], Samples]] = {
    "clean": clean,
    "noise at -40 dB": with_noise,
    "eight bits": in_eight_bits,
    "MP3": as_mp3,
    "at 8 kHz and back": at_half_the_rate,
}


def accuracies(items: list[SoundItem], degrade: Callable[[Samples], Samples]) -> dict[str, float]:
    """Accuracy by attribute, by kind of clip (all attributes), and over all clips."""
    correct: dict[str, list[bool]] = defaultdict(list)
    for item in items:
        found = match(item.record, judge(degrade(item.wave)))
        for word, value in found.items():
            correct[word].append(value)
        for group in (f"kind {item.record['kind']}", "everything"):
            correct[group].append(all(found.values()))
    return {name: statistics.fmean(values) for name, values in correct.items()}


def perfect_listener(seed: int) -> float:
    """R@1 of text-to-audio retrieval over unseen clips with distinct captions, if every attribute is recognized."""
    clips: dict[str, SoundRecord] = {}
    index = 0
    while len(clips) < CLIPS:
        caption, record = draw_words(np.random.default_rng([seed, index]))
        index += 1
        if split_of(caption, record) == "validation":
            clips.setdefault(caption, record)
    fitting = [
        sum(_named_attributes(caption, other) == _named_attributes(caption, record) for other in clips.values())
        for caption, record in clips.items()
    ]
    return statistics.fmean(1 / count for count in fitting)


def _named_attributes(caption: str, record: SoundRecord) -> dict[str, object]:
    spoken = set(re.findall(r"[a-z-]+", caption))
    named = any(spoken & set(words) for words in LOUDNESS_WORDS.values())
    return {name: value for name, value in record.items() if named or name != "loudness"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=400)
    parser.add_argument(
        "--seed", type=int, default=7919, help="random seed; must differ from those of datasets and tests"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sounds-judge.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    items = [draw_item(arguments.seed, index) for index in range(arguments.num)]
    results = {}
    print(f"| {arguments.num} sounds | {' | '.join(WORDS)} | everything |\n|{'---|' * (len(WORDS) + 2)}")
    for name, degrade in DEGRADATIONS.items():
        results[name] = accuracies(items, degrade)
        print(f"| {name} | {' | '.join(f'{results[name][word]:.1%}' for word in (*WORDS, 'everything'))} |")
    kinds = {name: value for name, value in results["clean"].items() if name.startswith("kind ")}
    print(", ".join(f"{name} {value:.1%}" for name, value in kinds.items()))
    ceilings = [perfect_listener(arguments.seed + number) for number in range(1, 4)]
    print(f"perfect listener: R@1 {statistics.fmean(ceilings):.1%} of {CLIPS} clips (mean of three seeds)")
    sizes = {"num": arguments.num, "seed": arguments.seed}
    write_facts(arguments.out, {**sizes, "shares_right": results, "listener_without_fault": ceilings})
    print(f"raw results: {arguments.out}")


if __name__ == "__main__":
    main()
