"""Notes, drums and speech at 16 kHz: `audio.py SOUNDFONT OUT`, with `espeak-ng` on the path.

Notes are the samples of the Fluid soundfont (MIT), each at its own pitch and at two others nearby. Held-out samples
are the validation split. Speech is synthesized from sentences that are put together here.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from held_out import held_out, slug
from quintet.media.audio import read_audio, write_audio
from rows import Row, begin, checked_license, finish
from soundfont import Sample, read_soundfont

RATE = 16_000
SECONDS = 3.0
SHIFTS = (0, -3, 4)
"""Semitones by which a note is also played."""
NOTES = ("C", "C sharp", "D", "D sharp", "E", "F", "F sharp", "G", "G sharp", "A", "A sharp", "B")
NOTE = re.compile(r"(?<![a-z])[a-g]#? ?[0-9](?![0-9])", re.IGNORECASE)
"""Samples with a pitch have a note in their names; that of the soundfont's zone is the right one."""
SENTENCES = 600
HELD_OUT_SENTENCES = 0.05
VOICES = {
    "m1": "a man", "m3": "a man", "m7": "a man", "f1": "a woman", "f2": "a woman", "f4": "a woman",
    "whisper": "a whispering voice", "croak": "a croaking voice",
}  # fmt: skip
SPEEDS = {110: "slowly", 160: "", 230: "quickly"}
WHO = (
    "the old captain",
    "my sister",
    "a small dog",
    "the teacher",
    "nobody",
    "every child",
    "the grey cat",
    "our guest",
)
DID = ("found", "painted", "lost", "carried", "counted", "forgot", "heard about", "sold", "dreamed of", "drew")
WHAT = ("seven red apples", "a wooden boat", "the blue umbrella", "two loud drums", "an empty box", "the morning train")
WHERE = ("in the garden", "by the river", "under the stairs", "near the station", "on a rainy day", "after lunch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("soundfont", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    folder = begin(arguments.out)
    finish(arguments.out, [*notes(arguments.soundfont, folder), *speech(folder)])


def notes(path: Path, folder: Path) -> Iterator[Row]:
    source = _debian("fluid-soundfont-gm")
    licence = checked_license("MIT", source)
    for number, sample in enumerate(read_soundfont(path)):
        is_held_out = _is_held_out(sample)
        for shift in (0,) if is_held_out or _pitch(sample) is None else SHIFTS:
            wave = _played(sample, shift)
            if wave is None:
                continue
            name = f"note-{number:04d}-{slug(sample.instrument)}{shift:+d}.flac"
            write_audio(wave, folder / name, RATE)
            yield Row(name, [_caption(sample, shift)], source, licence, "validation" if is_held_out else "train")


def _is_held_out(sample: Sample) -> bool:
    """By the name of the sample, without its channel: names of held-out files are instrument and sample."""
    own = re.sub(r"-[lr]$|(?<=[0-9])[lr]$", "", slug(sample.name))
    names = {each for name in held_out("notes").names for each in (name, name.removesuffix("-2"))}
    return any(name == own or name.endswith(f"-{own}") for name in names)


def _played(sample: Sample, shift: int) -> np.ndarray | None:
    """The sample at another pitch, by playing it faster or slower; None if it is silent."""
    ratio = sample.rate / RATE * 2 ** (shift / 12)
    wave = sample.wave[: int(SECONDS * RATE * ratio)]
    count = int(len(wave) / ratio)
    if count < RATE // 20 or np.abs(wave).max() < 0.01:
        return None
    width = max(1, round(ratio))
    smooth = np.convolve(wave, np.hanning(2 * width + 1)[1:-1] / width, "same") if width > 1 else wave
    played = np.interp(np.arange(count) * ratio, np.arange(len(wave)), smooth).astype(np.float32)
    fade = min(count, RATE // 20)
    played[-fade:] *= np.linspace(1, 0, fade, dtype=np.float32)
    return (played * (0.7 / max(0.05, np.abs(played).max())))[None]


def _pitch(sample: Sample) -> int | None:
    return sample.pitch if NOTE.search(sample.name) else None


def _caption(sample: Sample, shift: int) -> str:
    instrument, pitch = sample.instrument.lower().removesuffix("/gs"), _pitch(sample)
    if pitch is None:
        return instrument
    octave, note = divmod(pitch + shift, 12)
    return f"{instrument}, note {NOTES[note]}{' ' if 'sharp' in NOTES[note] else ''}{octave - 1}"


def speech(folder: Path) -> Iterator[Row]:
    # The sentences are our own, and the licence of the program (GPL-3.0-or-later) does not extend to what it speaks.
    source = f"own sentences, spoken by the program {_debian('espeak-ng')}"
    licence = checked_license("CC0-1.0", source)
    choice = random.Random(0)
    for number in range(SENTENCES):
        text = " ".join(choice.choice(words) for words in (WHO, DID, WHAT, WHERE))
        voice, speed = choice.choice([*VOICES]), choice.choice([*SPEEDS])
        path = folder / f"speech-{number:04d}.wav"
        command = ["espeak-ng", "-v", f"en+{voice}", "-s", str(speed), "-w", str(path), text]
        subprocess.run(command, check=True)
        write_audio(read_audio(path, rate=RATE), path.with_suffix(".flac"), RATE)
        path.unlink()
        caption = f"{VOICES[voice]} speaks {SPEEDS[speed]}".strip() + f": {text}"
        split = "validation" if number < SENTENCES * HELD_OUT_SENTENCES else "train"
        yield Row(f"{path.stem}.flac", [caption], source, licence, split)


def _debian(package: str) -> str:
    command = ["dpkg-query", "--show", "--showformat", "${Version}", package]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return f"debian:{package}={version}"


if __name__ == "__main__":
    main()
