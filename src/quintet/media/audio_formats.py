"""Owns what audio files are: which are read by what, what their headers tell, whether they are whole, and their samples
from one frame to another at the file's own rate.

libsndfile reads what it knows, FFmpeg (through PyAV) the rest. The content decides, never the extension. Only the
frames asked for are decoded, and a few before them. A file that cannot be used raises `UnreadableItem` with the reason.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from quintet.errors import UnreadableItem
from quintet.media.files import Blob, MediaFile, MediaRef, check_file, decoding, media_ref, open_file

Samples = npt.NDArray[np.float32]
"""Channels x frames, 1 is full scale."""

RATES = (1_000, 1_000_000)
"""Sample rates that can be meant; any other comes from a damaged header."""
MAX_CHANNELS = 64
LOUDEST = 64.0
"""Of full scale. Files of numbers may go somewhat beyond it; further, they were written on another scale."""

_UNKNOWN_LENGTH = 2**48  # frames; what libsndfile says of a stream whose header does not tell is far beyond
_STREAMED = (0, 0xFFFFFFFF)  # sizes in a WAV whose writer could not go back to tell
_MP3_PREROLL = 16 * 1152  # frames
_PREROLL = Fraction(1, 5)  # seconds that FFmpeg decodes before a window, because lossy frames overlap
_TELLING = ("mov", "matroska")  # containers of FFmpeg whose header tells how long the sound is
# Containers of sound alone: some others are lists of files or addresses, which FFmpeg would open.
_CONTAINERS = "aac,aiff,asf,au,caf,flac,matroska,mov,mp3,ogg,w64,wav"
# Kilobits a second of MPEG 1 and of MPEG 2 and 2.5, layer III, by number in the header of a frame.
_MP3_BITRATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
)


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """What a file holds, as far as that can be known without decoding all of it."""

    frames: int
    rate: int
    channels: int
    format: str
    decoder: Literal["libsndfile", "ffmpeg"]

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


def read_header(path: MediaFile) -> AudioHeader:
    """The header of a file that is whole, as far as that can be seen at its ends."""
    place = media_ref(path)
    with decoding(_reason):
        check_file(place)
        with open_file(place) as stream:
            _check_whole(stream)
        header = _sndfile_header(place) or _ffmpeg_header(place)
    if not RATES[0] <= header.rate <= RATES[1]:
        raise UnreadableItem(f"a sample rate of {header.rate} Hz cannot be meant")
    if not 1 <= header.channels <= MAX_CHANNELS:
        raise UnreadableItem(f"{header.channels} channels, more than {MAX_CHANNELS}")
    if header.frames < 1:
        raise UnreadableItem("holds no sound: its length is zero")
    return header


def read_frames(path: MediaFile, header: AudioHeader, start: int, count: int) -> Samples:
    """`count` frames from frame `start` on, which the header must have room for."""
    if start < 0 or count < 1 or start + count > header.frames:
        raise ValueError(f"frames {start} to {start + count} of a file of {header.frames}")
    with decoding(_reason):
        read = _sndfile_frames if header.decoder == "libsndfile" else _ffmpeg_frames
        samples = read(media_ref(path), start, count)
    if samples.shape != (header.channels, count):
        raise UnreadableItem("truncated: the file ends too early")
    peak = max(float(samples.max()), -float(samples.min()))
    if not math.isfinite(peak):
        raise UnreadableItem("holds samples that are no numbers")
    if peak > LOUDEST:
        raise UnreadableItem(f"holds samples of {peak:.3g}, where 1 is full scale")
    return samples


def read_blocks(path: MediaFile, header: AudioHeader, count: int = 2**20) -> Iterator[Samples]:
    """All frames, in portions."""
    for start in range(0, header.frames, count):
        yield read_frames(path, header, start, min(count, header.frames - start))


# --- ends of files ----------------------------------------------------------------------------------------------
# A decoder takes a file that was cut as a shorter one, or finds out at the first window beyond the cut.


def _check_whole(stream: IO[bytes]) -> None:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    start = stream.read(12)
    if start[:4] == b"RIFF" and start[8:] == b"WAVE":
        promised = _wav_end(stream, size)
    elif start[:4] == b"FORM" and start[8:11] == b"AIF":
        promised = 8 + int.from_bytes(start[4:8], "big")
    elif start[:4] == b"OggS":
        promised = _ogg_end(stream, size)
    elif start[:3] == b"ID3" or (len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0):
        promised = _mp3_length(stream)[1]
    else:
        return
    if promised > size:
        raise UnreadableItem(f"truncated: {promised} bytes promised, {size} there")


def _wav_end(stream: IO[bytes], size: int) -> int:
    """Where the samples of a WAV should end."""
    place = 12
    while place + 8 <= size:
        stream.seek(place)
        name, length = struct.unpack("<4sI", stream.read(8))
        if name == b"data":
            return 0 if length in _STREAMED else place + 8 + length
        place += 8 + length + length % 2
    return 0


def _ogg_end(stream: IO[bytes], size: int) -> int:
    """Where the last page of an Ogg stream should end; a page is at most 65307 bytes."""
    tail_start = max(0, size - 2**16)
    stream.seek(tail_start)
    tail = stream.read()
    place = tail.rfind(b"OggS")
    if place < 0:
        return 0
    if place + 27 > len(tail):
        return tail_start + place + 27
    segments = tail[place + 27 : place + 27 + tail[place + 26]]
    missing = tail[place + 26] - len(segments)
    return tail_start + place + 27 + len(segments) + sum(segments) + missing


def _mp3_length(stream: IO[bytes]) -> tuple[int, int]:
    """Frames of MPEG in an MP3, and where it should end, by its Xing or Info tag; 0 for what that does not tell."""
    stream.seek(0)
    start, begin = stream.read(10), 0
    if start[:3] == b"ID3" and len(start) == 10:
        begin = 10 + sum(part << shift for part, shift in zip(start[6:10], (21, 14, 7, 0), strict=True))
    stream.seek(begin)
    head = stream.read(4096)
    places = [place for tag in (b"Xing", b"Info") if (place := head.find(tag, 0, 256)) >= 0]
    if not places or len(head) < places[0] + 16:
        return 0, 0
    flags, first, second = struct.unpack_from(">3I", head, places[0] + 4)  # frames, then bytes, if the flags say so
    if flags & 3 == 3:
        return first, begin + second
    return (first, 0) if flags & 1 else (0, 0)


def _mp3_frame_end(frame: bytes) -> int:
    """Bytes of a frame of MPEG, by its header; 0 for what is none of layer III."""
    if len(frame) < 4 or frame[0] != 0xFF or frame[1] & 0xE6 != 0xE2:
        return 0
    version = frame[1] >> 3 & 3  # 3: MPEG 1, 2: MPEG 2, 0: MPEG 2.5
    rates = (44_100, 48_000, 32_000, 0)
    rate = rates[frame[2] >> 2 & 3] >> {3: 0, 2: 1}.get(version, 2)
    bits = _MP3_BITRATES[version != 3][frame[2] >> 4] * 1000
    return (144 if version == 3 else 72) * bits // rate + (frame[2] >> 1 & 1) if bits and rate else 0


# --- libsndfile -------------------------------------------------------------------------------------------------


@contextmanager
def _sndfile(place: MediaRef) -> Iterator[Any]:
    """Opened by descriptor: libsndfile would believe an extension, and complain on the terminal."""
    import soundfile

    with open_file(place) as stream:
        opened = stream if isinstance(place, Blob) else stream.fileno()
        with soundfile.SoundFile(opened, closefd=False) as file:
            yield file


def _sndfile_header(place: MediaRef) -> AudioHeader | None:
    """None where libsndfile does not know the format, or would not read all of it."""
    import soundfile

    opened = False
    try:
        with _sndfile(place) as file:
            opened = True
            if file.frames >= _UNKNOWN_LENGTH:  # it would lose the last block
                return None
            if file.format == "MP3" and not _tells_length(place):  # it would guess, and lose what is beyond its guess
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


def _tells_length(place: MediaRef) -> bool:
    with open_file(place) as stream:
        return _mp3_length(stream)[0] > 0


def _sndfile_frames(place: MediaRef, start: int, count: int) -> Samples:
    with _sndfile(place) as file:
        # After a jump an MP3 is silent for some frames, whose beginnings lie in the frames before.
        preroll = min(start, _MP3_PREROLL) if file.format == "MP3" else 0
        if start > preroll:
            file.seek(start - preroll)
        frames: Samples = file.read(preroll + count, dtype="float32", always_2d=True)
    return np.ascontiguousarray(frames[preroll:].T)


# --- FFmpeg -----------------------------------------------------------------------------------------------------


@contextmanager
def _ffmpeg(place: MediaRef) -> Iterator[Any]:
    """It opens nothing else than this."""
    import av

    with open_file(place) as stream:
        options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
        with av.open(stream, options=options) as container:
            yield container


def _ffmpeg_header(place: MediaRef) -> AudioHeader:
    with _ffmpeg(place) as container:
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
        told = stream.duration if name.startswith(_TELLING) else None
        if told is not None:
            if (told - end) * base > _PREROLL:
                raise UnreadableItem(f"truncated: {float(told * base):.1f} s promised, {float(end * base):.1f} s there")
            end = min(end, told)
        return AudioHeader(int(end * base * rate), rate, int(stream.channels), name.upper(), "ffmpeg")


def _ffmpeg_frames(source: MediaRef, start: int, count: int) -> Samples:
    with _ffmpeg(source) as container:
        stream = container.streams.audio[0]
        rate, base, origin = int(stream.rate), Fraction(stream.time_base or 0), stream.start_time or 0
        window = np.zeros((int(stream.channels), count), np.float32)
        if start:
            preroll = Fraction(_MP3_PREROLL, rate) if container.format.name == "mp3" else _PREROLL
            container.seek(int(max(Fraction(start, rate) - preroll, Fraction(0)) / base) + origin, stream=stream)
        place = filled = 0
        for frame in container.decode(stream):
            samples = _floats(frame)
            # Time stamps are rounded to the container's own unit, so only a gap is believed.
            told = round((frame.pts - origin) * base * rate) if frame.pts is not None else place
            place = told if abs(told - place) > rate * base + 1 or not filled else place
            first, last = max(place, start), min(place + samples.shape[1], start + count)
            if first < last:
                window[:, first - start : last - start] = samples[:, first - place : last - place]
                filled = max(filled, last - start)
            place += samples.shape[1]
            if place >= start + count:
                break
    # The last frame may be a little shorter than its packet said.
    return window if count - filled <= _PREROLL * rate else window[:, :filled]


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
