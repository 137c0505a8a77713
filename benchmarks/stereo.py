"""How much of the difference of two channels a stereo codec keeps: `stereo.py FOLDER --out HOME [KEY=VALUE ...]`.

FOLDER is what `quintet data make sounds FOLDER` wrote. Every clip is panned (constant power, -40 to 40 degrees) and
delayed in one of its channels (up to 1 ms), by random numbers of its position; every fifth clip is unseen. A codec of
the preset `small` with two channels is trained on the others in HOME/run; printed is the SI-SDR of the mean of the
channels and of their difference, on the unseen clips.

`--left-right` gives the codec left and right as its two signals instead of mid and side, to compare both.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
from torch import Tensor

from quintet import cli
from quintet.families.audio_codec import model, stereo, task
from quintet.media.audio import read_audio, write_audio
from quintet.media.audio_formats import Samples

RATE = 16_000
MAX_DELAY = 16
"""Samples, 1 ms."""
MAX_ANGLE = 40.0
UNSEEN = 5
"""Every fifth clip."""
KEYS = ("model.channels=2", "model.num_quantizers=48", "loss.discriminator=false", "sample.every=1000")


def spatial(wave: Samples, number: int) -> Samples:
    """A mono clip (samples,) panned and delayed: (2, samples)."""
    rng = np.random.default_rng(number)
    angle = math.radians(45 + rng.uniform(-MAX_ANGLE, MAX_ANGLE))
    delay = int(rng.integers(0, MAX_DELAY + 1))
    channels = np.stack([math.cos(angle) * wave, math.sin(angle) * np.pad(wave, (delay, 0))[: len(wave)]])
    return channels[:: int(rng.choice([1, -1]))].astype(np.float32)


def make_data(folder: Path, home: Path, most: int) -> None:
    """The clips in stereo: HOME/data and HOME/unseen."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".wav", ".flac"))[:most]
    for number, path in enumerate(files):
        part = "unseen" if number % UNSEEN == 0 else "data"
        write_audio(spatial(read_audio(path, RATE)[0], number), home / part / f"{number:05d}.flac", RATE)


@contextmanager
def left_and_right() -> Iterator[None]:
    """The two channels themselves as the signals of the codec."""

    def to_signals(waves: Tensor) -> Tensor:
        return waves if waves.ndim == 2 else waves.flatten(0, 1)

    def from_signals(signals: Tensor, channels: int) -> Tensor:
        return signals if channels == 1 else signals.reshape(-1, channels, signals.shape[-1])

    metric = task.AudioCodecTask._si_sdr_sums  # of mid and side in any case

    def si_sdr_sums(self: task.AudioCodecTask, *waves: Tensor) -> dict[str, Tensor]:
        with mock.patch.object(task, "to_signals", stereo.to_signals):
            return metric(self, *waves)

    with (
        mock.patch.object(model, "to_signals", to_signals),
        mock.patch.object(model, "from_signals", from_signals),
        mock.patch.object(task, "to_signals", to_signals),
        mock.patch.object(task.AudioCodecTask, "_si_sdr_sums", si_sdr_sums),
    ):
        yield


def measure(home: Path, keys: list[str]) -> None:
    begin = time.process_time()
    cli.call(["train", "audio-codec", str(home / "data"), "--out", str(home / "run"), "--preset", "small", *keys])
    seconds = time.process_time() - begin
    cli.call(["eval", str(home / "run"), "--data", str(home / "unseen"), "--out", str(home / "eval.json")])
    found = json.loads((home / "eval.json").read_text(encoding="utf-8"))
    print(f"{found['bitrate_kbps']:.1f} kbit/s, {seconds:.0f} s of CPU time")
    print("| SI-SDR on unseen clips | dB |\n|---|---|")
    print(f"| left minus right (target 3) | {found['si_sdr_side']:.2f} |\n| mid | {found['si_sdr']:.2f} |")
    print(f"mel distance of left and right {found['mel_distance']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="HOME")
    parser.add_argument("--num", type=int, default=2000, help="clips at most")
    parser.add_argument("--left-right", action="store_true")
    arguments, more = parser.parse_known_args()
    if not (arguments.out / "unseen").exists():
        make_data(arguments.folder, arguments.out, arguments.num)
    keys = [*KEYS, *more]
    if arguments.left_right:
        with left_and_right():
            measure(arguments.out, keys)
    else:
        measure(arguments.out, keys)


if __name__ == "__main__":
    main()
