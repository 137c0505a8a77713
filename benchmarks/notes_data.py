"""Training data from a folder of single notes: split, transposition, and additional clips.

`add_transposed` adds each training note at every other pitch class, with the matching caption. `with_other_clips` adds
the same number of clips of another folder. Held-out notes are unchanged.
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
"""Sampling rate of transposed notes, and of the models of the benchmarks."""
ROUND_RATES = 50
"""Rates are rounded to multiples of this many Hz for fast resampling; the error is at most 4 cents."""
NAMES = ("C", "C sharp", "D", "D sharp", "E", "F", "F sharp", "G", "G sharp", "A", "A sharp", "B")
SHIFTS = tuple(shift for shift in range(-5, CLASSES - 5) if shift)
"""Shifts in semitones to every other pitch class, by the shorter direction."""

Row = dict[str, Any]


def instrument_of(row: Row) -> str:
    return str(row["text"]).split(", note")[0]


def split_notes(folder: Path, data: Path, group_of: Callable[[Row], str] = instrument_of) -> list[Row]:
    """Copy the notes to a new folder with a split in its metadata; notes of one group are in the same split."""
    rows = read_rows(folder)
    data.mkdir(parents=True)
    for row in rows:
        fraction = int.from_bytes(hashlib.sha256(group_of(row).encode()).digest()[:8], "big") / 2**64
        row["split"] = "validation" if fraction < HELD_OUT else "train"
        shutil.copyfile(folder / row["file_name"], data / row["file_name"])
    write_rows(data, rows)
    return rows


def add_transposed(data: Path) -> None:
    """Add each training note at every other pitch class, by changing its playback speed."""
    rows = read_rows(data)
    for row in [row for row in rows if row["split"] == "train"]:
        for shift in SHIFTS:
            path = Path(row["file_name"])
            name = f"{path.stem}{shift:+d}.flac"
            # Reading at a lower rate and writing at RATE makes the note shorter and higher.
            rate = ROUND_RATES * round(RATE * 2 ** (-shift / CLASSES) / ROUND_RATES)
            wave = read_audio(data / path, rate=rate)[0]
            write_audio(wave, data / name, RATE)
            rows.append({**row, "file_name": name, "text": transposed(row["text"], shift)})
    write_rows(data, rows)


def transposed(caption: str, shift: int) -> str:
    """The caption of a note transposed by `shift` semitones; a caption without a note is unchanged."""
    found = captioned_class(caption)
    if found is None:
        return caption
    name, octave = instrument_of({"text": caption}), int(re.findall(r"-?\d+", caption)[-1])
    octave, pitch = divmod(CLASSES * octave + found + shift, CLASSES)
    return f"{name}, note {NAMES[pitch]}{' ' if 'sharp' in NAMES[pitch] else ''}{octave}"


def with_other_clips(notes: Path, clips: Path, data: Path) -> None:
    """Write a folder with the notes and an equal number of training clips of another folder."""
    rows = read_rows(notes)
    others = [row for row in read_rows(clips) if row.get("split", "train") == "train"]
    count = min(len(others), sum(row["split"] == "train" for row in rows))
    chosen = [others[number] for number in np.linspace(0, len(others) - 1, count).astype(int)]
    data.mkdir(parents=True)
    for row in rows:
        shutil.copyfile(notes / row["file_name"], data / row["file_name"])
    for number, row in enumerate(chosen):
        name = f"beside-{number:05d}{Path(row['file_name']).suffix}"
        shutil.copyfile(clips / row["file_name"], data / name)
        rows.append({"file_name": name, "text": row["text"], "split": "train"})
    write_rows(data, rows)


def read_rows(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]


def write_rows(data: Path, rows: list[Row]) -> None:
    lines = [json.dumps({name: row[name] for name in ("file_name", "text", "split")}) for row in rows]
    (data / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
