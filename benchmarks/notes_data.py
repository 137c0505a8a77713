"""Owns how a folder of single notes becomes training data: which are never heard, and what may stand beside the others.

Of the notes that are trained on only: `add_transposed` adds each at every other pitch class, with the caption that is
then true, and `with_sounds_beside` puts as many clips of another folder beside them. Unheard ones stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pitch import CLASSES, captioned_class
from quintet.media.audio import read_audio, write_audio

HELD_OUT = 0.3
RATE = 16_000
"""Of transposed notes; the models of the benchmarks hear no more."""
ROUND_RATES = 50
"""Multiples of so many Hz are quickly resampled to; the nearest is at most 4 of the 100 cents of a semitone away."""
NAMES = ("C", "C sharp", "D", "D sharp", "E", "F", "F sharp", "G", "G sharp", "A", "A sharp", "B")
SHIFTS = tuple(shift for shift in range(-5, CLASSES - 5) if shift)
"""Semitones: to every other pitch class by the shorter way."""

Row = dict[str, Any]


def instrument_of(row: Row) -> str:
    return str(row["text"]).split(", note")[0]


def split_notes(folder: Path, data: Path, whose: Callable[[Row], str] = instrument_of) -> list[Row]:
    """The notes in a folder of their own, with the split in its metadata: notes of one name are on one side."""
    rows = read_rows(folder)
    data.mkdir(parents=True)
    for row in rows:
        share = int.from_bytes(hashlib.sha256(whose(row).encode()).digest()[:8], "big") / 2**64
        row["split"] = "validation" if share < HELD_OUT else "train"
        shutil.copyfile(folder / row["file_name"], data / row["file_name"])
    write_rows(data, rows)
    return rows


def add_transposed(data: Path) -> None:
    """Beside each training note the same at every other pitch class: played slower or faster, as a sampler does."""
    rows = read_rows(data)
    for row in [row for row in rows if row["split"] == "train"]:
        for shift in SHIFTS:
            path = Path(row["file_name"])
            name = f"{path.stem}{shift:+d}.flac"
            # Read at a lower rate and played at the usual one it is shorter and higher.
            rate = ROUND_RATES * round(RATE * 2 ** (-shift / CLASSES) / ROUND_RATES)
            wave = read_audio(data / path, rate=rate)[0]
            write_audio(wave, data / name, RATE)
            rows.append({**row, "file_name": name, "text": transposed(row["text"], shift)})
    write_rows(data, rows)


def transposed(caption: str, shift: int) -> str:
    """What is true of a note once it is so many semitones higher; a caption that names no note stays."""
    found = captioned_class(caption)
    if found is None:
        return caption
    name, octave = instrument_of({"text": caption}), int(re.findall(r"-?\d+", caption)[-1])
    octave, place = divmod(CLASSES * octave + found + shift, CLASSES)
    return f"{name}, note {NAMES[place]}{' ' if 'sharp' in NAMES[place] else ''}{octave}"


def with_sounds_beside(notes: Path, sounds: Path, data: Path) -> None:
    """One more folder: the notes, and training clips of another folder, evenly chosen, as many as training notes."""
    rows = read_rows(notes)
    others = [row for row in read_rows(sounds) if row.get("split", "train") == "train"]
    count = min(len(others), sum(row["split"] == "train" for row in rows))
    chosen = [others[number] for number in np.linspace(0, len(others) - 1, count).astype(int)]
    data.mkdir(parents=True)
    for row in rows:
        shutil.copyfile(notes / row["file_name"], data / row["file_name"])
    for number, row in enumerate(chosen):
        name = f"beside-{number:05d}{Path(row['file_name']).suffix}"
        shutil.copyfile(sounds / row["file_name"], data / name)
        rows.append({"file_name": name, "text": row["text"], "split": "train"})
    write_rows(data, rows)


def read_rows(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]


def write_rows(data: Path, rows: list[Row]) -> None:
    lines = [json.dumps({name: row[name] for name in ("file_name", "text", "split")}) for row in rows]
    (data / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
