"""Compares a C-ViViT training step with phenaki-pytorch 0.5.0: `make bench-video`.

dim 256, 2 + 2 blocks in encoder and decoder, heads 4 x 64, LFQ 1024, 9 frames of 64 pixels, patch 8, 2 frames per tube,
batch 2, generator and discriminator step, one thread. Both discriminators see one frame of each clip.

`same` follows the peer: a forward pass for each phase, the penalty in every step, and a discriminator with the same
number of parameters. `large` is a training step of quintet with that discriminator: one forward pass for both phases,
and the penalty in every fourth step. `recipe` has the discriminator of the recipe, which is much smaller. Remaining
differences: the peer weights the adversarial loss by gradients at its last layer, ours by a constant, as in the paper;
the peer has a perceptual network of one small convolution, ours has none; the temporal blocks of the peer start with a
convolution that is not causal, ours use relative positions.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from side_by_side import HERE, Contender, interleave, record, table, vision_peer

KINDS = {
    "same": "same algorithm",
    "large": "our recipe, same discriminator size",
    "recipe": "our recipe",
}


def contenders(precision: str) -> tuple[list[Contender], dict[str, str]]:
    peer = Contender(f"peer, {precision}", vision_peer(), "peers/cvivit_peer.py", (precision,))
    own = [
        Contender(f"ours, {words}, {precision}", sys.executable, "cvivit_ours.py", (kind, precision))
        for kind, words in KINDS.items()
    ]
    return [peer, *own], {contender.name: peer.name for contender in own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or HERE / "results" / f"cvivit-{arguments.precision}.json"
    chosen, against = contenders(arguments.precision)
    interleave(chosen, arguments.warmup, arguments.rounds)
    record(chosen, out)
    print(table(chosen, against))
    print(f"raw results: {out}")


if __name__ == "__main__":
    main()
