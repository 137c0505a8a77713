"""The synthetic audio dataset `sounds`: synthesised notes, chords, runs, glides, rhythms and noises, with captions.

This module has its vocabulary, random attributes, synthesis, captions, splits and writing. An item is a pure function
of (seed, index): 1 to 4 s at 16 kHz. Pitches are those of a piano; each register spans one octave, with wide gaps
between registers.

`quintet.synthetic.sounds_judge` recognises the attributes of a clip. Metrics are comparable only while neither the
items nor the judge change, so a change to either needs a new `VERSION`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from quintet.media.audio import write_audio
from quintet.synthetic.folders import pick, split_by_words, write_items

VERSION = 1
RATE = 16_000
MENTION_PROB = 0.75
"""Probability that a caption mentions the loudness; it always mentions the other attributes."""

FloatArray = npt.NDArray[np.float64]

REGISTERS = {"low": 42, "middle": 61, "high": 80}
"""The lowest note of each register as a MIDI note number (A4, 440 Hz, is 69); a register spans an octave."""
OCTAVE = 12
TEMPOS = {"slow": (0.5, 0.62), "medium": (0.28, 0.33), "fast": (0.155, 0.18)}
"""Interval between two notes, in seconds."""
DIRECTIONS = ("rising", "falling")
LOUDNESS = {"quiet": (0.05, 0.09), "loud": (0.6, 0.9)}
"""Peak amplitude, relative to full scale."""
KINDS = {"note": 0.12, "chord": 0.12, "repeated": 0.18, "run": 0.3, "glide": 0.12, "rhythm": 0.1, "noise": 0.06}
SECONDS = (1.4, 3.6)

# Combinations that are never trained on. No timbre and no register is listed twice, so that each remains frequent in
# training and only the combination is new.
WITHHELD_PAIRS = frozenset({("flute", "low"), ("bell", "middle"), ("guitar", "high")})


class SoundRecord(TypedDict):
    """The attributes of one clip, as in `metadata.jsonl`; None if an attribute does not apply."""

    kind: str
    timbre: str
    register: str | None
    tempo: str | None
    direction: str | None
    loudness: str


class SoundItem(NamedTuple):
    """One clip (samples,), its caption and its attributes."""

    wave: npt.NDArray[np.float32]
    caption: str
    record: SoundRecord


@dataclass(frozen=True)
class Timbre:
    """A pitched instrument: its partials as (frequency ratio, amplitude), and its envelope."""

    partials: tuple[tuple[float, float], ...]
    attack: float = 0.01
    """Attack time, in seconds."""
    decay: float | None = None
    """Decay time to 1/e, in seconds; None for sustained instruments. Higher partials decay faster."""
    vibrato: float = 0.0
    """Vibrato depth, in semitones."""
    breath: float = 0.0
    """Amplitude of added noise."""


def _series(*strengths: float) -> tuple[tuple[float, float], ...]:
    return tuple((float(number), strength) for number, strength in enumerate(strengths, 1) if strength)


TIMBRES: dict[str, Timbre] = {
    "flute": Timbre(_series(1.0, 0.12, 0.03), attack=0.05, breath=0.012),
    "clarinet": Timbre(_series(1.0, 0, 0.65, 0, 0.5, 0, 0.35, 0, 0.25, 0, 0.18), attack=0.025),
    "organ": Timbre(_series(0.8, 1.0, 0, 1.0, 0, 0, 0, 0.9, *[0] * 7, 0.6), attack=0.008),
    "violin": Timbre(_series(*(1 / number for number in range(1, 25))), attack=0.04, vibrato=0.3),
    "trumpet": Timbre(_series(0.45, 1.0, 1.1, 0.9, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08), attack=0.03),
    "bell": Timbre(((1.0, 1.0), (2.76, 0.7), (5.4, 0.45), (8.93, 0.2)), attack=0.002, decay=0.6),
    "guitar": Timbre(_series(1.0, 0.55, 0, 0.28, 0.2, 0, 0.1, 0.07), attack=0.003, decay=0.4),
    "marimba": Timbre(((1.0, 1.0), (3.93, 0.35)), attack=0.003, decay=0.12),
}
DRUMS = ("kick drum", "snare drum", "hi-hat", "woodblock")
NOISES = ("hiss", "rumble", "whoosh")
SUSTAINED = tuple(name for name, timbre in TIMBRES.items() if timbre.decay is None)
"""Instruments that can glide; the others decay too fast."""


# --- synthesis --------------------------------------------------------------------------------------------------


def hertz(key: float | FloatArray) -> float | FloatArray:
    """The frequency of a MIDI note number, in Hz."""
    return 440.0 * 2.0 ** ((key - 69) / OCTAVE)


def play(rng: np.random.Generator, timbre: str, keys: FloatArray) -> FloatArray:
    """Synthesise one tone (samples,); `keys` (samples,) is its pitch as a MIDI note number."""
    instrument = TIMBRES[timbre]
    time = np.arange(len(keys)) / RATE
    if instrument.vibrato:
        keys = keys + instrument.vibrato * np.sin(2 * np.pi * (rng.uniform(5.0, 6.0) * time + rng.random()))
    pitch = np.asarray(hertz(keys))
    turns = np.cumsum(pitch) / RATE
    wave = np.zeros(len(keys))
    for ratio, strength in instrument.partials:
        # Partials near the Nyquist frequency are faded out, to avoid aliasing.
        audible = np.clip((7600.0 - ratio * pitch) / 400.0, 0.0, 1.0)
        if not audible.any():
            continue
        fall = 1.0 if instrument.decay is None else np.exp(-time * (1 + 0.3 * (ratio - 1)) / instrument.decay)
        wave += strength * audible * fall * np.sin(2 * np.pi * (ratio * turns + rng.random()))
    if instrument.breath:
        wave += instrument.breath * rng.standard_normal(len(keys))
    return wave * _envelope(len(keys), instrument.attack, 0.03)


def strike(rng: np.random.Generator, drum: str) -> FloatArray:
    """Synthesise one drum hit."""
    time = np.arange(int(0.15 * RATE)) / RATE
    noise = rng.standard_normal(len(time))
    if drum == "kick drum":
        wave = np.sin(2 * np.pi * (50 * time - 70 * 0.03 * np.exp(-time / 0.03))) * np.exp(-time / 0.06)
    elif drum == "snare drum":
        wave = 0.5 * band(noise, 1200, 5000) * np.exp(-time / 0.035)
        wave += 0.5 * np.sin(2 * np.pi * 195 * time) * np.exp(-time / 0.04)
    elif drum == "hi-hat":
        wave = band(noise, 5500, 7800) * np.exp(-time / 0.02)
    else:
        tones = np.sin(2 * np.pi * 1180 * time) + 0.8 * np.sin(2 * np.pi * 1950 * time)
        wave = tones * np.exp(-time / 0.015)
    return np.asarray(wave * _envelope(len(time), 0.001, 0.01))


def blow(rng: np.random.Generator, noise: str, samples: int, direction: str | None) -> FloatArray:
    """Synthesise a noise; a whoosh is a frequency band that moves up or down."""
    white = rng.standard_normal(samples)
    if noise == "hiss":
        wave = band(white, 200, 7800)
    elif noise == "rumble":
        wave = band(white, 30, 130)
    else:
        wave = np.zeros(samples)
        ends = (rng.uniform(300, 450), rng.uniform(2400, 3600))
        start, end = ends if direction == "rising" else ends[::-1]
        size = RATE // 10
        window = np.hanning(2 * size + 1)[:-1]
        padded = np.pad(white, (size, 2 * size))
        for offset in range(0, samples + size, size):
            middle = start * (end / start) ** min(offset / samples, 1.0)
            piece = band(padded[offset : offset + 2 * size], middle / 1.25, middle * 1.25) * window
            first, last = max(offset - size, 0), min(offset + size, samples)
            wave[first:last] += piece[first - offset + size : last - offset + size]
    return np.asarray(wave * _envelope(samples, 0.05, 0.08))


def band(noise: FloatArray, low: float, high: float) -> FloatArray:
    """Band-pass filtered noise with unit RMS."""
    spectrum = np.fft.rfft(noise)
    frequencies = np.fft.rfftfreq(len(noise), 1 / RATE)
    spectrum[(frequencies < low) | (frequencies > high)] = 0
    wave = np.fft.irfft(spectrum, len(noise))
    return np.asarray(wave / max(float(np.sqrt(np.mean(wave**2))), 1e-9))


def _envelope(samples: int, attack: float, release: float) -> FloatArray:
    time = np.arange(samples) / RATE
    rise, fall = np.minimum(time / attack, 1.0), np.minimum((samples / RATE - time) / release, 1.0)
    return np.asarray(np.sin(0.5 * np.pi * rise) ** 2 * np.sin(0.5 * np.pi * fall) ** 2)


# --- random clips -----------------------------------------------------------------------------------------------


def _draw_record(rng: np.random.Generator) -> SoundRecord:
    kind = str(rng.choice(list(KINDS), p=list(KINDS.values())))
    timbre = pick(rng, {"rhythm": DRUMS, "noise": NOISES, "glide": SUSTAINED}.get(kind, tuple(TIMBRES)))
    register = pick(rng, tuple(REGISTERS)) if timbre in TIMBRES else None
    tempo = pick(rng, tuple(TEMPOS)) if kind in ("repeated", "run", "rhythm") else None
    direction = pick(rng, DIRECTIONS) if kind in ("run", "glide") or timbre == "whoosh" else None
    loudness = pick(rng, tuple(LOUDNESS))
    return SoundRecord(kind=kind, timbre=timbre, register=register, tempo=tempo, direction=direction, loudness=loudness)


def render(rng: np.random.Generator, record: SoundRecord) -> npt.NDArray[np.float32]:
    """A random clip (samples,) with the attributes of the record."""
    seconds = rng.uniform(*SECONDS)
    timbre, kind = record["timbre"], record["kind"]
    if kind == "noise":
        wave = blow(rng, timbre, int(seconds * RATE), record["direction"])
    elif record["tempo"] is not None:
        wave = _sequence(rng, record, seconds)
    else:
        lowest = REGISTERS[str(record["register"])]
        time = np.arange(int(min(seconds, 2.6) * RATE))
        if kind == "glide":
            low, high = lowest + rng.integers(0, 3), lowest + rng.integers(9, OCTAVE + 1)
            start, end = (low, high) if record["direction"] == "rising" else (high, low)
            wave = play(rng, timbre, start + (end - start) * time / len(time))
        else:
            root = int(rng.integers(0, OCTAVE - 6 if kind == "chord" else OCTAVE + 1))
            steps = (0, int(rng.integers(3, 5)), 7) if kind == "chord" else (0,)
            wave = np.zeros(len(time))
            for step in steps:
                wave += play(rng, timbre, np.full(len(time), float(lowest + root + step)))
    quiet = [np.zeros(int(rng.uniform(0.02, 0.1) * RATE)) for _ in range(2)]
    wave = np.concatenate([quiet[0], wave, quiet[1]])
    return np.asarray(wave * (rng.uniform(*LOUDNESS[record["loudness"]]) / np.abs(wave).max()), np.float32)


def _sequence(rng: np.random.Generator, record: SoundRecord, seconds: float) -> FloatArray:
    """A sequence of notes or hits at a tempo."""
    interval = rng.uniform(*TEMPOS[str(record["tempo"])])
    count = max(3, int(seconds / interval))
    wave = np.zeros(int((count * interval + 0.1) * RATE))
    keys = _keys(rng, record, count)
    for number in range(count):
        if record["kind"] == "rhythm":
            sound = strike(rng, record["timbre"])
        else:
            sound = play(rng, record["timbre"], np.full(int(0.85 * interval * RATE), keys[number]))
        start = int(number * interval * RATE)
        wave[start : start + len(sound)] += sound[: len(wave) - start]
    return wave


def _keys(rng: np.random.Generator, record: SoundRecord, count: int) -> FloatArray:
    if record["register"] is None:
        return np.zeros(count)
    lowest = REGISTERS[record["register"]]
    if record["kind"] == "repeated":
        return np.full(count, float(lowest + rng.integers(0, OCTAVE + 1)))
    low, high = lowest + rng.integers(0, 3), lowest + rng.integers(9, OCTAVE + 1)
    keys = np.rint(np.linspace(low, high, count))
    return keys if record["direction"] == "rising" else keys[::-1]


# --- captions ---------------------------------------------------------------------------------------------------

LOUDNESS_WORDS = {"quiet": ("quiet", "soft", "faint"), "loud": ("loud", "strong", "powerful")}
_REGISTER_WORDS = {"low": ("low", "deep"), "middle": ("middle", "mid-range"), "high": ("high", "high-pitched")}
_TEMPO_WORDS = {"slow": ("slow", "unhurried"), "medium": ("moderate", "medium-paced"), "fast": ("fast", "rapid")}
_TEMPO_MANNERS = {
    "slow": ("slowly", "at a slow tempo"),
    "medium": ("at a moderate tempo", "at a medium pace"),
    "fast": ("quickly", "at a fast tempo"),
}
_DIRECTION_WORDS = {"rising": ("rising", "ascending"), "falling": ("falling", "descending")}
_DIRECTION_VERBS = {"rising": ("goes up", "climbs"), "falling": ("goes down", "descends")}
_PHRASES = {
    "note": (
        "{a_loud_register_timbre} note",
        "one {register} note on a {loud_timbre}",
        "a {timbre} holds a {loud_register} note",
        "a single {loud_register} {timbre} tone",
    ),
    "chord": (
        "{a_loud_register_timbre} chord",
        "a {loud_register} chord on a {timbre}",
        "a {timbre} plays a {loud_register} chord",
        "three {loud_register} {timbre} notes at once",
    ),
    "repeated": (
        "a {loud_register} {timbre} note repeated {manner}",
        "a {timbre} repeats one {loud_register} note {manner}",
        "{tempo} repeated {loud_register} notes on a {timbre}",
        "the same {loud_register} {timbre} note again and again, {manner}",
    ),
    "run": (
        "a {tempo} {direction} run of {loud_register} {timbre} notes",
        "a {timbre} plays {loud_register} {direction} notes {manner}",
        "{loud_register} {timbre} melody that {verb} {manner}",
        "a {direction} scale on a {loud_timbre}, {register} and {tempo}",
    ),
    "glide": (
        "a {loud_register} {timbre} tone that {verb} smoothly",
        "{a_loud_register_timbre} sliding, {direction}",
        "a {direction} glide on a {loud_timbre}, {register}",
        "a {timbre} makes a {loud_register} {direction} slide",
    ),
    "rhythm": (
        "a {tempo} {loud_timbre} beat",
        "a {loud_timbre} hit again and again, {manner}",
        "{tempo} {loud_timbre} rhythm",
        "a {timbre} keeps a {loud_tempo} beat",
    ),
    "noise": ("a {loud_timbre}", "a {loud_timbre} of noise", "the sound of a {loud_timbre}", "noise: a {loud_timbre}"),
    "whoosh": (
        "a {loud_direction} whoosh",
        "a {loud_timbre} that {verb}",
        "a {loud_direction} sweep of noise",
        "noise: a {loud_timbre}, {direction}",
    ),
}


def _caption(rng: np.random.Generator, record: SoundRecord) -> str:
    loud = pick(rng, LOUDNESS_WORDS[record["loudness"]]) + " " if rng.random() < MENTION_PROB else ""
    words = {"timbre": record["timbre"]}
    tables: tuple[tuple[str, str | None, Mapping[str, tuple[str, ...]]], ...] = (
        ("register", record["register"], _REGISTER_WORDS),
        ("tempo", record["tempo"], _TEMPO_WORDS),
        ("manner", record["tempo"], _TEMPO_MANNERS),
        ("direction", record["direction"], _DIRECTION_WORDS),
        ("verb", record["direction"], _DIRECTION_VERBS),
    )
    words |= {name: pick(rng, table[value]) for name, value, table in tables if value is not None}
    for name in ("timbre", "register", "tempo", "direction"):
        words[f"loud_{name}"] = loud + words.get(name, "")
    words["a_loud_register_timbre"] = f"a {words['loud_register']} {words['timbre']}"
    phrases = _PHRASES["whoosh" if record["timbre"] == "whoosh" else record["kind"]]
    return re.sub(r"\ba (?=[aeiou])", "an ", pick(rng, phrases).format(**words))


# --- items and the folder ---------------------------------------------------------------------------------------


def draw_item(seed: int, index: int) -> SoundItem:
    """One item of the dataset, a pure function of its arguments."""
    rng = np.random.default_rng([seed, index])
    caption, record = draw_words(rng)
    return SoundItem(render(rng, record), caption, record)


def draw_words(rng: np.random.Generator) -> tuple[str, SoundRecord]:
    """A random caption and its attributes, before synthesis."""
    record = _draw_record(rng)
    return _caption(rng, record), record


def split_of(caption: str, record: SoundRecord) -> str:
    """`train`, `validation` or `withheld`, by the words of the caption: equal captions are in the same split."""
    return split_by_words(caption, (record["timbre"], record["register"]) in WITHHELD_PAIRS)


def make_sounds(folder: Path, num: int = 5000, seed: int = 0) -> None:
    """Write the dataset: `sounds/`, `dataset.json` (its settings) and `metadata.jsonl`."""

    def write(index: int, path: Path) -> dict[str, object]:
        item = draw_item(seed, index)
        write_audio(item.wave, path, RATE)
        return {"text": item.caption, "split": split_of(item.caption, item.record), "sound": item.record}

    metadata = {"name": "sounds", "version": VERSION, "num": num, "rate": RATE, "seed": seed}
    write_items(folder, metadata, "clip", "sounds/{:05d}.flac", write)
