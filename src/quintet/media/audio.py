"""Owns sound: reading any file or a window of it as numbers at a given rate, what a file holds, and writing.

Samples are float32, channels x frames, 1 is full scale. A file that cannot be used raises `UnreadableItem` with the
reason; silent, clipped and many-channelled files can be used. Importing this file imports neither torch nor a decoder.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quintet.common.files import replace_bytes
from quintet.errors import UsageError
from quintet.media.audio_formats import EXTENSIONS, AudioHeader, Samples, read_blocks, read_frames, read_header
from quintet.media.files import MediaFile
from quintet.media.resample import input_span, resample, resampled_length

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "EXTENSIONS",
    "AudioFacts",
    "AudioHeader",
    "Samples",
    "probe_audio",
    "read_audio",
    "read_header",
    "resample",
    "resampled_length",
    "window_starts",
    "write_audio",
]

SILENCE = 1e-4
"""The loudest sample of a silent file: 80 dB below full scale."""
FULL_SCALE = 0.9999
CLIPPED_RUN = 3
"""Samples in a row at full scale that no wave reaches by itself."""
CLIPPED_SHARE = 1e-4
WRITABLE = {".wav": "WAV", ".flac": "FLAC"}


@dataclass(frozen=True, slots=True)
class AudioFacts:
    """What a file holds, once all of it was decoded."""

    seconds: float
    rate: int
    channels: int
    format: str
    peak: float
    clipped_share: float

    @property
    def silent(self) -> bool:
        return self.peak < SILENCE

    @property
    def clipped(self) -> bool:
        return self.clipped_share > CLIPPED_SHARE


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
    """A file, or `frames` of it from frame `start` on (both at the rate asked for), without decoding the rest.

    Less comes back where the file ends first. With `mono` the channels are averaged. Whoever has the header at hand
    may pass it, and saves reading it again.
    """
    header = header or read_header(path)
    rate = rate or header.rate
    length = resampled_length(header.frames, header.rate, rate)
    if not 0 <= start < length:
        raise ValueError(f"frame {start} of {path}, which has {length} at {rate} Hz")
    count = length - start if frames is None else min(frames, length - start)
    first, last = (start, start + count) if rate == header.rate else input_span(start, count, header.rate, rate)
    first, last = max(first, 0), min(last, header.frames)
    samples = read_frames(path, header, first, last - first)
    if mono and len(samples) > 1:
        samples = samples.mean(axis=0, keepdims=True)
    return resample(samples, header.rate, rate, offset=first, start=start, count=count)


def window_starts(frames: int, window: int, stride: int, most: int) -> list[int]:
    """Where windows of a long clip begin: every `stride`, the last one at its end, evenly fewer if beyond `most`."""
    if frames <= window:
        return [0]
    count = min(-(-(frames - window) // stride) + 1, most)
    if count == 1:
        return [(frames - window) // 2]
    return [round(number * (frames - window) / (count - 1)) for number in range(count)]


def probe_audio(path: MediaFile) -> AudioFacts:
    """What a file holds, after decoding all of it."""
    header = read_header(path)
    peak, clipped = 0.0, 0
    for block in read_blocks(path, header):
        peak = max(peak, float(np.abs(block).max()))
        clipped += _clipped(block)
    share = clipped / (header.frames * header.channels)
    return AudioFacts(header.seconds, header.rate, header.channels, header.format, peak, share)


def _clipped(block: Samples) -> int:
    """Samples in runs of at least `CLIPPED_RUN` at full scale; runs over the end of a block are counted in part."""
    count = 0
    for side in (block >= FULL_SCALE, block <= -FULL_SCALE):
        if side.any():
            edges = np.diff(np.pad(side, ((0, 0), (1, 1))).astype(np.int8), axis=1)
            runs = np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]
            count += int(runs[runs >= CLIPPED_RUN].sum())
    return count


# --- writing ----------------------------------------------------------------------------------------------------


def write_audio(samples: Samples | Tensor | Sequence[float], path: str | os.PathLike[str], rate: int) -> Path:
    """Write (frames) or (channels, frames) as 16-bit WAV or FLAC by the extension; the file appears whole or not.

    What is beyond full scale is clipped, what is no number is silence.
    """
    import soundfile

    path = Path(path)
    file_format = WRITABLE.get(path.suffix.lower())
    if file_format is None:
        raise UsageError(f"cannot write {path}: '{path.suffix}' is not among {', '.join(WRITABLE)}")
    values = samples if isinstance(samples, np.ndarray | Sequence) else samples.detach().float().cpu().numpy()
    finite = np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=1.0, neginf=-1.0)
    if finite.ndim not in (1, 2):
        raise ValueError(f"sound is (frames) or (channels, frames), not {finite.shape}")
    whole = np.clip(np.rint(finite * 32768), -32768, 32767).astype(np.int16)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In memory first: what goes wrong in a file, such as a full disk, soundfile does not pass on.
    encoded = io.BytesIO()
    soundfile.write(encoded, whole.T, rate, format=file_format, subtype="PCM_16")
    replace_bytes(path, encoded.getbuffer(), durable=False)
    return path
