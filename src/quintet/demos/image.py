"""Owns `quintet demo image`: pictures of shapes; their tokenizer, resumed once; Muse, which draws from captions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quintet.demos.script import Script, every, figures

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


def image_demo(out: Path, full: bool, script: Script) -> None:
    demo = FULL if full else QUICK
    data, tokenizer, muse, drawn = out / "data", out / "tokenizer", out / "muse", out / "drawn"
    script.make("shapes", data, demo.num)
    # The discriminator is active for the last third.
    script.train(
        "vqgan", data, tokenizer, demo.tokenizer_steps,
        f"train.steps={demo.first_steps}", f"optim.horizon={demo.tokenizer_steps}",
        f"loss.discriminator_start={demo.tokenizer_steps * 2 // 3}", *every(demo.tokenizer_every),
    )  # fmt: skip
    script.run("eval", str(tokenizer))
    script.train(
        "muse", data, muse, demo.muse_steps, "--tokenizer", str(tokenizer),
        f"train.steps={demo.muse_steps}", f"eval.generated={demo.judged}", *every(demo.muse_every),
    )  # fmt: skip
    script.run("eval", str(muse))
    script.sample(muse, CAPTIONS, 8, drawn)
    script.say(summary(tokenizer, muse))
    script.say(
        f"look at:  {drawn}/grid.png (a row for each text), {tokenizer}/samples/, {muse}/samples/, {muse}/curves.png"
    )
    script.say(f'next: quintet sample {muse} --text "a purple diamond at the top" --out out/')
    script.say("next: quintet train vqgan YOUR_FOLDER")


def summary(tokenizer: Path, muse: Path) -> str:
    kept, drawn = (figures(run) for run in (tokenizer, muse))
    return (
        f"\nthe tokenizer reconstructs unseen pictures at {kept['psnr']:.1f} dB PSNR "
        f"and uses {kept['codebook_usage']:.0%} of its codebook\n"
        "pictures drawn from captions that were never trained on show what the caption says: "
        + ", ".join(f"{what} {drawn[f'match_{what}']:.0%}" for what in ("colour", "position", "shape"))
        + f"; colour and shape of pairs never trained on: {drawn['match_withheld']:.0%}"
    )
