"""A C-ViViT training step, ours beside phenaki-pytorch 0.5.0's: `make bench-video`.

dim 256, 2 + 2 blocks each way, heads 4 x 64, LFQ 1024, 9 frames of 64 pixels, patch 8, 2 frames a tube, batch 2,
generator and discriminator step, one thread. Both sides look at one frame of each clip with the discriminator.

`same` does what the peer does: a forward pass for each side, the penalty at every step, and a discriminator of as many
weights. `large` is a step as quintet trains, one forward pass for both and the penalty at every fourth step, with that
discriminator; `recipe` has its own, much smaller one. What still differs: the peer weighs the adversarial loss by
gradients at its last layer, ours by a constant, as the paper; the peer has a perceptual net of one small convolution,
ours none; the peer's temporal blocks begin with a convolution that looks ahead, ours look at distances.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from side_by_side import HERE, Contender, interleave, record, table, vision_peer

KINDS = {
    "same": "same algorithm",
    "large": "our recipe, a discriminator as large",
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
    print(f"raw figures: {out}")


if __name__ == "__main__":
    main()
