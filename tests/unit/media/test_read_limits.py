"""Reading one file of any kind takes bounded memory and a bounded number of steps."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from helpers import quintet
from quintet.errors import UnreadableItem
from quintet.media import audio, budget, image, video
from quintet.media.chunks import MAX_CHUNKS, check_mov

pytestmark = pytest.mark.fault("damaged-media")

STEPS = 20_000
"""The limit in these tests, for short files."""


# --- steps --------------------------------------------------------------------------------------------------------


def riff(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(body) + 4) + kind + body


def png(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def chunk(name: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def box(name: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", 8 + len(content)) + name + content


HEAD = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
PIXELS = chunk(b"IDAT", zlib.compress(bytes(25 * 8)))
GIF = b"GIF89a\x08\0\x08\0\0\0\0"
EMPTY_FRAME = b",\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0"

ENDLESS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "zeros.wav": (audio.read_header, riff(b"WAVE", bytes(8 * MAX_CHUNKS + 8))),
    "zeros.webp": (video.read_header, riff(b"WEBP", bytes(8 * MAX_CHUNKS + 8))),
    "empty.mp4": (video.read_header, box(b"ftyp") + box(b"free") * (STEPS + 1)),
    "empty.m4a": (audio.read_header, box(b"ftyp") + box(b"free") * (STEPS + 1)),
    "inside.mp4": (video.read_header, box(b"ftyp") + box(b"moov", box(b"free") * (STEPS + 1))),
    "void.mkv": (video.read_header, b"\x1aE\xdf\xa3\x80\x18S\x80g\x01" + b"\xff" * 7 + b"\xec\x80" * (STEPS + 1)),
    "void.mka": (audio.read_header, b"\x1aE\xdf\xa3\x80\x18S\x80g\x01" + b"\xff" * 7 + b"\xec\x80" * (STEPS + 1)),
    "chunks.png": (image.read_image, png(HEAD, chunk(b"teSt") * (MAX_CHUNKS + 1), PIXELS, chunk(b"IEND"))),
    "pixels.png": (image.read_image, png(HEAD, chunk(b"IDAT") * (MAX_CHUNKS + 1), PIXELS, chunk(b"IEND"))),
    "comments.gif": (video.read_header, GIF + b"!\xfe\0" * (STEPS + 1000) + b";"),
    "blocks.gif": (image.read_image, GIF + b"!\xfe" + b"\x01a" * (STEPS + 1000) + b"\0;"),
    "frames.gif": (video.read_header, GIF + EMPTY_FRAME * (STEPS // 2) + b";"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_file_of_endless_parts_is_refused_with_the_reason(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MAX_STEPS", STEPS)
    read, content = ENDLESS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableItem, match=r"^damaged: more than \d+ (chunks|boxes|elements|blocks)$"):
        read(tmp_path / name)


@pytest.mark.parametrize("place", ["INFO", "inside of INFO", "hdrl"])
def test_a_header_that_is_longer_than_its_file_is_refused(place: str, tmp_path: Path) -> None:
    """FFmpeg would allocate what the header says."""
    huge = struct.pack("<I", 0x6FFFFFFF)
    content = {
        "INFO": b"LIST" + huge + b"INFO" + b"ISFT" + huge + b"Lavf",
        "inside of INFO": b"LIST" + struct.pack("<I", 16) + b"INFO" + b"ISFT" + huge + b"Lavf",
        "hdrl": b"LIST" + huge + b"hdrl" + bytes(12),
    }[place]
    (tmp_path / "a.avi").write_bytes(riff(b"AVI ", content + bytes(64)))
    with pytest.raises(UnreadableItem, match=r"damaged: a header of \d+ bytes in a file of"):
        video.read_header(tmp_path / "a.avi")


def tables(**content: bytes) -> io.BytesIO:
    stbl = b"".join(box(name.encode(), bytes(4) + table) for name, table in content.items())
    return io.BytesIO(box(b"ftyp") + box(b"moov", box(b"trak", box(b"mdia", box(b"minf", box(b"stbl", stbl))))))


@pytest.mark.parametrize(
    "content",
    [
        {"stsz": struct.pack(">II", 1, 2**28)},
        {"stts": struct.pack(">III", 1, 2**31, 2)},
        {"ctts": struct.pack(">IIIII", 2, 5, 1, 2**30, 1)},
        {"stts": struct.pack(">I", 2**31)},
    ],
)
def test_tables_that_count_more_frames_than_a_file_can_have_are_refused(content: dict[str, bytes]) -> None:
    with pytest.raises(UnreadableItem, match="more than 1000000"):
        check_mov(tables(**content))


def test_many_samples_of_uncompressed_audio_are_allowed() -> None:
    samples = 3600 * 48_000
    table = {"stts": struct.pack(">III", 1, samples, 1), "stsz": struct.pack(">II", 4, samples)}
    assert check_mov(tables(**table)) > 0


def test_a_few_bytes_of_many_large_frames_are_refused(tmp_path: Path) -> None:
    frames = b"GIF89a" + struct.pack("<HH", 4000, 4000) + bytes(3) + EMPTY_FRAME * 4000 + b";"
    (tmp_path / "a.gif").write_bytes(frames)
    with pytest.raises(UnreadableItem, match="4000 frames of 4000x4000 pixels in a file of"):
        video.read_header(tmp_path / "a.gif")


# --- memory -------------------------------------------------------------------------------------------------------

MEASURE = """
import json, sys
from pathlib import Path
import av, soundfile, torch
from fuzz.limits import attempt
from fuzz.readers import READERS
found = {path: attempt(READERS[reader], Path(path), seconds=60) for reader, path in json.load(sys.stdin)}
print(json.dumps({path: outcome.finding or outcome.reason for path, outcome in found.items()}))
"""


def write_8k(path: Path) -> Path:
    """Six frames, which are 600 MB at their size."""
    width, height = 7680, 4320
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"threads": "1", "preset": "ultrafast", "refs": "3", "bf": "2"}
        for number in range(6):
            frame = av.VideoFrame(width, height, "yuv420p")
            for plane in frame.planes:
                plane.update(bytes([40 + 3 * number]) * plane.buffer_size)
            frame.pts, frame.time_base = number, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_audio(path: Path) -> Path:
    """Half an hour of stereo: its spectra are a gigabyte."""
    second = np.sin(np.arange(16_000) / 9).astype(np.float32)[:, None].repeat(2, 1)
    with soundfile.SoundFile(path, "w", 16_000, 2) as file:
        for _ in range(30):
            file.write(np.tile(second, (60, 1)))
    return path


def write_animation(path: Path) -> Path:
    """Sixty frames, which are 540 MB at their size."""
    Image.new("L", (2000, 1500), 40).save(path)
    content = path.read_bytes()
    start = content.index(b",\0\0\0\0" + struct.pack("<HH", 2000, 1500))
    path.write_bytes(content[:start] + content[start:-1] * 60 + b";")
    return path


def write_large_image(path: Path) -> Path:
    """Rotated and transparent, which once took five copies of it."""
    turned = Image.Exif()
    turned[0x112] = 6
    Image.new("RGBA", (6000, 6000), (9, 8, 7, 100)).save(path, exif=turned, compress_level=1)
    return path


def test_ordinary_large_files_are_read_within_the_memory_budget(tmp_path: Path) -> None:
    files = [
        ("video", write_8k(tmp_path / "8k.mp4")),
        ("video", write_animation(tmp_path / "long.gif")),
        ("audio", write_audio(tmp_path / "long.flac")),
        ("image", write_large_image(tmp_path / "large.png")),
    ]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        input=json.dumps([(reader, str(path)) for reader, path in files]),
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert json.loads(done.stdout) == {str(path): None for _, path in files}


def test_a_bomb_is_refused_by_data_check(tmp_path: Path) -> None:
    canvas = b"GIF89a" + struct.pack("<HH", 8000, 8000) + b"\x80\0\0\0\0\0\xff\xff\xff"
    (tmp_path / "a.gif").write_bytes(canvas + (b"!\xf9\x04\x05\x0a\0\0\0" + EMPTY_FRAME) * 40 + b";")
    Image.new("RGB", (64, 64)).save(tmp_path / "b.gif")
    done = quintet("data", "check", tmp_path, "--medium", "video")
    assert "a.gif: an animation of 8000x8000 pixels needs 1465 MB of memory, more than 512 MB" in done.output
