"""Compares masked transformers with muse-maskgit-pytorch 0.3.5: `make bench-muse`.

`step` and `sample`: dim 256, depth 4, heads 8 x 32, 256 tokens of 1024 codes, text of 32 symbols, one thread. A
training step of batch 4 with AdamW; sampling of 18 steps, guidance 3, batch 2, to codes. The peer gets text embeddings
and only projects them; ours also runs its byte encoder over the same number of symbols. The peer runs with both of its
attention implementations, and ours is compared with the faster one.

`loss`: the same sizes on the 8 x 8 codes of synthetic shapes, batch 16; both train for the same CPU seconds, and the
loss on held-out codes under the same masks is measured during training. The peer has neither a trainer nor, without a
download, a text encoder: it gets AdamW and the same warm-up, and untrained embeddings of bytes. The loss without text
is therefore measured as well. The better of its learning rates counts. Ours appears at the peer's sizes with the same
optimizer, and with all settings of the preset `small`: its sizes, batch, optimizer, precision, words, smoothed targets.
Both rows of ours start from the codebook of the tokenizer, as in the recipe. The learning rate does not decay.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import equal_time
from side_by_side import HERE, Contender, interleave, mean_cpu, record, table, vision_peer

RESULTS = HERE / "results"
ROUNDS = {"fp32": 12, "bf16": 2}
"""A processor without bf16 instructions takes about twenty times as long."""
PEER_ATTENTION = {"fp32": ("flash", "plain"), "bf16": ("plain",)}
"""Attention implementations of the peer; `flash` fails with bf16, because its mask value does not fit."""
UNITS = {"step": "step", "sample": "2 samples"}


def ours(name: str, *arguments: str) -> Contender:
    return Contender(name, sys.executable, "muse_ours.py", arguments)


def peer(name: str, *arguments: str) -> Contender:
    return Contender(name, vision_peer(), "peers/muse_peer.py", arguments)


def loss_peer(attention: str, name: str, what: str, *arguments: str) -> Contender:
    return peer(name, what, attention, *arguments)


# --- a step, and sampling -----------------------------------------------------------------------------------------


def compare_speed(what: str, precision: str, rounds: int | None, warmup: int) -> None:
    theirs = [peer(f"peer, {kind} attention, {precision}", what, kind, precision) for kind in PEER_ATTENTION[precision]]
    if what == "step":
        own = [ours(f"ours, {precision}", "step", precision)]
    else:
        own = [
            ours(f"ours, the peer's settings, {precision}", "sample-peer-settings", precision),
            ours(f"ours, our settings, {precision}", "sample", precision),
        ]
    chosen = [*theirs, *own]
    interleave(chosen, warmup, rounds or ROUNDS[precision])
    out = RESULTS / f"muse-{what}-{precision}.json"
    record(chosen, out)
    faster = min(theirs, key=mean_cpu)
    print(table(chosen, {contender.name: faster.name for contender in own}, UNITS[what]))
    print(f"raw results: {out}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["step", "sample"], help="step, sample, loss")
    parser.add_argument("--precision", choices=list(ROUNDS), default="fp32", help="precision of step and sample")
    parser.add_argument("--rounds", type=int, help="number of rounds of step and sample")
    parser.add_argument("--warmup", type=int, default=2, help="number of warm-up rounds, which are not counted")
    # Of `make results`.
    equal_time.add_code_arguments(parser, HERE.parent / "runs" / "full", "vqgan", "shapes")
    equal_time.add_arguments(parser)
    parser.add_argument("--attention", choices=["flash", "plain"], default="plain", help="loss: attention of the peer")
    arguments = parser.parse_args()
    for what in arguments.what:
        if what == "loss":
            columns = {"loss without text": equal_time.shown("loss without text")}
            theirs = partial(loss_peer, arguments.attention)
            equal_time.compare_on_codes("muse", theirs, ours, arguments, columns)
        elif what in UNITS:
            compare_speed(what, arguments.precision, arguments.rounds, arguments.warmup)
        else:
            parser.error(f"'{what}' is not one of step, sample, loss")


if __name__ == "__main__":
    main()
