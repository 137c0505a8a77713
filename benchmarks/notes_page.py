"""Unheard notes to listen to and to look at: `benchmarks/notes_page.py HOME --page FOLDER --picture FILE [--num 4]`.

HOME is that of `notes_codec.py` after its part `storm`. Three columns: the note itself, what the codec makes of it, and
one that SoundStorm made from its caption, the first of those that the benchmark measured. Notes are taken evenly from
all unheard ones that have a pitch, in the order of their names.
"""

from __future__ import annotations

import argparse
import html
import json
from pathlib import Path

import numpy as np
from torch import Tensor

from notes_codec import RATE
from pitch import captioned_class
from quintet.common.inference import inference_mode
from quintet.evaluation import EvalSession
from quintet.families.audio_codec.pipeline import AudioCodecPipeline
from quintet.families.audio_codec.task import AudioCodecTask, round_trip
from quintet.media.audio import read_audio, write_audio
from quintet.media.audio_formats import Samples
from quintet.media.chart import spectrogram
from quintet.media.image import image_grid, write_image

SECONDS = 0.8
SHOWN = 200
"""Pixels of the time axis of a spectrogram."""
COLUMNS = ("original", "codec", "made")
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Notes</title>
<style>body {{ font: 16px sans-serif; margin: 2em }} th, td {{ padding: 0.3em 1em; text-align: left }}</style>
<h1>Notes that were never trained on</h1>
<table><tr><th>caption<th>the note<th>through the codec<th>made from the caption</tr>
{rows}
</table>
</html>
"""


def unheard(home: Path) -> list[tuple[str, Tensor, Tensor]]:
    """Caption, sound, and what the codec makes of it, of those with a pitch."""
    pipeline = AudioCodecPipeline.from_pretrained(home / "codec")
    session = EvalSession.open(pipeline)
    task = session.task
    assert isinstance(task, AudioCodecTask)
    found = []
    with inference_mode(pipeline.modules):
        for item in range(len(session.loader.dataset)):
            batch = session.loader.single(item)
            if captioned_class(batch["texts"][0]) is not None:
                waves, lengths = task.first_seconds(batch)
                made = round_trip(pipeline.codec, waves, lengths)[1]
                found.append((batch["texts"][0], waves[0], made[0]))
    return found


def made_from(folder: Path) -> dict[str, Samples]:
    """The first note that was made from each caption."""
    found: dict[str, Samples] = {}
    for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        about = json.loads(line)
        if about["file"].endswith(".wav") and about["text"] not in found:
            found[about["text"]] = read_audio(folder / about["file"], rate=RATE)[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--num", type=int, default=4)
    arguments = parser.parse_args()
    notes = unheard(arguments.home)
    made = made_from(max(arguments.home.glob("made-*"), key=lambda folder: folder.stat().st_mtime))
    rows, pictures = [], []
    samples = round(SECONDS * RATE)
    for number in np.linspace(0, len(notes) - 1, arguments.num).astype(int):
        caption, *sounds = notes[number]
        cells = ""
        for what, sound in zip(COLUMNS, [*(each.numpy() for each in sounds), made[caption]], strict=True):
            wave = np.pad(sound[:samples], (0, max(0, samples - len(sound))))
            path = write_audio(wave, arguments.page / f"note-{number:02d}-{what}.flac", RATE)
            pictures.append(spectrogram(wave, RATE, width=SHOWN))
            cells += f'<td><audio controls src="{path.name}"></audio>'
        rows.append(f"<tr><td>{html.escape(caption)}{cells}</tr>")
        print(caption)
    (arguments.page / "notes.html").write_text(PAGE.format(rows="\n".join(rows)), encoding="utf-8")
    write_image(image_grid(pictures, columns=len(COLUMNS)), arguments.picture)


if __name__ == "__main__":
    main()
