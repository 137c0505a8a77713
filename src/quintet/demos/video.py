"""Owns `quintet demo video`: clips of moving shapes; their tokenizer; Phenaki, which makes clips from captions, and one
video of two scenes."""

from __future__ import annotations

import json
import math
from pathlib import Path

from quintet.demos.demo import Demo, Length, Stage
from quintet.demos.script import Show
from quintet.demos.table import Figure, Row

SCENES = ("a red circle moves right", "a red circle moves left")
LARGEST_SEAM = 3.0

TOKENIZER = Stage(
    name="tokenizer",
    recipe="cvivit",
    quick=Length(steps=200, every=100),
    full=Length(steps=2000, every=1000),
    share=0.25,
    pace=3.0,
    figures=(
        Figure("psnr", "PSNR of unseen clips", 26.0, "dB"),
        Figure("codebook_usage", "codes in use"),
    ),
)
PHENAKI = Stage(
    name="phenaki",
    recipe="phenaki",
    quick=Length(steps=500, every=250),
    full=Length(steps=18_000, every=3000),
    share=0.75,
    pace=4.0,
    links=(("tokenizer", "tokenizer"),),
    keys=lambda steps, judged: (f"eval.generated={judged}",),
    figures=(
        Figure("match_colour", "colour as unseen captions say", 0.9),
        Figure("match_motion", "motion", 0.85),
        Figure("match_shape", "shape", 0.9, of="match_shape_reconstruction", why="0.9 of reconstructions"),
    ),
)


def tell(show: Show) -> list[Row]:
    """Videos of two scenes, and how much the picture changes from the one to the other."""
    story = show.out / "story"
    if not (story / "samples.jsonl").exists():
        scenes = story.with_suffix(".txt")
        scenes.write_text("\n".join(SCENES) + "\n", encoding="utf-8")
        words = ("--scenes", str(scenes), "--num", "4", "--out", str(story))
        show.timed("samples", "sample", str(show.out / "phenaki"), *words)
    found = seams(story, show.out / "phenaki")
    reached = bool(found) and all(seam < LARGEST_SEAM for seam in found)
    measured = ", ".join(f"{seam:.1f}" for seam in found)
    what = "change at the seam of two scenes, in median changes"
    return [Row("story", what, measured, f"< {LARGEST_SEAM:g}", "reached" if reached else "not reached")]


def seams(story: Path, phenaki: Path) -> list[float]:
    """Of each video of scenes the change at the seam, against the median change from frame to frame."""
    import numpy as np

    from quintet import registry
    from quintet.media.video import read_video

    first = registry.read_config(phenaki / "config.yaml").data.frames  # type: ignore[attr-defined]
    rows = [json.loads(line) for line in (story / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    found = []
    for row in rows:
        if not row["file"].endswith(".mp4"):  # a GIF has equal frames only once
            continue
        frames = read_video(story / row["file"]).astype(np.float64)
        changes = np.abs(np.diff(frames, axis=0)).mean((1, 2, 3))
        usual = float(np.median(changes))
        found.append(float(changes[first - 1]) / usual if usual else math.inf)
    return found


DEMO = Demo(
    medium="video",
    data="motions",
    data_words=("--size", "32"),
    quick_num=1500,
    full_num=32_000,
    quick_judged=48,
    full_judged=200,
    minutes=120,
    stages=(TOKENIZER, PHENAKI),
    texts=("a red circle moves right", "a blue star grows", "a yellow heart bounces", "a green square moves up"),
    each=4,
    made="made",
    look=(
        "OUT/made/ (four of each text; OUT/made/filmstrip.png shows them all), OUT/story/ (two scenes), "
        "OUT/tokenizer/samples/, OUT/phenaki/samples/"
    ),
    then=(
        'quintet sample OUT/phenaki --text "a purple ring shrinks" --num 4 --out out/',
        "quintet sample OUT/phenaki --scenes scenes.txt --out out/",
        "quintet train cvivit YOUR_FOLDER",
    ),
    besides=tell,
)
