"""Page and spectrograms of held-out notes: `benchmarks/notes_page.py HOME --page FOLDER --image FILE [--num 4]`.

HOME is that of `notes_codec.py` after its part `storm`. Three columns: the note, its reconstruction by the codec, and
the first note that SoundStorm generated from its caption. Notes are evenly chosen from all held-out notes with a pitch,
in the order of their names.
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
"""Width of a spectrogram in pixels."""
COLUMNS = ("original", "codec", "made")
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Notes</title>
<style>body {{ font: 16px sans-serif; margin: 2em }} th, td {{ padding: 0.3em 1em; text-align: left }}</style>
<h1>Notes that are not in the training data</h1>
<table><tr><th>caption<th>original<th>codec<th>generated from the caption</tr>
{rows}
</table>
</html>
"""


def held_out_notes(home: Path) -> list[tuple[str, Tensor, Tensor]]:
    """Caption, wave and reconstruction of each held-out note with a pitch."""
    pipeline = AudioCodecPipeline.from_pretrained(home / "codec")
    session = EvalSession.open(pipeline)
    task = session.task
    assert isinstance(task, AudioCodecTask)
    notes = []
    with inference_mode(pipeline.modules):
        for item in range(len(session.loader.dataset)):
            batch = session.loader.single(item)
            if captioned_class(batch["texts"][0]) is not None:
                waves, lengths = task.first_seconds(batch)
                decoded = round_trip(pipeline.codec, waves, lengths)[1]
                notes.append((batch["texts"][0], waves[0], decoded[0]))
    return notes


def generated_notes(folder: Path) -> dict[str, Samples]:
    """The first generated note of each caption."""
    notes: dict[str, Samples] = {}
    for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["file"].endswith(".wav") and record["text"] not in notes:
            notes[record["text"]] = read_audio(folder / record["file"], rate=RATE)[0]
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--num", type=int, default=4)
    arguments = parser.parse_args()
    notes = held_out_notes(arguments.home)
    generated = generated_notes(max(arguments.home.glob("made-*"), key=lambda folder: folder.stat().st_mtime))
    rows, images = [], []
    samples = round(SECONDS * RATE)
    for number in np.linspace(0, len(notes) - 1, arguments.num).astype(int):
        caption, *waves = notes[number]
        cells = ""
        for column, clip in zip(COLUMNS, [*(each.numpy() for each in waves), generated[caption]], strict=True):
            wave = np.pad(clip[:samples], (0, max(0, samples - len(clip))))
            path = write_audio(wave, arguments.page / f"note-{number:02d}-{column}.flac", RATE)
            images.append(spectrogram(wave, RATE, width=SHOWN))
            cells += f'<td><audio controls src="{path.name}"></audio>'
        rows.append(f"<tr><td>{html.escape(caption)}{cells}</tr>")
        print(caption)
    (arguments.page / "notes.html").write_text(PAGE.format(rows="\n".join(rows)), encoding="utf-8")
    write_image(image_grid(images, columns=len(COLUMNS)), arguments.image)


if __name__ == "__main__":
    main()
