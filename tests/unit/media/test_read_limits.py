"""Reading one file of any kind takes bounded memory and a bounded number of steps."""

from __future__ import annotations

import io
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

STEPS = budget.MAX_STEPS + 1


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
    "empty.mp4": (video.read_header, box(b"ftyp") + box(b"free") * STEPS),
    "empty.m4a": (audio.read_header, box(b"ftyp") + box(b"free") * STEPS),
    "inside.mp4": (video.read_header, box(b"ftyp") + box(b"moov", box(b"free") * STEPS)),
    "void.mkv": (video.read_header, b"\x1aE\xdf\xa3\x80\x18S\x80g\x01" + b"\xff" * 7 + b"\xec\x80" * STEPS),
    "void.mka": (audio.read_header, b"\x1aE\xdf\xa3\x80\x18S\x80g\x01" + b"\xff" * 7 + b"\xec\x80" * STEPS),
    "chunks.png": (image.read_image, png(HEAD, chunk(b"teSt") * (MAX_CHUNKS + 1), PIXELS, chunk(b"IEND"))),
    "pixels.png": (image.read_image, png(HEAD, chunk(b"IDAT") * (MAX_CHUNKS + 1), PIXELS, chunk(b"IEND"))),
    "comments.gif": (video.read_header, GIF + b"!\xfe\0" * (STEPS + 40_000) + b";"),
    "blocks.gif": (image.read_image, GIF + b"!\xfe" + b"\x01a" * (STEPS + 20_000) + b"\0;"),
    "frames.gif": (video.read_header, GIF + EMPTY_FRAME * (STEPS // 3 + 20_000) + b";"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_file_of_endless_parts_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    read, content = ENDLESS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableItem, match=r"^damaged: more than \d+ (chunks|boxes|elements|blocks)$"):
        read(tmp_path / name)


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
found = attempt(READERS[sys.argv[1]], Path(sys.argv[2]), seconds=60)
print(json.dumps([found.finding, found.reason, found.megabytes]))
"""


def measured(reader: str, path: Path) -> tuple[str | None, str | None]:
    """What reading a file in a fresh process broke, and why the file cannot be used."""
    import json

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, reader, str(path)], capture_output=True, check=True, env=environment
    )
    finding, reason, _ = json.loads(done.stdout.splitlines()[-1])
    return finding, reason


def write_plain(path: Path, width: int, height: int, frames: int, codec: str, **options: str) -> Path:
    """A video of one colour per frame, which is fast to encode."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"threads": "1", "preset": "ultrafast", **options}
        for number in range(frames):
            frame = av.VideoFrame(width, height, "yuv420p")
            for plane in frame.planes:
                plane.update(bytes([40 + 3 * number]) * plane.buffer_size)
            frame.pts, frame.time_base = number, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize(
    ("width", "height", "frames", "codec"), [(3840, 2160, 48, "libx264"), (7680, 4320, 14, "libx264")]
)
def test_large_videos_are_read_within_the_budget(
    width: int, height: int, frames: int, codec: str, tmp_path: Path
) -> None:
    """All frames at their size are 1.2 and 1.4 GB."""
    path = write_plain(tmp_path / "a.mp4", width, height, frames, codec, refs="3", bf="2")
    assert measured("video", path) == (None, None)


def test_a_long_animation_is_read_within_the_budget(tmp_path: Path) -> None:
    frames = [Image.new("L", (2000, 1500), 40 + 4 * number) for number in range(50)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert measured("video", tmp_path / "a.gif") == (None, None)


def test_long_audio_is_read_within_the_budget(tmp_path: Path) -> None:
    """An hour of stereo, 2.5 GB as samples and spectra."""
    second = np.sin(np.arange(8000) / 9).astype(np.float32)[:, None].repeat(2, 1)
    with soundfile.SoundFile(tmp_path / "a.flac", "w", 8000, 2) as file:
        for _ in range(60):
            file.write(np.tile(second, (60, 1)))
    assert measured("audio", tmp_path / "a.flac") == (None, None)


def test_a_large_image_is_read_within_the_budget(tmp_path: Path) -> None:
    """Rotated and transparent, which once took five copies of it."""
    turned = Image.Exif()
    turned[0x112] = 6
    Image.new("RGBA", (8000, 6000), (9, 8, 7, 100)).save(tmp_path / "a.png", exif=turned, compress_level=1)
    assert measured("image", tmp_path / "a.png") == (None, None)


def test_a_bomb_is_refused_by_data_check(tmp_path: Path) -> None:
    canvas = b"GIF89a" + struct.pack("<HH", 8000, 8000) + b"\x80\0\0\0\0\0\xff\xff\xff"
    (tmp_path / "a.gif").write_bytes(canvas + (b"!\xf9\x04\x05\x0a\0\0\0" + EMPTY_FRAME) * 40 + b";")
    Image.new("RGB", (64, 64)).save(tmp_path / "b.gif")
    done = quintet("data", "check", tmp_path, "--medium", "video")
    assert "a.gif: an animation of 8000x8000 pixels needs 1465 MB of memory, more than 512 MB" in done.out
