"""Audio files: reading a file or a window of it at a sampling rate, resampling, loudness, properties, and writing.

Samples are float32 (channels, frames), where 1 is full scale. A file that cannot be used raises `UnreadableItem` with
the reason; silent, clipped and multichannel files can be used. Importing this module imports neither torch nor a
decoder.
"""

from __future__ import annotations

import functools
import io
import math
import os
import wave
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quintet.common.files import atomic_write, replace_bytes
from quintet.errors import UsageError
from quintet.media.audio_formats import AudioHeader, Samples, read_blocks, read_frames, read_header
from quintet.media.budget import check_memory
from quintet.media.files import MediaFile

if TYPE_CHECKING:
    from torch import Tensor

EXTENSIONS = frozenset(
    {
        *(".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".au", ".caf", ".w64", ".rf64"),
        *(".m4a", ".aac", ".wma", ".mka"),
    }
)
LOBES = 64
"""Zero crossings of the windowed sinc filter on either side."""
CUTOFF = 0.95
"""Cutoff at -6 dB, as a fraction of the lower Nyquist frequency."""
KAISER_BETA = 10.06
"""Shape of the Kaiser window, for a stop band of 100 dB."""
_LEAST_OUTPUTS = 32  # of one row of the matrix product, which is slow for a few filters at a time
_PIECE = 2**22  # samples that are resampled or measured at a time; the results are those of one piece
_MOST_WEIGHTS = 2**22  # of the matrix; rates with a small common divisor use `_resample_irregular`


def resampled_length(frames: int, source: int, target: int) -> int:
    """Number of output samples for `frames` input samples, rounded up."""
    return -(-frames * target // source)


def input_span(start: int, count: int, source: int, target: int) -> tuple[int, int]:
    """Range of input samples that `count` output samples from `start` on depend on; it may exceed the input."""
    up, down = _ratio(source, target)
    reach = _reach(up, down)
    return start * down // up - reach, -(-(start + count - 1) * down // up) + reach + 1


def resample(
    samples: Samples, source: int, target: int, *, offset: int = 0, start: int = 0, count: int = -1
) -> Samples:
    """Resample (..., n) to (..., count); samples beyond the ends count as zero.

    For a window of a longer signal, `samples` start at its input sample `offset`, and `count` output samples from
    `start` on are returned. They equal those of the full signal if the input covers `input_span`.
    """
    if count < 0:
        count = resampled_length(offset + samples.shape[-1], source, target) - start
    if source == target:
        return _slice_padded(samples, start - offset, count)
    up, down = _ratio(source, target)
    reach = _reach(up, down)
    repeats = max(1, -(-_LEAST_OUTPUTS // up))
    weight_count = up * repeats * (down * repeats + 2 * reach + 1)
    if weight_count > _MOST_WEIGHTS:
        return _resample_irregular(samples, up, down, offset, start, count)
    import torch

    weights = _matrix(up, down, repeats)
    outputs, step = up * repeats, down * repeats
    first_row = start // outputs
    rows = -(-(start + count) // outputs) - first_row
    # Row r computes the outputs from r * outputs on, from inputs that start `reach` before r * step.
    span = (rows - 1) * step + weights.shape[0]
    inputs = torch.from_numpy(_slice_padded(samples, first_row * step - reach - offset, span))
    with torch.autocast("cpu", enabled=False):  # a judge resamples what a model in bf16 has generated
        resampled = inputs.unfold(-1, weights.shape[0], step) @ weights
    skipped = start - first_row * outputs
    result: Samples = resampled.flatten(-2)[..., skipped : skipped + count].contiguous().numpy()
    return result


def _ratio(source: int, target: int) -> tuple[int, int]:
    common = math.gcd(source, target)
    return target // common, source // common


def _reach(up: int, down: int) -> int:
    """Number of input samples on either side of an output sample."""
    return math.ceil(LOBES * max(1.0, down / up) / CUTOFF) + 1


@functools.lru_cache(maxsize=8)
def _matrix(up: int, down: int, repeats: int) -> Tensor:
    """Weights (inputs, outputs) of one row."""
    import torch

    reach = _reach(up, down)
    outputs, step = up * repeats, down * repeats
    positions = np.arange(outputs)[None, :] * (down / up)
    inputs = np.arange(step + 2 * reach + 1)[:, None] - reach
    return torch.from_numpy(_kernel(inputs - positions, up, down).astype(np.float32))


def _kernel(distance: npt.NDArray[np.float64], up: int, down: int) -> npt.NDArray[np.float64]:
    """The filter at distances in input samples."""
    cutoff = CUTOFF * min(1.0, up / down)
    inside = np.clip(1.0 - (distance * cutoff / LOBES) ** 2, 0.0, None)
    window = np.where(inside > 0, np.i0(KAISER_BETA * np.sqrt(inside)) / np.i0(KAISER_BETA), 0.0)
    return np.asarray(cutoff * np.sinc(cutoff * distance) * window)


def _resample_irregular(samples: Samples, up: int, down: int, offset: int, start: int, count: int) -> Samples:
    """For rates such as 44101 and 16000: a filter per output sample, interpolated in a fine table."""
    reach = _reach(up, down)
    table = _table(up, down)
    result = np.empty((*samples.shape[:-1], count), np.float32)
    taps = np.arange(-reach, reach + 1)
    for begin in range(0, count, 4096):
        numbers = np.arange(start + begin, start + min(begin + 4096, count))
        whole, part = numbers * down // up, (numbers * down % up) / up
        low, high = int(whole[0]) - reach, int(whole[-1]) + reach + 1
        near = _slice_padded(samples, low - offset, high - low)[..., (whole - low)[:, None] + taps]
        position = np.abs(taps - part[:, None]) * _TABLE_STEPS
        step = position.astype(np.int64)
        weights = table[step] + (table[step + 1] - table[step]) * (position - step)
        result[..., begin : begin + len(numbers)] = np.einsum("...nt,nt->...n", near, weights.astype(np.float32))
    return result


_TABLE_STEPS = 2048  # per input sample; linear interpolation is exact to 1e-7


@functools.lru_cache(maxsize=4)
def _table(up: int, down: int) -> npt.NDArray[np.float64]:
    return _kernel(np.arange((_reach(up, down) + 2) * _TABLE_STEPS) / _TABLE_STEPS, up, down)


def _slice_padded(samples: Samples, start: int, count: int) -> Samples:
    """`count` samples from `start` on, with zeros beyond the ends."""
    inside = samples[..., max(start, 0) : max(start + count, 0)]
    if inside.shape[-1] == count:
        return inside
    before = min(max(-start, 0), count)
    piece = np.zeros((*samples.shape[:-1], count), np.float32)
    piece[..., before : before + inside.shape[-1]] = inside
    return piece


BLOCK_SECONDS = 0.4
OVERLAP = 0.75
ABSOLUTE_GATE = -70.0
RELATIVE_GATE = -10.0
_OFFSET = -0.691

# Analogue prototypes of the filters of ITU-R BS.1770, a high shelf and a high pass; its table for 48 kHz follows from
# them.
_SHELF_HERTZ, _SHELF_QUALITY, _SHELF_DECIBEL = 1681.974450955533, 0.7071752369554196, 3.999843853973347
_PASS_HERTZ, _PASS_QUALITY = 38.13547087602444, 0.5003270373238773


def loudness(samples: Samples, rate: int) -> float:
    """Loudness in LUFS, minus infinity for silence. All channels have the same weight; a short clip is one block."""
    size = min(samples.shape[-1], round(BLOCK_SECONDS * rate))
    step = max(1, round(size * (1 - OVERLAP)))
    windows = np.lib.stride_tricks.sliding_window_view(np.atleast_2d(samples), size, axis=-1)[:, ::step]
    counted = np.full(size // 2 + 1, 2.0)  # each bin also counts for its negative frequency
    counted[0] = 1.0
    if size % 2 == 0:
        counted[-1] = 1.0
    weights = counted * _weights(size, rate)
    batch = max(1, _PIECE // (size * len(windows)))  # spectra take several times the memory of the samples
    powers = np.concatenate(
        [
            ((np.abs(np.fft.rfft(windows[:, first : first + batch], axis=-1)) ** 2) @ weights).sum(axis=0) / size**2
            for first in range(0, windows.shape[1], batch)
        ]
    )
    levels = _OFFSET + 10 * np.log10(np.maximum(powers, 1e-20))
    audible = powers[levels > ABSOLUTE_GATE]
    if not len(audible):
        return -math.inf
    gate = _OFFSET + 10 * math.log10(float(audible.mean())) + RELATIVE_GATE
    gated = powers[levels > max(gate, ABSOLUTE_GATE)]
    return _OFFSET + 10 * math.log10(float(gated.mean()))


def to_loudness(samples: Samples, rate: int, target: float, *, in_place: bool = False) -> Samples:
    """Scale samples to a loudness in LUFS, or as near as full scale allows. Silence stays silence."""
    now = loudness(samples, rate)
    peak = max(float(samples.max(initial=0.0)), -float(samples.min(initial=0.0)))
    if now == -math.inf or peak == 0.0:
        return samples
    gain = min(10 ** ((target - now) / 20), 1 / peak)
    return np.asarray(np.multiply(samples, np.float32(gain), out=samples if in_place else None))


def _weights(size: int, rate: int) -> npt.NDArray[np.float64]:
    """Power gain of the two filters at each frequency of a block."""
    frequencies = np.arange(size // 2 + 1) * (rate / size)
    # Frequency axis of the digital filter, warped by the bilinear transform.
    warped = np.tan(np.pi * np.minimum(frequencies / rate, 0.4999))
    gain = 10 ** (_SHELF_DECIBEL / 20)
    shelf, high_pass = (
        1j * warped / np.tan(np.pi * min(hertz / rate, 0.4999)) for hertz in (_SHELF_HERTZ, _PASS_HERTZ)
    )
    lifted = (shelf**2 * gain + shelf * gain**0.4996667741545416 / _SHELF_QUALITY + 1) / (
        shelf**2 + shelf / _SHELF_QUALITY + 1
    )
    passed = high_pass**2 / (high_pass**2 + high_pass / _PASS_QUALITY + 1)
    return np.asarray(np.abs(lifted * passed) ** 2)


SILENCE = 1e-4
"""Peak below which a file is silent: 80 dB below full scale."""
FULL_SCALE = 0.9999
CLIPPED_RUN = 3
"""Consecutive samples at full scale that count as clipping."""
CLIPPED_FRACTION = 1e-4
WRITABLE = {".wav": "WAV", ".flac": "FLAC"}


@dataclass(frozen=True, slots=True)
class AudioFacts:
    """Properties of a file, after decoding all of it."""

    seconds: float
    rate: int
    channels: int
    format: str
    peak: float
    clipped_fraction: float

    @property
    def silent(self) -> bool:
        return self.peak < SILENCE

    @property
    def clipped(self) -> bool:
        return self.clipped_fraction > CLIPPED_FRACTION


# --- reading ----------------------------------------------------------------------------------------------------


def read_audio(
    path: MediaFile,
    rate: int | None = None,
    *,
    start: int = 0,
    frames: int | None = None,
    mono: bool = True,
    header: AudioHeader | None = None,
) -> Samples:
    """A file, or `frames` of it from frame `start` on (both at `rate`), without decoding the rest.

    Returns (channels, frames), with fewer frames if the file ends earlier. With `mono` the channels are averaged. A
    known `header` is not read again.
    """
    header = header or read_header(path)
    rate = rate or header.rate
    length = resampled_length(header.frames, header.rate, rate)
    if not 0 <= start < length:
        raise ValueError(f"frame {start} of {path}, which has {length} at {rate} Hz")
    count = length - start if frames is None else min(frames, length - start)
    channels = 1 if mono else header.channels
    check_memory(4 * channels * count, f"{count / rate:.0f} s of audio at {rate} Hz")
    step = max(1, min(_PIECE, _PIECE * rate // header.rate) // header.channels)
    pieces = [(begin, min(step, start + count - begin)) for begin in range(start, start + count, step)]
    if len(pieces) == 1:
        return _resampled(path, header, rate, start, count, mono)
    result = np.empty((channels, count), np.float32)
    for begin, samples in _streamed(path, header, rate, pieces, mono):
        result[:, begin - start : begin - start + samples.shape[1]] = samples
    return result


def read_channels(
    path: MediaFile,
    channels: int,
    rate: int,
    *,
    start: int = 0,
    frames: int | None = None,
    header: AudioHeader | None = None,
) -> Samples:
    """A file or a window of it, as `read_audio` reads them, in mono (1) or in stereo (2): (channels, frames).

    In stereo, a file that has not exactly two channels is mixed to mono, which both channels then are.
    """
    header = header or read_header(path)
    mono = channels == 1 or header.channels != channels
    samples = read_audio(path, rate, start=start, frames=frames, mono=mono, header=header)
    return samples if len(samples) == channels else np.repeat(samples, channels, axis=0)


def _inputs(header: AudioHeader, rate: int, start: int, count: int) -> tuple[int, int]:
    """First and last sample of a file that `count` samples at another rate depend on."""
    first, last = (start, start + count) if rate == header.rate else input_span(start, count, header.rate, rate)
    return max(first, 0), min(last, header.frames)


def _mixed(samples: Samples, mono: bool) -> Samples:
    return samples.mean(axis=0, keepdims=True) if mono and len(samples) > 1 else samples


def _resampled(path: MediaFile, header: AudioHeader, rate: int, start: int, count: int, mono: bool) -> Samples:
    first, last = _inputs(header, rate, start, count)
    samples = _mixed(read_frames(path, header, first, last - first), mono)
    return resample(samples, header.rate, rate, offset=first, start=start, count=count)


def _streamed(
    path: MediaFile, header: AudioHeader, rate: int, pieces: Sequence[tuple[int, int]], mono: bool
) -> Iterator[tuple[int, Samples]]:
    """Starts and samples of consecutive pieces of a long file, which is decoded once."""
    first, last = _inputs(header, rate, pieces[0][0], sum(count for _, count in pieces))
    blocks = read_blocks(path, header, first, last - first)
    held, offset = np.zeros((1 if mono else header.channels, 0), np.float32), first
    for start, count in pieces:
        low, high = _inputs(header, rate, start, count)
        parts = [held[:, low - offset :]]
        end = offset + held.shape[1]
        while end < high:
            parts.append(_mixed(next(blocks), mono))
            end += parts[-1].shape[1]
        held, offset = np.concatenate(parts, axis=1), low
        yield start, resample(held[:, : high - low], header.rate, rate, offset=low, start=start, count=count)


def window_starts(frames: int, window: int, stride: int, max_windows: int) -> list[int]:
    """Evenly spaced starts of the windows of a clip, at most `stride` apart unless `max_windows` allows fewer."""
    if frames <= window:
        return [0]
    count = min(-(-(frames - window) // stride) + 1, max_windows)
    if count == 1:
        return [(frames - window) // 2]
    return [round(number * (frames - window) / (count - 1)) for number in range(count)]


def probe_audio(path: MediaFile) -> AudioFacts:
    """Properties of a file, after decoding all of it."""
    header = read_header(path)
    peak, clipped = 0.0, 0
    for block in read_blocks(path, header):
        peak = max(peak, float(np.abs(block).max()))
        clipped += _clipped(block)
    clipped_fraction = clipped / (header.frames * header.channels)
    return AudioFacts(header.seconds, header.rate, header.channels, header.format, peak, clipped_fraction)


def _clipped(block: Samples) -> int:
    """Number of samples in runs of at least `CLIPPED_RUN` at full scale; runs are split at the ends of blocks."""
    count = 0
    for side in (block >= FULL_SCALE, block <= -FULL_SCALE):
        if side.any():
            edges = np.diff(np.pad(side, ((0, 0), (1, 1))).astype(np.int8), axis=1)
            runs = np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]
            count += int(runs[runs >= CLIPPED_RUN].sum())
    return count


# --- writing ----------------------------------------------------------------------------------------------------


def write_audio(samples: Samples | Tensor | Sequence[float], path: str | os.PathLike[str], rate: int) -> Path:
    """Write (frames,) or (channels, frames) atomically as 16-bit WAV or FLAC, depending on the extension.

    Values beyond full scale are clipped, and NaN becomes 0.
    """
    import soundfile

    path = Path(path)
    file_format = WRITABLE.get(path.suffix.lower())
    if file_format is None:
        raise UsageError(f"cannot write {path}: '{path.suffix}' is not among {', '.join(WRITABLE)}")
    pcm = _pcm(samples)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In memory first: soundfile does not report errors of a file, such as a full disk.
    encoded = io.BytesIO()
    soundfile.write(encoded, pcm.T, rate, format=file_format, subtype="PCM_16")
    replace_bytes(path, encoded.getbuffer(), durable=False)
    return path


def write_chunks(chunks: Iterable[Samples | Tensor], path: str | os.PathLike[str], rate: int) -> Path:
    """Write chunks (frames,) or (channels, frames) one after another as a 16-bit WAV file, atomically.

    Only one chunk is in memory.
    """
    with atomic_write(Path(path)) as temporary, temporary.open("wb") as file, wave.open(file, "wb") as writer:
        for number, chunk in enumerate(chunks):
            pcm = np.atleast_2d(_pcm(chunk))
            if number == 0:
                writer.setnchannels(len(pcm))
                writer.setsampwidth(2)
                writer.setframerate(rate)
            writer.writeframes(pcm.T.astype("<i2").tobytes())
    return Path(path)


def _pcm(samples: Samples | Tensor | Sequence[float]) -> npt.NDArray[np.int16]:
    """Samples (frames,) or (channels, frames) as 16-bit integers."""
    values = samples if isinstance(samples, np.ndarray | Sequence) else samples.detach().float().cpu().numpy()
    finite = np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=1.0, neginf=-1.0)
    if finite.ndim not in (1, 2):
        raise ValueError(f"audio is (frames,) or (channels, frames), not {finite.shape}")
    return np.clip(np.rint(finite * 32768), -32768, 32767).astype(np.int16)
