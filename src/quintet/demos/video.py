"""Owns `quintet demo video`: clips of moving shapes; their tokenizer; Phenaki, which makes clips from captions, and one
video of two scenes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from quintet.demos.script import Script, every, figures

CAPTIONS = (
    "a red circle moves right",
    "a blue star grows",
    "a yellow heart bounces",
    "a green square moves up",
)
SCENES = ("a red circle moves right", "a red circle moves down")
SIDE = 32


@dataclass(frozen=True)
class VideoDemo:
    """How long each form of the demo trains."""

    num: int
    tokenizer_steps: int
    tokenizer_every: int
    phenaki_steps: int
    phenaki_every: int
    judged: int


QUICK = VideoDemo(
    num=1500,
    tokenizer_steps=200,
    tokenizer_every=100,
    phenaki_steps=500,
    phenaki_every=250,
    judged=48,
)
FULL = VideoDemo(
    num=8000,
    tokenizer_steps=4000,
    tokenizer_every=1000,
    phenaki_steps=10_000,
    phenaki_every=1000,
    judged=200,
)


def video_demo(out: Path, full: bool, script: Script) -> None:
    demo = FULL if full else QUICK
    data, tokenizer, phenaki, made, story = (out / name for name in ("data", "tokenizer", "phenaki", "made", "story"))
    script.make("motions", data, demo.num, "--size", str(SIDE))
    script.train(
        "cvivit", data, tokenizer, demo.tokenizer_steps,
        f"train.steps={demo.tokenizer_steps}", *every(demo.tokenizer_every),
    )  # fmt: skip
    script.run("eval", str(tokenizer))
    script.train(
        "phenaki", data, phenaki, demo.phenaki_steps, "--tokenizer", str(tokenizer),
        f"train.steps={demo.phenaki_steps}", f"eval.generated={demo.judged}", *every(demo.phenaki_every),
    )  # fmt: skip
    script.run("eval", str(phenaki))
    script.sample(phenaki, CAPTIONS, 4, made)
    tell(phenaki, story, script)
    script.say(summary(tokenizer, phenaki, story))
    script.say(
        f"look at:  {made}/ (four of each text; {made}/filmstrip.png shows them all), {story}/ (two scenes), "
        f"{tokenizer}/samples/, {phenaki}/samples/, {phenaki}/curves.png"
    )
    script.say(f'next: quintet sample {phenaki} --text "a purple ring shrinks" --num 4 --out out/')
    script.say(f"next: quintet sample {phenaki} --scenes scenes.txt --out out/")
    script.say("next: quintet train cvivit YOUR_FOLDER")


def tell(phenaki: Path, story: Path, script: Script) -> None:
    """One video of two scenes."""
    if (story / "samples.jsonl").exists():
        return
    scenes = story.with_suffix(".txt")
    scenes.write_text("\n".join(SCENES) + "\n", encoding="utf-8")
    script.run("sample", str(phenaki), "--scenes", str(scenes), "--num", "4", "--out", str(story))


def summary(tokenizer: Path, phenaki: Path, story: Path) -> str:
    kept, made = figures(tokenizer), figures(phenaki)
    words = ("colour", "shape", "motion")
    jumps = seams(story, phenaki)
    return (
        f"\nthe tokenizer reconstructs unseen clips at {kept['psnr']:.1f} dB PSNR "
        f"and uses {kept['codebook_usage']:.0%} of its codebook\n"
        "clips made from captions that were never trained on show what the caption says: "
        + ", ".join(f"{what} {made[f'match_{what}']:.0%}" for what in words)
        + " (of real clips through the tokenizer: "
        + ", ".join(f"{what} {made[f'match_{what}_reconstruction']:.0%}" for what in words)
        + ")\nfrom the first scene to the second the picture changes as much as between other frames times "
        + ", ".join(f"{jump:.1f}" for jump in jumps)
    )


def seams(story: Path, phenaki: Path) -> list[float]:
    """Of each video of scenes the change at the seam, against the median change from frame to frame."""
    import numpy as np

    from quintet import runs
    from quintet.media.video import read_video

    first = runs.read_config(phenaki / "config.yaml").data.frames  # type: ignore[attr-defined]
    rows = [json.loads(line) for line in (story / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    found = []
    for row in rows:
        if not row["file"].endswith(".gif"):
            continue
        frames = read_video(story / row["file"]).astype(np.float64)
        changes = np.abs(np.diff(frames, axis=0)).mean((1, 2, 3))
        found.append(float(changes[first - 1] / np.median(changes)))
    return found
