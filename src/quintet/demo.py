"""Owns `quintet demo`: a sequence of public commands on embedded data, printed as they run.

Each part is skipped where its result stands already, so an interrupted demo goes on where it was.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Call = Callable[[Sequence[str]], int]
Print = Callable[[str], None]

CAPTIONS = (
    "a large red heart in the centre",
    "a small blue star at the top left and a large yellow ring at the bottom right",
    "a green triangle on the left",
    "a black cross on the right and a pink circle on the left",
)


@dataclass(frozen=True)
class ImageDemo:
    """How long each form of the demo trains."""

    num: int
    tokenizer_steps: int
    first_steps: int
    """Of the tokenizer; what is left of its steps is resumed."""
    tokenizer_every: int
    muse_steps: int
    muse_every: int
    judged: int


QUICK = ImageDemo(
    num=4000,
    tokenizer_steps=1500,
    first_steps=1000,
    tokenizer_every=250,
    muse_steps=800,
    muse_every=200,
    judged=128,
)
FULL = ImageDemo(
    num=48_000,
    tokenizer_steps=5000,
    first_steps=3334,
    tokenizer_every=500,
    muse_steps=9000,
    muse_every=1000,
    judged=500,
)


def image_demo(out: Path, full: bool, call: Call, say: Print) -> None:
    """Make pictures; train the tokenizer, resume it once, evaluate it; train Muse on it, evaluate it, draw."""
    demo = FULL if full else QUICK
    data, tokenizer, muse, drawn = out / "data", out / "tokenizer", out / "muse", out / "drawn"

    def run(*words: str) -> None:
        say(f"\n$ quintet {shlex.join(words)}")
        call(words)

    if not (data / "metadata.jsonl").exists():
        run("data", "make", "shapes", str(data), "--num", str(demo.num))
    if not (tokenizer / "config.yaml").exists():
        # The discriminator is active for the last third.
        run(
            "train", "vqgan", str(data), "--out", str(tokenizer), "--preset", "small",
            f"train.steps={demo.first_steps}", f"optim.horizon={demo.tokenizer_steps}",
            f"loss.discriminator_start={demo.tokenizer_steps * 2 // 3}",
            *_every(demo.tokenizer_every),
        )  # fmt: skip
    if steps_taken(tokenizer) < demo.tokenizer_steps:
        run("resume", str(tokenizer), f"train.steps={demo.tokenizer_steps}")
    run("eval", str(tokenizer))
    if not (muse / "config.yaml").exists():
        run(
            "train", "muse", str(data), "--tokenizer", str(tokenizer), "--out", str(muse), "--preset", "small",
            f"train.steps={demo.muse_steps}", f"eval.generated={demo.judged}", *_every(demo.muse_every),
        )  # fmt: skip
    if steps_taken(muse) < demo.muse_steps:
        run("resume", str(muse))
    run("eval", str(muse))
    if not (drawn / "grid.png").exists():
        texts = [word for caption in CAPTIONS for word in ("--text", caption)]
        run("sample", str(muse), *texts, "--num", "8", "--out", str(drawn))
    say(summary(tokenizer, muse))
    say(f"look at:  {drawn}/grid.png (a row for each text), {tokenizer}/samples/, {muse}/samples/, {muse}/curves.png")
    say(f'next: quintet sample {muse} --text "a purple diamond at the top" --out out/')
    say("next: quintet train vqgan YOUR_FOLDER")


def _every(steps: int) -> tuple[str, ...]:
    return tuple(f"{what}.every={steps}" for what in ("eval", "sample", "checkpoint"))


def steps_taken(run: Path) -> int:
    try:
        return int(json.loads((run / "state.json").read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError):
        return 0


def summary(tokenizer: Path, muse: Path) -> str:
    kept, drawn = (_figures(run) for run in (tokenizer, muse))
    return (
        f"\nthe tokenizer reconstructs unseen pictures at {kept['psnr']:.1f} dB PSNR "
        f"and uses {kept['codebook_usage']:.0%} of its codebook\n"
        "pictures drawn from captions that were never trained on show what the caption says: "
        + ", ".join(f"{what} {drawn[f'match_{what}']:.0%}" for what in ("colour", "position", "shape"))
        + f"; colour and shape of pairs never trained on: {drawn['match_withheld']:.0%}"
    )


def _figures(run: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    return figures
