"""Owns `quintet demo`: a sequence of public commands on embedded data, printed as they run.

Each part is skipped where its result stands already, so an interrupted demo goes on where it was.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Call = Callable[[Sequence[str]], int]
Print = Callable[[str], None]


@dataclass(frozen=True)
class ImageDemo:
    """How long each form of the demo trains; what is left of `steps` after the first part is resumed."""

    num: int
    steps: int
    first_steps: int
    look_every: int


QUICK = ImageDemo(num=2000, steps=1500, first_steps=1000, look_every=250)
FULL = ImageDemo(num=5000, steps=5000, first_steps=3334, look_every=500)


def image_demo(out: Path, full: bool, call: Call, say: Print) -> None:
    """Make pictures, train the tokenizer, resume it once, evaluate it, look."""
    demo = FULL if full else QUICK
    data, tokenizer = out / "data", out / "tokenizer"

    def run(*words: str) -> None:
        say(f"\n$ quintet {shlex.join(words)}")
        call(words)

    if not (data / "metadata.jsonl").exists():
        run("data", "make", "shapes", str(data), "--num", str(demo.num))
    if not (tokenizer / "config.yaml").exists():
        # The discriminator is active for the last third.
        run(
            "train", "vqgan", str(data), "--out", str(tokenizer), "--preset", "small",
            f"train.steps={demo.first_steps}", f"optim.horizon={demo.steps}",
            f"loss.discriminator_start={demo.steps * 2 // 3}",
            f"eval.every={demo.look_every}", f"sample.every={demo.look_every}", f"checkpoint.every={demo.look_every}",
        )  # fmt: skip
    if steps_taken(tokenizer) < demo.steps:
        run("resume", str(tokenizer), f"train.steps={demo.steps}")
    run("eval", str(tokenizer))
    say(summary(tokenizer))
    say(f"look at:  {tokenizer}/samples/ (input beside reconstruction, at every stage), {tokenizer}/curves.png")
    say(f"next: quintet sample {tokenizer} --out out/")
    say("next: quintet train vqgan YOUR_FOLDER")


def steps_taken(run: Path) -> int:
    try:
        return int(json.loads((run / "state.json").read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError):
        return 0


def summary(run: Path) -> str:
    figures = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    return (
        f"\nthe tokenizer reconstructs unseen pictures at {figures['psnr']:.1f} dB PSNR "
        f"and uses {figures['codebook_usage']:.0%} of its codebook"
    )
