"""Owns how high a single tone is, by autocorrelation alone: no model has a say in it.

In each stretch of a sound, the shortest delay counts at which it resembles itself nearly as well as at any delay
(McLeod and Wyvill 2005). Stretches vote for the pitch class by how loud they are and how well they resemble themselves.
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
LOWEST, HIGHEST = 30.0, 2500.0
"""Hertz."""
NEARLY = 0.9
"""Of the best resemblance, that of a shorter delay that is taken instead: longer ones are often multiples of it."""
LEAST_CLARITY = 0.5
"""Of 1, which is a sound that repeats itself exactly; noise has less."""
LEAST_SILENCE = 1e-4

_NAMES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


def captioned_class(caption: str) -> int | None:
    """The pitch class, 0 for C, that a caption like "alto sax, note D sharp 4" tells."""
    found = re.search(r"note ([A-G])( sharp| flat)? ?-?\d", caption)
    if found is None:
        return None
    shift = {" sharp": 1, " flat": -1}.get(found[2] or "", 0)
    return (_NAMES[found[1]] + shift) % CLASSES


def pitch_class(wave: npt.ArrayLike, rate: int) -> int | None:
    """The pitch class of a tone (samples), 0 for C; none of silence, and where nothing repeats itself."""
    votes = np.zeros(CLASSES)
    for hertz, weight in _heard(np.asarray(wave, np.float64).reshape(-1), rate):
        votes[round(69 + CLASSES * math.log2(hertz / 440)) % CLASSES] += weight
    return int(votes.argmax()) if votes.any() else None


def _heard(samples: Floats, rate: int) -> list[tuple[float, float]]:
    """The pitch of each stretch that has one, in Hz, and its weight."""
    window = max(8, round(WINDOW_SECONDS * rate))
    samples = np.pad(samples, (0, max(0, window - len(samples))))
    found = []
    for start in range(0, len(samples) - window + 1, window // 2):
        stretch = samples[start : start + window] - samples[start : start + window].mean()
        level = math.sqrt(float(np.square(stretch).mean()))
        if level < LEAST_SILENCE:
            continue
        delay, clarity = _period(_resemblance(stretch), rate)
        if clarity >= LEAST_CLARITY:
            found.append((rate / delay, level * clarity))
    return found


def _resemblance(stretch: Floats) -> Floats:
    """With itself at each delay, -1 to 1: the autocorrelation over the mean power of what overlaps."""
    count = len(stretch)
    spectrum = np.fft.rfft(stretch, 2 * count)
    products = np.fft.irfft(np.abs(spectrum) ** 2)[:count]
    powers = np.concatenate([[0.0], np.cumsum(stretch**2)])
    delays = np.arange(count)
    both = powers[count - delays] + powers[count] - powers[delays]
    return np.asarray(2 * products / np.maximum(both, 1e-12))


def _period(resemblance: Floats, rate: int) -> tuple[float, float]:
    """The delay in samples, between two of them by a parabola, and how well it resembles."""
    # Beyond two thirds of the window too little overlaps. Before the first fall below 0 all resembles itself.
    last = min(len(resemblance) * 2 // 3, math.ceil(rate / LOWEST))
    below = np.flatnonzero(resemblance[:last] < 0)
    first = max(int(below[0]) if len(below) else last, math.floor(rate / HIGHEST), 1)
    inner = resemblance[first : last + 1]
    peaks = first + 1 + np.flatnonzero((inner[1:-1] >= inner[:-2]) & (inner[1:-1] > inner[2:]))
    if not len(peaks):
        return 1.0, 0.0
    heights = resemblance[peaks]
    peak = int(peaks[np.flatnonzero(heights >= NEARLY * heights.max())[0]])
    left, middle, right = (float(resemblance[peak + step]) for step in (-1, 0, 1))
    bend = left - 2 * middle + right
    return peak + (0.5 * (left - right) / bend if bend else 0.0), middle


def share_right(classes: list[tuple[int, int | None]]) -> dict[str, Any]:
    """Of pairs of what was wanted and heard: how many, the share of equal ones, and of those without a pitch."""
    count = len(classes)
    right = sum(wanted == heard for wanted, heard in classes)
    none = sum(heard is None for _, heard in classes)
    return {"clips": count, "right": right / count, "no_pitch": none / count, "chance": 1 / CLASSES}
