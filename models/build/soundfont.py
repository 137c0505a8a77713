"""The samples of a SoundFont 2 file, each with its name and the instrument that uses it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

COARSE_TUNE, SAMPLE_OF, ROOT_KEY = 51, 53, 58
"""Generators of an instrument's zone: tuning in semitones, number of the sample, key at which it sounds as it is."""
RIGHT, LINKED = 2, 0x8000
"""Sample types: the right one of a stereo pair, and a sample in ROM."""


@dataclass(frozen=True)
class Sample:
    name: str
    instrument: str
    pitch: int
    """MIDI number of its note, if it has one."""
    rate: int
    wave: npt.NDArray[np.float32]
    """(samples,), from -1 to 1"""


def read_soundfont(path: Path) -> Iterator[Sample]:
    """All samples of one channel, without the right ones of stereo pairs."""
    chunks = _chunks(path.read_bytes())
    waves = np.frombuffer(chunks["smpl"], dtype="<i2")
    zones = _zones(chunks)
    records = list(struct.iter_unpack("<20sIIIIIBbHH", chunks["shdr"]))[:-1]
    for number, (name, start, end, _, _, rate, pitch, _, _, kind) in enumerate(records):
        if kind == RIGHT or kind & LINKED or number not in zones or end <= start:
            continue
        instrument, root, tune = zones[number]
        own = (pitch if root is None else root) - tune
        yield Sample(_text(name), instrument, own, rate, waves[start:end].astype(np.float32) / 2**15)


def _chunks(content: bytes) -> dict[str, memoryview]:
    """The chunks inside the lists of a RIFF file, by name."""
    found: dict[str, memoryview] = {}
    view, position = memoryview(content), 12
    while position + 8 <= len(view):
        name, size = (
            bytes(view[position : position + 4]).decode("ascii"),
            struct.unpack_from("<I", view, position + 4)[0],
        )
        position += 8
        if name == "LIST":
            position += 4
        else:
            found[name] = view[position : position + size]
            position += size + size % 2
    return found


def _zones(chunks: dict[str, memoryview]) -> dict[int, tuple[str, int | None, int]]:
    """By sample: the name of the first instrument that uses it, its root key (None: that of the sample) and tuning."""
    bags = [bag for bag, _ in struct.iter_unpack("<HH", chunks["ibag"])]
    generators = list(struct.iter_unpack("<Hh", chunks["igen"]))
    instruments = [(_text(name), bag) for name, bag in struct.iter_unpack("<20sH", chunks["inst"])]
    found: dict[int, tuple[str, int | None, int]] = {}
    for (name, first), (_, last) in pairwise(instruments):
        for begin, end in pairwise(bags[first : last + 1]):
            zone = dict(generators[begin:end])
            if SAMPLE_OF in zone:
                found.setdefault(zone[SAMPLE_OF], (name, zone.get(ROOT_KEY), zone.get(COARSE_TUNE, 0)))
    return found


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode("latin-1").strip()
