"""Pitch class of a single tone by autocorrelation, without any model.

The period of each window is the shortest lag whose normalized autocorrelation is nearly the maximum (McLeod and Wyvill
2005). Windows vote for the pitch class, weighted by loudness and clarity.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CLASSES = 12
WINDOW_SECONDS = 0.128
MIN_HERTZ, MAX_HERTZ = 30.0, 2500.0
PEAK_FRACTION = 0.9
"""Fraction of the highest peak from which a shorter lag is preferred; longer lags are often its multiples."""
MIN_CLARITY = 0.5
"""Minimum autocorrelation at the period; an exactly periodic signal has 1, noise has less."""
MIN_LEVEL = 1e-4

_NAMES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


def captioned_class(caption: str) -> int | None:
    """The pitch class (0 is C) in a caption like "alto sax, note D sharp 4"; None if there is none."""
    found = re.search(r"note ([A-G])( sharp| flat)? ?-?\d", caption)
    if found is None:
        return None
    shift = {" sharp": 1, " flat": -1}.get(found[2] or "", 0)
    return (_NAMES[found[1]] + shift) % CLASSES


def pitch_class(wave: npt.ArrayLike, rate: int) -> int | None:
    """The pitch class (0 is C) of a tone (samples,); None for silence and for a signal that is not periodic."""
    votes = np.zeros(CLASSES)
    for hertz, weight in _window_pitches(np.asarray(wave, np.float64).reshape(-1), rate):
        votes[round(69 + CLASSES * math.log2(hertz / 440)) % CLASSES] += weight
    return int(votes.argmax()) if votes.any() else None


def _window_pitches(samples: Floats, rate: int) -> list[tuple[float, float]]:
    """Pitch in Hz and weight of each window that has a pitch."""
    window = max(8, round(WINDOW_SECONDS * rate))
    samples = np.pad(samples, (0, max(0, window - len(samples))))
    found = []
    for start in range(0, len(samples) - window + 1, window // 2):
        frame = samples[start : start + window] - samples[start : start + window].mean()
        level = math.sqrt(float(np.square(frame).mean()))
        if level < MIN_LEVEL:
            continue
        lag, clarity = _period(_autocorrelation(frame), rate)
        if clarity >= MIN_CLARITY:
            found.append((rate / lag, level * clarity))
    return found


def _autocorrelation(frame: Floats) -> Floats:
    """Autocorrelation at each lag, normalized by the mean power of the overlap, from -1 to 1."""
    count = len(frame)
    spectrum = np.fft.rfft(frame, 2 * count)
    products = np.fft.irfft(np.abs(spectrum) ** 2)[:count]
    powers = np.concatenate([[0.0], np.cumsum(frame**2)])
    lags = np.arange(count)
    both = powers[count - lags] + powers[count] - powers[lags]
    return np.asarray(2 * products / np.maximum(both, 1e-12))


def _period(autocorrelation: Floats, rate: int) -> tuple[float, float]:
    """Period in samples, refined by a parabola, and the autocorrelation there."""
    # Beyond two thirds of the window the overlap is too short. Lags before the first negative value are no period.
    last = min(len(autocorrelation) * 2 // 3, math.ceil(rate / MIN_HERTZ))
    below = np.flatnonzero(autocorrelation[:last] < 0)
    first = max(int(below[0]) if len(below) else last, math.floor(rate / MAX_HERTZ), 1)
    inner = autocorrelation[first : last + 1]
    peaks = first + 1 + np.flatnonzero((inner[1:-1] >= inner[:-2]) & (inner[1:-1] > inner[2:]))
    if not len(peaks):
        return 1.0, 0.0
    heights = autocorrelation[peaks]
    peak = int(peaks[np.flatnonzero(heights >= PEAK_FRACTION * heights.max())[0]])
    left, middle, right = (float(autocorrelation[peak + step]) for step in (-1, 0, 1))
    bend = left - 2 * middle + right
    return peak + (0.5 * (left - right) / bend if bend else 0.0), middle


def accuracy(classes: list[tuple[int, int | None]]) -> dict[str, Any]:
    """Of pairs of expected and measured classes: count, fraction of equal pairs, and fraction without a pitch."""
    count = len(classes)
    right = sum(expected == measured for expected, measured in classes)
    none = sum(measured is None for _, measured in classes)
    return {"clips": count, "right": right / count, "no_pitch": none / count, "chance": 1 / CLASSES}
