"""Speed of reading random windows: windows of 2 s per CPU second from 10-minute FLAC files, in one process.

`audio_windows.py`. Each file contains synthetic clips one after another in each channel, and faint noise, because
recordings have some and FLAC decodes silence for free. Windows are read as in training at 16 kHz, through
`AudioFolder.load` without cache: open, seek, decode, mix, resample. One thread.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from quintet.common.rng import ItemRNG
from quintet.config import WindowedAudioDataConfig
from quintet.data.audio import audio_folder_splits
from quintet.media.audio import resample, write_audio
from quintet.media.audio_formats import Samples
from quintet.synthetic.sounds import RATE, draw_item
from side_by_side import HERE, write_facts

FILES = 2
NOISE = 1e-3
KINDS = ((16_000, 1), (16_000, 2), (44_100, 1), (44_100, 2), (48_000, 2))


def write_files(folder: Path, rate: int, channels: int, seconds: float) -> None:
    for number in range(FILES):
        rng = np.random.default_rng([rate, channels, number])
        samples = np.stack([_channel(seconds, rate, seed=number * channels + channel) for channel in range(channels)])
        noise = rng.standard_normal(samples.shape, np.float32)
        write_audio(samples + np.float32(NOISE) * noise, folder / f"{number}.flac", rate)


def _channel(seconds: float, rate: int, seed: int) -> Samples:
    clips: list[Samples] = []
    length = 0
    while length < seconds * RATE:
        clips.append(draw_item(seed, len(clips)).wave)
        length += len(clips[-1])
    return resample(np.concatenate(clips)[: int(seconds * RATE)], RATE, rate)


def measure(folder: Path, windows: int, rounds: int) -> list[float]:
    """Windows per CPU second in each round."""
    config = WindowedAudioDataConfig(path=str(folder), seconds=2.0, validation_fraction=0.0, memory_megabytes=0)
    dataset = audio_folder_splits(config, RATE).train
    for item in range(FILES):
        dataset.load(item, ItemRNG(1, [0], [item]))
    speeds = []
    for each in range(rounds):
        start_time = time.process_time()
        for number in range(windows):
            item = number % FILES
            assert dataset.load(item, ItemRNG(0, [each * windows + number], [item]))["wavs"].shape == (1, 2 * RATE)
        speeds.append(windows / (time.process_time() - start_time))
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="length of each file")
    parser.add_argument("--windows", type=int, default=300, help="number of windows per round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "audio-windows.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("| file | windows per CPU second (min-max) |\n|---|---|")
    for rate, channels in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder), rate, channels, 60 * arguments.minutes)
            speeds = measure(Path(folder), arguments.windows, arguments.rounds)
        rows.append({"rate": rate, "channels": channels, "windows_per_cpu_second": speeds})
        name = f"{rate / 1000:g} kHz, {('mono', 'stereo')[channels - 1]}"
        print(f"| {name} | {statistics.fmean(speeds):.0f} ({min(speeds):.0f}-{max(speeds):.0f}) |")
    write_facts(arguments.out, {"minutes": arguments.minutes, "window_seconds": 2.0, "files": rows})
    print(f"raw results: {arguments.out}")


if __name__ == "__main__":
    main()
