"""Compares text to video with phenaki-pytorch 0.5.0: `make bench-video`.

dim 256, depth 4, heads 4 x 64, 5 x 8 x 8 tokens of 1024 codes, text of 32 symbols, one thread. `step`: a training step
of batch 4 on precomputed codes with Adam. `sample`: 18 steps, guidance 3, batch 2, from text to 9 frames of 64 pixels
with a tokenizer of the same size on both sides. The peer gets text embeddings and only projects them. With the same
embeddings, ours does the same work; by default, ours also runs its byte encoder over the same number of symbols: in
every training step, and once in sampling. Neither has a critic. The peer never drops a text in training; ours drops one
in ten, which classifier-free guidance needs.

`loss`: the same sizes on the codes of synthetic `motions` clips from a trained C-ViViT, batch 16; all train for the
same CPU seconds, and the cross-entropy of masked held-out codes under the same masks is measured during training. The
peer has its own defaults, AdamW, a warm-up and, without a download, untrained embeddings of bytes; the better of its
learning rates counts. Ours appears at the peer's sizes with the same optimizer, and with all settings of the preset
`small`: its sizes, batch, optimizer, precision, words, smoothed targets. One key of the preset is changed:
`loss.frame_autoregressive` is false, because such a model never sees the later frames that the masks leave visible.
Both rows of ours start from the codebook of the tokenizer, as in the recipe. The learning rate does not decay.
"""

from __future__ import annotations

import argparse
import sys

import equal_time
from side_by_side import HERE, Contender, interleave, record, table, vision_peer

ROUNDS = {"fp32": 12, "bf16": 2}
"""A processor without bf16 instructions takes about twenty times as long."""
UNITS = {"step": "step", "sample": "2 videos"}
OURS = {
    "step": {"step-embeddings": "ours, the peer's text embeddings", "step": "ours"},
    "sample": {
        "sample-embeddings": "ours, the peer's text embeddings and settings",
        "sample-peer-settings": "ours, the peer's settings",
        "sample": "ours, our settings",
    },
}


def ours(name: str, *arguments: str) -> Contender:
    return Contender(name, sys.executable, "phenaki_ours.py", arguments)


def peer(name: str, *arguments: str) -> Contender:
    return Contender(name, vision_peer(), "peers/phenaki_peer.py", arguments)


def compare(what: str, precision: str, rounds: int | None, warmup: int) -> None:
    theirs = peer(f"peer, {precision}", what, precision)
    own = [ours(f"{words}, {precision}", kind, precision) for kind, words in OURS[what].items()]
    chosen = [theirs, *own]
    interleave(chosen, warmup, rounds or ROUNDS[precision])
    out = HERE / "results" / f"phenaki-{what}-{precision}.json"
    record(chosen, out)
    print(table(chosen, {contender.name: theirs.name for contender in own}, UNITS[what]))
    print(f"raw results: {out}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(UNITS), help="step, sample, loss")
    parser.add_argument("--precision", choices=list(ROUNDS), default="fp32", help="precision of step and sample")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warmup", type=int, default=2, help="number of warm-up rounds, which are not counted")
    equal_time.add_code_arguments(parser, HERE.parent / "runs" / "bench-phenaki", "cvivit", "motions")
    equal_time.add_arguments(parser)
    arguments = parser.parse_args()
    for what in arguments.what:
        if what == "loss":
            equal_time.compare_on_codes("phenaki", peer, ours, arguments, {})
        elif what in UNITS:
            compare(what, arguments.precision, arguments.rounds, arguments.warmup)
        else:
            parser.error(f"'{what}' is not one of step, sample, loss")


if __name__ == "__main__":
    main()
