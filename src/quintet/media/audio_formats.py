"""Owns what audio files are: which are read by what, what their headers tell, whether they are whole, and their samples
from one frame to another at the file's own rate.

libsndfile reads what it knows, FFmpeg (through PyAV) the rest. The content decides, never the extension. Only the
frames asked for are decoded, and a few before them. A file that cannot be used raises `UnreadableItem` with the reason.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from quintet.errors import UnreadableItem

Samples = npt.NDArray[np.float32]
"""Channels x frames, 1 is full scale."""

EXTENSIONS = frozenset(
    {
        *(".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".au", ".caf", ".w64", ".rf64"),
        *(".m4a", ".aac", ".wma", ".mka"),
    }
)
RATES = (1_000, 1_000_000)
"""Sample rates that can be meant; any other comes from a damaged header."""
MAX_CHANNELS = 64

_UNKNOWN_LENGTH = 2**48  # frames; what libsndfile says of a stream whose header does not tell is far beyond
_STREAMED = (0, 0xFFFFFFFF)  # sizes in a WAV whose writer could not go back to tell
_MP3_PREROLL = 16 * 1152  # frames
_PREROLL = Fraction(1, 5)  # seconds that FFmpeg decodes before a window, because lossy frames overlap
_TELLING = ("mov", "matroska")  # containers of FFmpeg whose header tells how long the sound is


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


def read_header(path: str | os.PathLike[str]) -> AudioHeader:
    """The header of a file that is whole, as far as that can be seen at its ends."""
    path = Path(path)
    with _reasons():
        _check_file(path)
        with path.open("rb") as stream:
            _check_whole(stream)
        header = _sndfile_header(path) or _ffmpeg_header(path)
    if not RATES[0] <= header.rate <= RATES[1]:
        raise UnreadableItem(f"a sample rate of {header.rate} Hz cannot be meant")
    if not 1 <= header.channels <= MAX_CHANNELS:
        raise UnreadableItem(f"{header.channels} channels, more than {MAX_CHANNELS}")
    if header.frames < 1:
        raise UnreadableItem("holds no sound: its length is zero")
    return header


def read_frames(path: str | os.PathLike[str], header: AudioHeader, start: int, count: int) -> Samples:
    """`count` frames from frame `start` on, which the header must have room for."""
    if start < 0 or count < 1 or start + count > header.frames:
        raise ValueError(f"frames {start} to {start + count} of a file of {header.frames}")
    with _reasons():
        read = _sndfile_frames if header.decoder == "libsndfile" else _ffmpeg_frames
        samples = read(Path(path), start, count)
    if samples.shape != (header.channels, count):
        raise UnreadableItem("truncated: the file ends too early")
    if not np.isfinite(samples).all():
        raise UnreadableItem("holds samples that are no numbers")
    return samples


def read_blocks(path: str | os.PathLike[str], header: AudioHeader, count: int = 2**20) -> Iterator[Samples]:
    """All frames, in portions."""
    for start in range(0, header.frames, count):
        yield read_frames(path, header, start, min(count, header.frames - start))


# --- ends of files ----------------------------------------------------------------------------------------------
# A decoder takes a file that was cut as a shorter one, or finds out at the first window beyond the cut.


def _check_file(path: Path) -> None:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise UnreadableItem("not a regular file")
    if facts.st_size == 0:
        raise UnreadableItem("empty file")


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
        promised = _mp3_end(stream, start)
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


def _mp3_end(stream: IO[bytes], start: bytes) -> int:
    """Where an MP3 should end by its Xing or Info tag; 0 where there is none."""
    begin = 0
    if start[:3] == b"ID3":
        begin = 10 + sum(part << shift for part, shift in zip(start[6:10], (21, 14, 7, 0), strict=True))
    stream.seek(begin)
    head = stream.read(4096)
    places = [place for tag in (b"Xing", b"Info") if (place := head.find(tag, 0, 256)) >= 0]
    if not places or len(head) < places[0] + 16:
        return 0
    flags = int.from_bytes(head[places[0] + 4 : places[0] + 8], "big")
    if flags & 3 != 3:  # frames, then bytes
        return 0
    return begin + int.from_bytes(head[places[0] + 12 : places[0] + 16], "big")


# --- libsndfile -------------------------------------------------------------------------------------------------


@contextmanager
def _sndfile(path: Path) -> Iterator[Any]:
    """Opened by descriptor: libsndfile would believe an extension, and complain on the terminal."""
    import soundfile

    with path.open("rb") as stream, soundfile.SoundFile(stream.fileno(), closefd=False) as file:
        yield file


def _sndfile_header(path: Path) -> AudioHeader | None:
    """None where libsndfile does not know the format, or would not read all of it."""
    import soundfile

    opened = False
    try:
        with _sndfile(path) as file:
            opened = True
            if file.frames >= _UNKNOWN_LENGTH:  # it would lose the last block
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


def _sndfile_frames(path: Path, start: int, count: int) -> Samples:
    with _sndfile(path) as file:
        # After a jump an MP3 is silent for some frames, whose beginnings lie in the frames before.
        preroll = min(start, _MP3_PREROLL) if file.format == "MP3" else 0
        if start > preroll:
            file.seek(start - preroll)
        frames: Samples = file.read(preroll + count, dtype="float32", always_2d=True)
    return np.ascontiguousarray(frames[preroll:].T)


# --- FFmpeg -----------------------------------------------------------------------------------------------------


def _ffmpeg_header(path: Path) -> AudioHeader:
    import av

    with av.open(str(path)) as container:
        if not container.streams.audio:
            raise UnreadableItem("not a sound file: no sound in it")
        stream = container.streams.audio[0]
        rate, base = int(stream.rate), Fraction(stream.time_base or 0)
        ends = [packet.pts + (packet.duration or 0) for packet in container.demux(stream) if packet.pts is not None]
        end = max(ends, default=0) - (stream.start_time or 0)
        told = stream.duration if container.format.name.startswith(_TELLING) else None
        if told is not None:
            if (told - end) * base > _PREROLL:
                raise UnreadableItem(f"truncated: {float(told * base):.1f} s promised, {float(end * base):.1f} s there")
            end = min(end, told)
        frames = int(end * base * rate)
        return AudioHeader(frames, rate, int(stream.channels), container.format.name.split(",")[0], "ffmpeg")


def _ffmpeg_frames(path: Path, start: int, count: int) -> Samples:
    import av

    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        rate, base, origin = int(stream.rate), Fraction(stream.time_base or 0), stream.start_time or 0
        window = np.zeros((int(stream.channels), count), np.float32)
        if start:
            container.seek(int(max(Fraction(start, rate) - _PREROLL, Fraction(0)) / base) + origin, stream=stream)
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


@contextmanager
def _reasons() -> Iterator[None]:
    try:
        yield
    except UnreadableItem:
        raise
    except Exception as error:  # Damaged files make decoders raise nearly anything; none of it may end a run.
        raise UnreadableItem(_reason(error)) from error


def _reason(error: Exception) -> str:
    if type(error).__name__ == "LibsndfileError":
        return "damaged: a part of it cannot be decoded"
    if type(error).__module__.startswith("av"):
        return "not a sound file, or a damaged one: no decoder takes its content"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be opened: {error.strerror}"
    return f"damaged: {error or type(error).__name__}"
