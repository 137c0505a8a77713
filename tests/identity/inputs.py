"""Small files that the commands of the cases read, made with the standard library alone."""

from __future__ import annotations

import io
import math
import struct
import wave
import zlib

SCENES = b"a red circle moves right\na blue square moves up\n"

MESH = b"v -0.9 -0.9 -0.9\nv 0.9 -0.9 -0.9\nv 0.9 0.9 -0.9\nv -0.9 0.9 -0.9\nf 1 2 3\nf 1 3 4\n"
"""The first two faces of a box (OBJ)."""


def half_mask(side: int) -> bytes:
    """A greyscale PNG whose right half is white."""
    row = b"\0" + b"\0" * (side // 2) + b"\xff" * (side - side // 2)
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(row * side)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(name, content) for name, content in chunks)


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def tone(seconds: float, sample_rate: int = 16000) -> bytes:
    """A WAV file of a quiet tone of 440 Hz."""
    samples = [int(8000 * math.sin(2 * math.pi * 440 * n / sample_rate)) for n in range(int(seconds * sample_rate))]
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(sample_rate)
        sound.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return file.getvalue()
