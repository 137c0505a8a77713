"""Owns changes of the sample rate: a windowed sinc, evaluated at the phases that two whole rates have in common.

The output repeats its phases after `up` samples, in which the input moves on by `down`, so one small matrix holds all
filters and the whole is a matrix product. The stop band lies 100 dB down from the lower of the two Nyquist frequencies
on, the pass band ends at 0.9 of it.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Samples = npt.NDArray[np.float32]

LOBES = 64
"""Zero crossings of the sinc on either side."""
CUTOFF = 0.95
"""Of the lower Nyquist frequency, where the filter is 6 dB down."""
KAISER_BETA = 10.06
"""For a stop band of 100 dB."""
_LEAST_OUTPUTS = 32  # of one row of the matrix product: a few filters at a time would leave it idle
_MOST_WEIGHTS = 2**22  # of the matrix; rates with next to nothing in common take another way


def resampled_length(frames: int, source: int, target: int) -> int:
    """Output samples for so many input samples: as long in seconds, rounded up."""
    return -(-frames * target // source)


def input_span(start: int, count: int, source: int, target: int) -> tuple[int, int]:
    """The input samples (from, to) that so many output samples from `start` on depend on; they may lie outside."""
    up, down = _ratio(source, target)
    reach = _reach(up, down)
    return start * down // up - reach, -(-(start + count - 1) * down // up) + reach + 1


def resample(
    samples: Samples, source: int, target: int, *, offset: int = 0, start: int = 0, count: int = -1
) -> Samples:
    """Samples (..., n) at another rate; what is beyond the ends counts as silence.

    For a window: `samples` begin at input sample `offset` of the whole, and `count` output samples from `start` on are
    returned, the same as those of the whole if the input holds `input_span`.
    """
    if count < 0:
        count = resampled_length(offset + samples.shape[-1], source, target) - start
    if source == target:
        return _cut(samples, start - offset, count)
    up, down = _ratio(source, target)
    reach = _reach(up, down)
    repeats = max(1, -(-_LEAST_OUTPUTS // up))
    wide = up * repeats * (down * repeats + 2 * reach + 1)
    if wide > _MOST_WEIGHTS:
        return _by_gathering(samples, up, down, offset, start, count)
    import torch

    weights = _matrix(up, down, repeats)
    outputs, step = up * repeats, down * repeats
    first_row = start // outputs
    rows = -(-(start + count) // outputs) - first_row
    # Row r makes outputs r * outputs on, from inputs that begin `reach` before r * step.
    span = (rows - 1) * step + weights.shape[0]
    inputs = torch.from_numpy(_cut(samples, first_row * step - reach - offset, span))
    made = inputs.unfold(-1, weights.shape[0], step) @ weights
    skipped = start - first_row * outputs
    result: Samples = made.flatten(-2)[..., skipped : skipped + count].contiguous().numpy()
    return result


def _ratio(source: int, target: int) -> tuple[int, int]:
    common = math.gcd(source, target)
    return target // common, source // common


def _reach(up: int, down: int) -> int:
    """Input samples on either side of an output sample's place."""
    return math.ceil(LOBES * max(1.0, down / up) / CUTOFF) + 1


@functools.lru_cache(maxsize=8)
def _matrix(up: int, down: int, repeats: int) -> Tensor:
    """Weights (inputs, outputs) of one row."""
    import torch

    reach = _reach(up, down)
    outputs, step = up * repeats, down * repeats
    places = np.arange(outputs)[None, :] * (down / up)
    inputs = np.arange(step + 2 * reach + 1)[:, None] - reach
    return torch.from_numpy(_kernel(inputs - places, up, down).astype(np.float32))


def _kernel(distance: npt.NDArray[np.float64], up: int, down: int) -> npt.NDArray[np.float64]:
    """The filter at distances in input samples."""
    cutoff = CUTOFF * min(1.0, up / down)
    inside = np.clip(1.0 - (distance * cutoff / LOBES) ** 2, 0.0, None)
    window = np.where(inside > 0, np.i0(KAISER_BETA * np.sqrt(inside)) / np.i0(KAISER_BETA), 0.0)
    return np.asarray(cutoff * np.sinc(cutoff * distance) * window)


def _by_gathering(samples: Samples, up: int, down: int, offset: int, start: int, count: int) -> Samples:
    """For rates such as 44101 and 16000: each output's own filter, looked up in a fine table."""
    reach = _reach(up, down)
    table = _table(up, down)
    result = np.empty((*samples.shape[:-1], count), np.float32)
    taps = np.arange(-reach, reach + 1)
    for begin in range(0, count, 4096):
        numbers = np.arange(start + begin, start + min(begin + 4096, count))
        whole, part = numbers * down // up, (numbers * down % up) / up
        low, high = int(whole[0]) - reach, int(whole[-1]) + reach + 1
        near = _cut(samples, low - offset, high - low)[..., (whole - low)[:, None] + taps]
        place = np.abs(taps - part[:, None]) * _TABLE_STEPS
        step = place.astype(np.int64)
        weights = table[step] + (table[step + 1] - table[step]) * (place - step)
        result[..., begin : begin + len(numbers)] = np.einsum("...nt,nt->...n", near, weights.astype(np.float32))
    return result


_TABLE_STEPS = 2048  # between two input samples; linear in between is exact to 1e-7


@functools.lru_cache(maxsize=4)
def _table(up: int, down: int) -> npt.NDArray[np.float64]:
    return _kernel(np.arange((_reach(up, down) + 2) * _TABLE_STEPS) / _TABLE_STEPS, up, down)


def _cut(samples: Samples, start: int, count: int) -> Samples:
    """A piece that may reach beyond the ends, where silence is."""
    inside = samples[..., max(start, 0) : max(start + count, 0)]
    if inside.shape[-1] == count:
        return inside
    before = min(max(-start, 0), count)
    piece = np.zeros((*samples.shape[:-1], count), np.float32)
    piece[..., before : before + inside.shape[-1]] = inside
    return piece
