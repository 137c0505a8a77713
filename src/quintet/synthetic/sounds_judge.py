"""The judge of the data set `sounds`: plain signal analysis that says what a sound is.

This file owns the way from samples to a finding, without learned weights, so that its word on a generated sound does
not depend on any model. The power of the whole sound in bands of a semitone is taken as a sum of notes of one timbre
in one register, as that timbre's own player sounds there, or as one drum or noise; what leaves the least unexplained
is the timbre and the register. The notes found at each moment tell the direction, the rises of power the tempo.
`match` compares a finding with what a caption promised.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from quintet.media.audio import resample
from quintet.synthetic.judges import Judge, Row, Scores, has_keys
from quintet.synthetic.sounds import (
    DRUMS,
    LOUDNESS,
    NOISES,
    OCTAVE,
    RATE,
    REGISTERS,
    TEMPOS,
    TIMBRES,
    FloatArray,
    SoundRecord,
    blow,
    play,
    strike,
)

N_FFT = 4096
HOP = 512
LOWEST_KEY = 24  # 33 Hz; the bands go on from there in semitones
BANDS = 98  # to half the rate
ROUNDS = 60  # of fitting; more change no finding
FLOOR = 1e-4  # of the strongest band: what is below cannot be told from what a window smears
EXAMPLE_SEED = 2**40  # far from every seed that a data set is made with
MARGIN = 2  # semitones beyond a register that still belong to it
LEAST_SILENCE = 1e-4  # of full scale
LEAST_TURN = 3.0  # semitones from the first third to the last; less is level
LEAST_RISE = 7.0  # decibels, of a new note over what was before
LEAST_LEVEL = -26.0  # decibels from the loudest, of a new note
LOUDNESS_EDGE = math.sqrt(LOUDNESS["quiet"][1] * LOUDNESS["loud"][0])
LEAST_ONSETS = 3  # fewer make no tempo
ATTRIBUTES = ("timbre", "register", "tempo", "direction", "loudness")


@dataclass(frozen=True)
class Finding:
    """What the judge hears; none where a word does not apply. `rate` is in notes a second, `unexplained` the share
    (0 to about 1) of the sound that the timbre does not explain."""

    timbre: str | None
    register: str | None
    tempo: str | None
    direction: str | None
    loudness: str
    rate: float
    unexplained: float


SILENCE = Finding(None, None, None, None, "quiet", 0.0, 1.0)


def judge(wave: npt.ArrayLike) -> Finding:
    """What a sound (samples at 16 kHz) is."""
    samples = np.asarray(wave, np.float64).reshape(-1)
    if not len(samples) or not np.isfinite(samples).all() or np.abs(samples).max() < LEAST_SILENCE:
        return SILENCE
    powers = _band_powers(samples)
    labels, atoms = _dictionaries()
    unexplained = _unexplained(_shape(powers.mean(axis=1)), atoms)
    best = int(np.argmin(unexplained))
    timbre, register = labels[best]
    seconds = _interval(samples)
    pitched = timbre in TIMBRES
    return Finding(
        timbre=timbre,
        register=register,
        tempo=_tempo(seconds) if timbre not in NOISES else None,
        direction=_direction(powers, atoms[best] if pitched else None),
        loudness="loud" if np.abs(samples).max() > LOUDNESS_EDGE else "quiet",
        rate=1 / seconds if seconds else 0.0,
        unexplained=float(unexplained[best]),
    )


def match(record: SoundRecord, finding: Finding) -> dict[str, bool]:
    """Under the name of each word that applies to the record, whether it was found; a tempo or a direction that is
    heard where there is none counts as wrong."""
    names = ["timbre", "tempo", "direction", "loudness"] + (["register"] if record["register"] else [])
    return {name: getattr(finding, name) == dict(record)[name] for name in names}


# --- bands ------------------------------------------------------------------------------------------------------


@functools.cache
def _band_matrix() -> FloatArray:
    """Shares (bands, bins) of each bin's power; a bin lies between the two nearest semitones."""
    bins = np.arange(1, N_FFT // 2 + 1) * (RATE / N_FFT)
    place = np.clip(69 + OCTAVE * np.log2(bins / 440.0) - LOWEST_KEY, 0, BANDS - 1.001)
    below = place.astype(np.int64)
    matrix = np.zeros((BANDS, len(bins) + 1))
    columns = np.arange(1, len(bins) + 1)
    matrix[below, columns] = 1 - (place - below)
    matrix[below + 1, columns] += place - below
    return matrix


def _band_powers(samples: FloatArray) -> FloatArray:
    """Power in each semitone at each moment, (bands, frames)."""
    padded = np.pad(samples, (N_FFT // 2, N_FFT))
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[: len(samples) + 1 : HOP]
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(N_FFT), axis=1)) ** 2
    powers = _band_matrix() @ spectrum.T
    # Over neighbours too: a pitch that glides through a semitone is to look like one that stays in it.
    around = np.pad(powers, ((1, 1), (0, 0)))
    return np.asarray(0.5 * powers + 0.25 * (around[:-2] + around[2:]))


def _shape(powers: FloatArray) -> FloatArray:
    """Amplitudes instead of powers, so that weak partials count, with a floor and a sum of 1; over the first axis."""
    amplitudes = np.sqrt(powers / np.maximum(powers.max(axis=0, keepdims=True), 1e-30))
    amplitudes = np.maximum(amplitudes, math.sqrt(FLOOR))
    return np.asarray(amplitudes / amplitudes.sum(axis=0, keepdims=True))


@functools.cache
def _dictionaries() -> tuple[list[tuple[str, str | None]], FloatArray]:
    """What is compared with: (timbre, register), and the shapes of its notes, (entries, bands, notes)."""
    labels: list[tuple[str, str | None]] = []
    atoms = []
    notes = OCTAVE + 1 + 2 * MARGIN
    for number, timbre in enumerate(TIMBRES):
        for register, lowest in REGISTERS.items():
            rng = np.random.default_rng([EXAMPLE_SEED, number, lowest])
            keys = lowest - MARGIN + np.arange(notes)
            sounds = [play(rng, timbre, np.full(RATE // 2, float(key))) for key in keys]
            labels.append((timbre, register))
            atoms.append(np.stack([_shape(_band_powers(sound).mean(axis=1)) for sound in sounds], axis=1))
    rng = np.random.default_rng([EXAMPLE_SEED, len(TIMBRES)])
    for drum in DRUMS:
        hits = np.concatenate([strike(rng, drum) for _ in range(20)])
        labels.append((drum, None))
        atoms.append(np.repeat(_shape(_band_powers(hits).mean(axis=1))[:, None], notes, axis=1))
    for noise in NOISES:
        waves = [blow(rng, noise, 4 * RATE, direction) for direction in ("rising", "falling")]
        labels.append((noise, None))
        atoms.append(np.repeat(_shape(_band_powers(np.concatenate(waves)).mean(axis=1))[:, None], notes, axis=1))
    return labels, np.stack(atoms)


def _weights(shape: FloatArray, atoms: FloatArray, rounds: int = ROUNDS) -> FloatArray:
    """How much of each note there is, none negative: (..., bands, frames) by (..., bands, notes)."""
    weights = np.full((*atoms.shape[:-2], atoms.shape[-1], shape.shape[-1]), 1 / atoms.shape[-1])
    for _ in range(rounds):
        ratio = shape / np.maximum(atoms @ weights, 1e-12)
        weights = weights * (np.swapaxes(atoms, -1, -2) @ ratio)
    return weights


def _unexplained(shape: FloatArray, atoms: FloatArray) -> FloatArray:
    """For each dictionary the divergence of the shape from the best sum of its notes."""
    target = shape[:, None]
    explained = (atoms @ _weights(target, atoms))[..., 0]
    return np.asarray((shape * np.log(shape / explained)).sum(axis=-1))


# --- direction and tempo ----------------------------------------------------------------------------------------


def _direction(powers: FloatArray, atoms: FloatArray | None) -> str | None:
    """Whether the pitch, or without notes the middle of the power, is higher at the end than at the beginning."""
    strength = powers.sum(axis=0)
    heard = strength > 1e-3 * strength.max()
    frames, strength = powers[:, heard], strength[heard]
    shares = frames if atoms is None else _weights(_shape(frames), atoms, rounds=20)
    middle = (np.arange(len(shares))[:, None] * shares).sum(axis=0) / shares.sum(axis=0)
    weight = np.sqrt(strength)
    third = max(1, len(middle) // 3)
    start, end = (np.average(middle[part], weights=weight[part]) for part in (slice(third), slice(-third, None)))
    if abs(end - start) < LEAST_TURN:
        return None
    return "rising" if end > start else "falling"


def _interval(samples: FloatArray) -> float | None:
    """The usual time from one onset to the next, in seconds."""
    hop = RATE // 200
    energy = np.add.reduceat(samples**2, np.arange(0, len(samples), hop))
    smooth = np.convolve(energy, np.hanning(9) / np.hanning(9).sum(), mode="same")
    level = np.maximum(10 * np.log10(smooth / smooth.max() + 1e-12), -50.0)
    onsets, low, high = [], level[0], -math.inf
    rising = False
    for place, value in enumerate(level):
        if rising:
            if value > high:
                high = value
            elif value < high - LEAST_RISE:
                rising, low = False, value
        elif value > low + LEAST_RISE and value > LEAST_LEVEL:
            rising, high = True, value
            onsets.append(place)
        else:
            low = min(low, value)
    if len(onsets) < LEAST_ONSETS:
        return None
    return float(np.median(np.diff(onsets))) * hop / RATE


def _tempo(interval: float | None) -> str | None:
    if interval is None:
        return None
    return min(TEMPOS, key=lambda tempo: abs(math.log(interval / math.sqrt(TEMPOS[tempo][0] * TEMPOS[tempo][1]))))


class SoundsJudge(Judge[tuple[Tensor, int]]):
    """Waves (samples) with their sample rates: whether each word that applies to a sound is true of the wave."""

    def knows(self, row: Row) -> bool:
        return has_keys(row.get("sound"), ("kind", *ATTRIBUTES))

    def score(self, media: tuple[Tensor, int], row: Row) -> Scores:
        found = _found(*media, row)
        return {f"match_{name}": float(found.get(name, math.nan)) for name in ATTRIBUTES}

    def score_withheld(self, media: tuple[Tensor, int], row: Row) -> Scores:
        found = _found(*media, row)
        return {"match_withheld": float(found["timbre"] and found.get("register", True))}


def _found(wave: Tensor, rate: int, row: Row) -> dict[str, bool]:
    samples = resample(wave.detach().float().cpu().numpy(), rate, RATE)
    return match(row["sound"], judge(np.asarray(samples, np.float64)))
