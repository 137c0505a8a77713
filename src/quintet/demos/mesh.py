"""Owns `quintet demo mesh`: low-poly solids; a tokenizer of them; a transformer that makes meshes from captions.

The transformer is trained on plain coordinates, which is the shorter way to a generator: nothing has to be learned
first, and its vocabulary is a thirtieth of the learned tokenizer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quintet.demos.script import Script, every, figures

CAPTIONS = ("a tall table", "a low wide house", "a chair", "stairs")


@dataclass(frozen=True)
class MeshDemo:
    """How long each form of the demo trains."""

    num: int
    tokenizer_steps: int
    tokenizer_every: int
    transformer_steps: int
    transformer_every: int
    judged: int


QUICK = MeshDemo(
    num=2000,
    tokenizer_steps=600,
    tokenizer_every=200,
    transformer_steps=600,
    transformer_every=200,
    judged=64,
)
FULL = MeshDemo(
    num=20_000,
    tokenizer_steps=6000,
    tokenizer_every=1000,
    transformer_steps=3600,
    transformer_every=600,
    judged=200,
)


def mesh_demo(out: Path, full: bool, script: Script) -> None:
    demo = FULL if full else QUICK
    data, tokenizer, transformer, made = out / "data", out / "tokenizer", out / "transformer", out / "made"
    script.make("solids", data, demo.num)
    script.train(
        "mesh-autoencoder", data, tokenizer, demo.tokenizer_steps,
        f"train.steps={demo.tokenizer_steps}", *every(demo.tokenizer_every),
    )  # fmt: skip
    script.run("eval", str(tokenizer))
    # There are enough meshes, and captions name proportions, which stretching would change.
    script.train(
        "mesh-transformer", data, transformer, demo.transformer_steps, "--tokenizer", "coordinates",
        "data.augment=false", f"train.steps={demo.transformer_steps}", f"eval.generated={demo.judged}",
        *every(demo.transformer_every),
    )  # fmt: skip
    script.run("eval", str(transformer))
    script.sample(transformer, CAPTIONS, 4, made)
    script.say(summary(tokenizer, transformer))
    script.say(f"look at:  {made}/sheet.png (a row for each text), {made}/*.glb, {tokenizer}/samples/")
    script.say(f'next: quintet sample {transformer} --text "a wide bench" --out out/')
    script.say("next: quintet train mesh-autoencoder YOUR_FOLDER")


def summary(tokenizer: Path, transformer: Path) -> str:
    kept, made = (figures(run) for run in (tokenizer, transformer))
    return (
        f"\nthe tokenizer puts {kept['coordinate_accuracy']:.1%} of the coordinates of unseen meshes within one bin; "
        f"Chamfer distance {kept['chamfer']:.4f}\n"
        f"of meshes made from captions {made['valid']:.0%} are valid, {made['watertight']:.0%} watertight, and "
        f"{made['match_class']:.0%} show what the caption says"
    )
