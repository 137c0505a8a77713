"""Compares text to video with phenaki-pytorch 0.5.0: `make bench-video`.

dim 256, depth 4, heads 4 x 64, 5 x 8 x 8 tokens of 1024 codes, text of 32 symbols, one thread. `step`: a training step
of batch 4 on precomputed codes with Adam. `sample`: 18 steps, guidance 3, batch 2, from text to 9 frames of 64 pixels
with a tokenizer of the same size on both sides. The peer gets text embeddings and only projects them. With the same
embeddings, ours does the same work; by default, ours also runs its byte encoder over the same number of symbols: in
every training step, and once in sampling. Neither has a critic. The peer never drops a text in training; ours drops one
in ten, which classifier-free guidance needs.
"""

from __future__ import annotations

import argparse
import sys

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


def compare(what: str, precision: str, rounds: int | None, warmup: int) -> None:
    peer = Contender(f"peer, {precision}", vision_peer(), "peers/phenaki_peer.py", (what, precision))
    own = [
        Contender(f"{words}, {precision}", sys.executable, "phenaki_ours.py", (kind, precision))
        for kind, words in OURS[what].items()
    ]
    chosen = [peer, *own]
    interleave(chosen, warmup, rounds or ROUNDS[precision])
    out = HERE / "results" / f"phenaki-{what}-{precision}.json"
    record(chosen, out)
    print(table(chosen, {contender.name: peer.name for contender in own}, UNITS[what]))
    print(f"raw results: {out}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(UNITS), help="step, sample")
    parser.add_argument("--precision", choices=list(ROUNDS), default="fp32")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warmup", type=int, default=2, help="number of warm-up rounds, which are not counted")
    arguments = parser.parse_args()
    for what in arguments.what:
        compare(what, arguments.precision, arguments.rounds, arguments.warmup)


if __name__ == "__main__":
    main()
