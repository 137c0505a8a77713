"""Time and peak memory of clips of 10, 30, 60 and 120 s from one text: `long_sounds.py [KEY=VALUE ...]`.

A SoundStorm of the preset `small` over the codec of the preset `small`, both untrained, because the cost does not
depend on the weights; keys are those of SoundStorm. Everything that `quintet sample` does is measured: generating codes
window by window, decoding, writing the WAV file and its spectrogram. The lengths are generated in one process, shortest
first, so the peak stays where it is if memory does not depend on the length. One thread, CPU seconds.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

from quintet import SoundStormPipeline, config
from quintet.config.tree import flatten, parse_overrides
from quintet.families.soundstorm.config import SoundStormConfig, SoundStormOptions
from quintet.training.planning.building import untrained_pipeline

LENGTHS = (10.0, 30.0, 60.0, 120.0)
TEXT = "a rising flute, then slow drums"
FLAT = 1.1
"""Target: the peak of the longest clip, relative to that of the shortest."""


def pipeline_of(codec_preset: str, keys: list[str]) -> SoundStormPipeline:
    """An untrained SoundStorm over an untrained codec."""
    frozen = {"tokenizer": untrained_pipeline("audio-codec", codec_preset, "cpu")}
    changes = flatten(parse_overrides(["model.text=words", "engine.device=cpu", *keys]))
    settings = config.build(SoundStormConfig, preset="small", overrides=changes)
    assert isinstance(settings, SoundStormConfig)
    settings = SoundStormPipeline.fit(settings, frozen)
    return SoundStormPipeline(settings, SoundStormPipeline.build_modules(settings, frozen), frozen)


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codec", default="small", metavar="PRESET", help="preset of the codec")
    parser.add_argument("--seconds", type=float, nargs="+", default=LENGTHS)
    arguments, keys = parser.parse_known_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pipeline = pipeline_of(arguments.codec, keys)
    print(f"peak before the first clip: {peak_megabytes():.0f} MB")
    print("| length, s | CPU time, s | CPU time / length | peak memory, MB |\n|---|---|---|---|")
    peaks = []
    for seconds in arguments.seconds:
        begin = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            for artifact in pipeline.files([TEXT], SoundStormOptions(num=1, seconds=seconds)):
                artifact.write(Path(folder) / artifact.file)
        spent = time.process_time() - begin
        peaks.append(peak_megabytes())
        print(f"| {seconds:g} | {spent:.1f} | {spent / seconds:.3f} | {peaks[-1]:.0f} |", flush=True)
    print(f"the longest has {peaks[-1] / peaks[0]:.2f} times the peak of the shortest (target: at most {FLAT})")


if __name__ == "__main__":
    main()
