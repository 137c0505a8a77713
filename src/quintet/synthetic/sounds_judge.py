"""The judge of the dataset `sounds`: signal analysis without learned weights that recognises the attributes of a clip.

The mean power of the clip in semitone bands is decomposed (NMF) into notes of one timbre in one register, as the
synthesiser of the dataset renders them, or into one drum or noise; the decomposition with the smallest residual gives
timbre and register. The notes in each frame give the direction, and the onsets the tempo. `match` compares a finding
with the attributes of a caption.
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
LOWEST_KEY = 24  # 33 Hz; the bands continue from there in semitones
BANDS = 98  # up to the Nyquist frequency
ITERATIONS = 60  # of NMF; more change no finding
FLOOR = 1e-4  # of the strongest band: lower values are leakage of the window
EXAMPLE_SEED = 2**40  # far from the seeds of datasets
MARGIN = 2  # semitones beyond a register that still belong to it
MIN_AMPLITUDE = 1e-4  # of full scale
MIN_INTERVAL = 3.0  # semitones from the first third to the last; less is no direction
MIN_RISE = 7.0  # dB, of an onset over the level before it
MIN_LEVEL = -26.0  # dB below the maximum, of an onset
LOUDNESS_EDGE = math.sqrt(LOUDNESS["quiet"][1] * LOUDNESS["loud"][0])
MIN_ONSETS = 3  # fewer give no tempo
ATTRIBUTES = ("timbre", "register", "tempo", "direction", "loudness")


@dataclass(frozen=True)
class Finding:
    """Recognised attributes, None if one does not apply. `rate` is in notes per second, `unexplained` the divergence (0
    to about 1) of the clip from the best decomposition."""

    timbre: str | None
    register: str | None
    tempo: str | None
    direction: str | None
    loudness: str
    rate: float
    unexplained: float


SILENCE = Finding(None, None, None, None, "quiet", 0.0, 1.0)


def judge(wave: npt.ArrayLike) -> Finding:
    """Recognise the attributes of a clip (samples,) at 16 kHz."""
    samples = np.asarray(wave, np.float64).reshape(-1)
    if not len(samples) or not np.isfinite(samples).all() or np.abs(samples).max() < MIN_AMPLITUDE:
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
    """Whether each attribute that applies to the record was recognised, by name; a tempo or a direction that is
    recognised but does not apply counts as wrong."""
    names = ["timbre", "tempo", "direction", "loudness"] + (["register"] if record["register"] else [])
    return {name: getattr(finding, name) == dict(record)[name] for name in names}


# --- bands ------------------------------------------------------------------------------------------------------


@functools.cache
def _band_matrix() -> FloatArray:
    """Weights (bands, bins) from FFT bins to bands; a bin is interpolated between the two nearest semitones."""
    bins = np.arange(1, N_FFT // 2 + 1) * (RATE / N_FFT)
    position = np.clip(69 + OCTAVE * np.log2(bins / 440.0) - LOWEST_KEY, 0, BANDS - 1.001)
    below = position.astype(np.int64)
    matrix = np.zeros((BANDS, len(bins) + 1))
    columns = np.arange(1, len(bins) + 1)
    matrix[below, columns] = 1 - (position - below)
    matrix[below + 1, columns] += position - below
    return matrix


def _band_powers(samples: FloatArray) -> FloatArray:
    """Power in each semitone band and frame, (bands, frames)."""
    padded = np.pad(samples, (N_FFT // 2, N_FFT))
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[: len(samples) + 1 : HOP]
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(N_FFT), axis=1)) ** 2
    powers = _band_matrix() @ spectrum.T
    # Smoothed over neighbours, so that a gliding pitch looks like a constant one.
    around = np.pad(powers, ((1, 1), (0, 0)))
    return np.asarray(0.5 * powers + 0.25 * (around[:-2] + around[2:]))


def _shape(powers: FloatArray) -> FloatArray:
    """Normalised amplitudes (sum 1 over the first axis, with a floor), so that weak partials count."""
    amplitudes = np.sqrt(powers / np.maximum(powers.max(axis=0, keepdims=True), 1e-30))
    amplitudes = np.maximum(amplitudes, math.sqrt(FLOOR))
    return np.asarray(amplitudes / amplitudes.sum(axis=0, keepdims=True))


@functools.cache
def _dictionaries() -> tuple[list[tuple[str, str | None]], FloatArray]:
    """The dictionaries: labels (timbre, register), and spectra of their notes (dictionaries, bands, notes)."""
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


def _weights(shape: FloatArray, atoms: FloatArray, rounds: int = ITERATIONS) -> FloatArray:
    """Non-negative weights (..., notes, frames) of notes (..., bands, notes) in `shape` (..., bands, frames)."""
    weights = np.full((*atoms.shape[:-2], atoms.shape[-1], shape.shape[-1]), 1 / atoms.shape[-1])
    for _ in range(rounds):
        ratio = shape / np.maximum(atoms @ weights, 1e-12)
        weights = weights * (np.swapaxes(atoms, -1, -2) @ ratio)
    return weights


def _unexplained(shape: FloatArray, atoms: FloatArray) -> FloatArray:
    """The divergence of the spectrum (bands,) from the best decomposition, for each dictionary, (dictionaries,)."""
    target = shape[:, None]
    explained = (atoms @ _weights(target, atoms))[..., 0]
    return np.asarray((shape * np.log(shape / explained)).sum(axis=-1))


# --- direction and tempo ----------------------------------------------------------------------------------------


def _direction(powers: FloatArray, atoms: FloatArray | None) -> str | None:
    """Whether the pitch (or, without notes, the spectral centroid) rises or falls; None for neither."""
    strength = powers.sum(axis=0)
    audible = strength > 1e-3 * strength.max()
    frames, strength = powers[:, audible], strength[audible]
    weights = frames if atoms is None else _weights(_shape(frames), atoms, rounds=20)
    middle = (np.arange(len(weights))[:, None] * weights).sum(axis=0) / weights.sum(axis=0)
    weight = np.sqrt(strength)
    third = max(1, len(middle) // 3)
    start, end = (np.average(middle[part], weights=weight[part]) for part in (slice(third), slice(-third, None)))
    if abs(end - start) < MIN_INTERVAL:
        return None
    return "rising" if end > start else "falling"


def _interval(samples: FloatArray) -> float | None:
    """The median time between onsets, in seconds; None for too few onsets."""
    hop = RATE // 200
    energy = np.add.reduceat(samples**2, np.arange(0, len(samples), hop))
    smooth = np.convolve(energy, np.hanning(9) / np.hanning(9).sum(), mode="same")
    level = np.maximum(10 * np.log10(smooth / smooth.max() + 1e-12), -50.0)
    onsets, low, high = [], level[0], -math.inf
    rising = False
    for index, value in enumerate(level):
        if rising:
            if value > high:
                high = value
            elif value < high - MIN_RISE:
                rising, low = False, value
        elif value > low + MIN_RISE and value > MIN_LEVEL:
            rising, high = True, value
            onsets.append(index)
        else:
            low = min(low, value)
    if len(onsets) < MIN_ONSETS:
        return None
    return float(np.median(np.diff(onsets))) * hop / RATE


def _tempo(interval: float | None) -> str | None:
    if interval is None:
        return None
    return min(TEMPOS, key=lambda tempo: abs(math.log(interval / math.sqrt(TEMPOS[tempo][0] * TEMPOS[tempo][1]))))


class SoundsJudge(Judge[tuple[Tensor, int]]):
    """Judge of waves (samples,) with their sampling rates: whether each attribute that applies matches."""

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
