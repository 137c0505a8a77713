"""Audio decoding: headers, checks for truncated files, and the samples of a range of frames at the file's own rate.

libsndfile reads the formats it knows, FFmpeg (through PyAV) the others. The content decides, never the extension. Only
the requested frames and a few before them are decoded. A file that cannot be used raises `UnreadableItem` with the
reason.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from quintet.errors import UnreadableItem
from quintet.media.budget import check_memory
from quintet.media.chunks import EBML, MOV_BOXES, check_matroska, check_mov, check_riff, riff_chunks, size_of
from quintet.media.files import Blob, MediaFile, MediaRef, check_file, decoding, media_ref, open_file

Samples = npt.NDArray[np.float32]
"""(channels, frames) float32, where 1 is full scale."""

RATES = (1_000, 1_000_000)
"""Lowest and highest valid sampling rate in Hz; any other comes from a damaged header."""
MAX_CHANNELS = 64
LOUDEST = 64.0
"""Largest valid sample, relative to full scale. Float files may exceed 1; larger values mean another scale."""

_BLOCK = 2**20  # frames that are decoded at a time, of mono and stereo
_UNKNOWN_LENGTH = 2**48  # frames; libsndfile reports far more for a stream of unknown length
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # in a WAV whose writer could not seek back
_MP3_PREROLL = 16 * 1152  # frames
_PREROLL = Fraction(1, 5)  # seconds that FFmpeg decodes before a window, because frames of lossy codecs overlap
_WITH_DURATION = ("mov", "matroska")  # containers whose header has the duration
# Containers of audio only: some others are lists of files or URLs, which FFmpeg would open.
_CONTAINERS = "aac,aiff,asf,au,caf,flac,matroska,mov,mp3,ogg,w64,wav"
# Bit rates in kbit/s of MPEG 1 and of MPEG 2 and 2.5, layer III, by their number in a frame header.
_MP3_BITRATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
)


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """Properties of a file that are known without decoding it."""

    frames: int
    rate: int
    channels: int
    format: str
    decoder: Literal["libsndfile", "ffmpeg"]

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


def read_header(path: MediaFile) -> AudioHeader:
    """The header of a file; raises `UnreadableItem` if the file is visibly truncated."""
    media = media_ref(path)
    with decoding(_reason):
        check_file(media)
        with open_file(media) as stream:
            _check_complete(stream)
        header = _sndfile_header(media) or _ffmpeg_header(media)
    if not RATES[0] <= header.rate <= RATES[1]:
        raise UnreadableItem(f"a sample rate of {header.rate} Hz cannot be meant")
    if header.channels < 1:
        raise UnreadableItem("its header has no valid number of channels")
    if header.channels > MAX_CHANNELS:
        raise UnreadableItem(f"{header.channels} channels, more than {MAX_CHANNELS}")
    if header.frames < 1:
        raise UnreadableItem("holds no sound: its length is zero")
    return header


def read_frames(path: MediaFile, header: AudioHeader, start: int, count: int) -> Samples:
    """`count` frames from frame `start` on, (channels, count); the range must be within the file."""
    if start < 0 or count < 1 or start + count > header.frames:
        raise ValueError(f"frames {start} to {start + count} of a file of {header.frames}")
    check_memory(4 * header.channels * count, f"{count / header.rate:.0f} s of audio")
    (samples,) = read_blocks(path, header, start, count, count)
    return samples


def read_blocks(
    path: MediaFile, header: AudioHeader, start: int = 0, count: int | None = None, size: int | None = None
) -> Iterator[Samples]:
    """`count` frames (by default all) from frame `start` on, in blocks of `size`; the file is decoded once."""
    count = header.frames - start if count is None else count
    size = size or max(1, min(_BLOCK, 2 * _BLOCK // header.channels))
    read = _sndfile_blocks if header.decoder == "libsndfile" else _ffmpeg_blocks
    found = 0
    with decoding(_reason):
        for samples in read(media_ref(path), start, count, size):
            if samples.shape != (header.channels, min(size, count - found)):
                raise UnreadableItem("truncated: the file ends too early")
            _check_samples(samples)
            found += samples.shape[1]
            yield samples
    if found < count:
        raise UnreadableItem("truncated: the file ends too early")


def _check_samples(samples: Samples) -> None:
    peak = max(float(samples.max()), -float(samples.min()))
    if not math.isfinite(peak):
        raise UnreadableItem("holds samples that are no numbers")
    if peak > LOUDEST:
        raise UnreadableItem(f"holds samples of {peak:.3g}, where 1 is full scale")


# --- ends of files ----------------------------------------------------------------------------------------------
# A decoder reads a truncated file as a shorter one, or fails only at the first window beyond its end.


def _check_complete(stream: IO[bytes]) -> None:
    size = size_of(stream)
    stream.seek(0)
    start = stream.read(12)
    if start[:4] == b"RIFF" and start[8:] == b"WAVE":
        expected = _wav_end(stream)
    elif start[:4] == b"FORM" and start[8:11] == b"AIF":
        expected = 8 + int.from_bytes(start[4:8], "big")
    elif start[:4] == b"OggS":
        expected = _ogg_end(stream, size)
    elif start[:3] == b"ID3" or (len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0):
        expected = _mp3_length(stream)[1]
    elif start[4:8] in MOV_BOXES:
        check_mov(stream)  # its end is compared with its duration instead
        return
    elif start[:4] == EBML:
        check_matroska(stream)
        return
    else:
        return
    if expected > size:
        raise UnreadableItem(f"truncated: {expected} bytes promised, {size} there")


def _wav_end(stream: IO[bytes]) -> int:
    """Expected end of the samples of a WAV file; 0 if unknown."""
    for chunk in riff_chunks(stream):
        if chunk.name == b"data":
            return 0 if chunk.length in _UNKNOWN_SIZES else chunk.end
    return 0


def _ogg_end(stream: IO[bytes], size: int) -> int:
    """Expected end of the last page of an Ogg stream; a page has at most 65307 bytes."""
    tail_start = max(0, size - 2**16)
    stream.seek(tail_start)
    tail = stream.read()
    position = tail.rfind(b"OggS")
    if position < 0:
        return 0
    if position + 27 > len(tail):
        return tail_start + position + 27
    segments = tail[position + 27 : position + 27 + tail[position + 26]]
    missing = tail[position + 26] - len(segments)
    return tail_start + position + 27 + len(segments) + sum(segments) + missing


def _mp3_length(stream: IO[bytes]) -> tuple[int, int]:
    """MPEG frames of an MP3 and its expected end, from its Xing or Info tag; 0 for an unknown value."""
    stream.seek(0)
    start, begin = stream.read(10), 0
    if start[:3] == b"ID3" and len(start) == 10:
        begin = 10 + sum(part << shift for part, shift in zip(start[6:10], (21, 14, 7, 0), strict=True))
    stream.seek(begin)
    head = stream.read(4096)
    positions = [position for tag in (b"Xing", b"Info") if (position := head.find(tag, 0, 256)) >= 0]
    if not positions or len(head) < positions[0] + 16:
        return 0, 0
    flags, first, second = struct.unpack_from(
        ">3I", head, positions[0] + 4
    )  # frames, then bytes, if their flags are set
    if flags & 3 == 3:
        return first, begin + second
    return (first, 0) if flags & 1 else (0, 0)


def _mp3_frame_end(frame: bytes) -> int:
    """Size of an MPEG frame in bytes, from its header; 0 if it is not layer III."""
    if len(frame) < 4 or frame[0] != 0xFF or frame[1] & 0xE6 != 0xE2:
        return 0
    version = frame[1] >> 3 & 3  # 3: MPEG 1, 2: MPEG 2, 0: MPEG 2.5
    rates = (44_100, 48_000, 32_000, 0)
    rate = rates[frame[2] >> 2 & 3] >> {3: 0, 2: 1}.get(version, 2)
    bits = _MP3_BITRATES[version != 3][frame[2] >> 4] * 1000
    return (144 if version == 3 else 72) * bits // rate + (frame[2] >> 1 & 1) if bits and rate else 0


# --- libsndfile -------------------------------------------------------------------------------------------------


@contextmanager
def _sndfile(media: MediaRef) -> Iterator[Any]:
    """Open by file descriptor: with a path, libsndfile trusts the extension and prints to the terminal."""
    import soundfile

    with open_file(media) as stream:
        opened = stream if isinstance(media, Blob) else stream.fileno()
        with soundfile.SoundFile(opened, closefd=False) as file:
            yield file


def _sndfile_header(media: MediaRef) -> AudioHeader | None:
    """The header; None if libsndfile does not know the format or would not read all of the file."""
    import soundfile

    opened = False
    try:
        with _sndfile(media) as file:
            opened = True
            if file.frames >= _UNKNOWN_LENGTH:  # it would lose the last block
                return None
            if file.format == "MP3" and not _has_length(media):  # it would guess the length and lose the rest
                return None
            if file.format == "FLAC" and file.frames:
                file.seek(file.frames - 1)
                if len(file.read(1)) != 1:
                    raise UnreadableItem("truncated: the file ends too early")
            return AudioHeader(file.frames, file.samplerate, file.channels, file.format, "libsndfile")
    except soundfile.LibsndfileError as error:
        if opened:
            raise UnreadableItem("truncated or damaged: its last frame cannot be decoded") from error
        return None


def _has_length(media: MediaRef) -> bool:
    with open_file(media) as stream:
        return _mp3_length(stream)[0] > 0


def _sndfile_blocks(media: MediaRef, start: int, count: int, size: int) -> Iterator[Samples]:
    with _sndfile(media) as file:
        # After a seek, an MP3 is silent for some frames, which depend on earlier frames.
        preroll = min(start, _MP3_PREROLL) if file.format == "MP3" else 0
        if start > preroll:
            file.seek(start - preroll)
        for begin in range(0, count, size):
            frames: Samples = file.read(preroll + min(size, count - begin), dtype="float32", always_2d=True)
            yield np.ascontiguousarray(frames[preroll:].T)
            preroll = 0


# --- FFmpeg -----------------------------------------------------------------------------------------------------


@contextmanager
def _ffmpeg(media: MediaRef) -> Iterator[Any]:
    """Open with FFmpeg, without access to any other file or URL."""
    import av

    with open_file(media) as stream:
        options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
        with av.open(stream, options=options) as container:
            yield container


def _ffmpeg_header(media: MediaRef) -> AudioHeader:
    with open_file(media) as file:
        if file.read(4) == b"RIFF":
            check_riff(file)
    with _ffmpeg(media) as container:
        if not container.streams.audio:
            raise UnreadableItem("not a sound file: no sound in it")
        stream = container.streams.audio[0]
        rate, base = int(stream.rate), Fraction(stream.time_base or 0)
        end, last = 0, b""
        for packet in container.demux(stream):
            if packet.pts is not None:
                end = max(end, packet.pts + (packet.duration or 0))
                last = bytes(packet)
        end -= stream.start_time or 0
        name = container.format.name.split(",")[0]
        if name == "mp3" and len(last) < _mp3_frame_end(last):
            raise UnreadableItem(f"truncated: its last frame has {len(last)} of {_mp3_frame_end(last)} bytes")
        duration = stream.duration if name.startswith(_WITH_DURATION) else None
        if duration is not None:
            if (duration - end) * base > _PREROLL:
                raise UnreadableItem(
                    f"truncated: {float(duration * base):.1f} s promised, {float(end * base):.1f} s there"
                )
            end = min(end, duration)
        return AudioHeader(int(end * base * rate), rate, int(stream.channels), name.upper(), "ffmpeg")


def _ffmpeg_blocks(media: MediaRef, start: int, count: int, size: int) -> Iterator[Samples]:
    with _ffmpeg(media) as container:
        stream = container.streams.audio[0]
        rate, end = int(stream.rate), start + count
        begin, filled = start, 0
        window = np.zeros((int(stream.channels), min(size, count)), np.float32)
        for position, samples in _positioned(container, stream, start):
            while begin < end:
                first, last = max(position, begin), min(position + samples.shape[1], begin + window.shape[1])
                if first < last:
                    window[:, first - begin : last - begin] = samples[:, first - position : last - position]
                    filled = max(filled, last - begin)
                if position + samples.shape[1] < begin + window.shape[1]:
                    break
                yield window
                begin, filled = begin + window.shape[1], 0
                window = np.zeros((len(window), min(size, end - begin)), np.float32)
            if begin >= end:
                return
    # The last frame may be slightly shorter than its packet declares.
    yield window if end - begin - filled <= _PREROLL * rate else window[:, :filled]


def _positioned(container: Any, stream: Any, start: int) -> Iterator[tuple[int, Samples]]:
    """Decoded samples, from a little before frame `start` on, with the number of their first frame."""
    rate, base, origin = int(stream.rate), Fraction(stream.time_base or 0), stream.start_time or 0
    if start:
        preroll = Fraction(_MP3_PREROLL, rate) if container.format.name == "mp3" else _PREROLL
        container.seek(int(max(Fraction(start, rate) - preroll, Fraction(0)) / base) + origin, stream=stream)
    position, reached = 0, False
    for frame in container.decode(stream):
        samples = _floats(frame)
        # Time stamps are rounded to the unit of the container, so only larger differences count.
        stamped = round((frame.pts - origin) * base * rate) if frame.pts is not None else position
        position = stamped if abs(stamped - position) > rate * base + 1 or not reached else position
        yield position, samples
        position += samples.shape[1]
        reached = reached or position > start


def _floats(frame: Any) -> Samples:
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype == np.uint8:
        return np.asarray((values.astype(np.float32) - 128) / 128)
    if np.issubdtype(values.dtype, np.integer):
        return np.asarray(values / np.float64(2 ** (8 * values.dtype.itemsize - 1)), np.float32)
    return np.asarray(values, np.float32)


# --- reasons ----------------------------------------------------------------------------------------------------


def _reason(error: Exception) -> str | None:
    if type(error).__name__ == "LibsndfileError":
        return "damaged: a part of it cannot be decoded"
    if type(error).__module__.startswith("av"):
        return "not a sound file, or a damaged one: no decoder takes its content"
    return None
