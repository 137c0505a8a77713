"""Compares SoundStorm with soundstorm-pytorch 0.6.1: `make bench-soundstorm`. One thread, CPU seconds.

dim 256, depth 4, heads 4 x 64, feed-forward expansion 4; 8 quantizers of 1024 codes, 250 frames (5 s); conditioned on
semantic tokens of 500 codes at half the frame rate. Ours has the peer's convolution (31 frames, expansion 2) and, in
separate rows, that of our recipe (5 frames, expansion 1). The peer has four residual streams by default, and one in a
separate row.

`step`: a training step of batch 4, gradients clipped to 0.5, Adam. Differences: the peer computes the logits of all
quantizers at all frames, ours those of one quantizer per row at its masked frames; the peer samples one quantizer and
one prompt for the batch, ours for each row. `generate`: one clip, 16 passes for the first quantizer and one for each
other, 23 in total, to codes; ours with the peer's sampling (top 30 % of the codes, decreasing temperature) and with our
own. The real-time factor uses CPU seconds.

`loss`: the first 50 frames and 4 quantizers of synthetic `sounds` clips, encoded by a trained audio codec, batch 16,
without conditioning, because the peer reads only semantic tokens. All train for the same CPU seconds, and the
cross-entropy of masked held-out codes of every quantizer, under the same masks, is measured during training; coarser
quantizers are visible, finer ones are masked. The peer has the sizes above, its own defaults otherwise (four residual
streams, linear mask schedule, a part of the masked codes visible or replaced), AdamW, its gradient clipping and a
warm-up; the better of its learning rates counts. Ours appears at the peer's sizes with the same optimizer, and with all
settings of the preset `small`: its sizes, batch, optimizer, precision, coarse quantizers more often. Both rows of ours
start from the codebooks of the codec, as in the recipe. The learning rate does not decay.
"""

from __future__ import annotations

import argparse
import sys

import equal_time
import soundstorm_task as task
from side_by_side import HERE, Contender, audio_peer, interleave, mean_cpu, record, table

RESULTS = HERE / "results"
ROUNDS = {"fp32": 8, "bf16": 1}
"""A processor without bf16 instructions takes about ten times as long."""
TARGETS = {"step": {"fp32": 0.6, "bf16": 0.4}, "generate": {"fp32": 0.5, "bf16": 0.3}}
UNITS = {"step": "step", "generate": "clip"}


def ours(name: str, *arguments: str) -> Contender:
    return Contender(name, sys.executable, "soundstorm_ours.py", arguments)


def peer(name: str, *arguments: str) -> Contender:
    return Contender(name, audio_peer(), "peers/soundstorm_peer.py", arguments)


def contenders(what: str, precision: str) -> list[Contender]:
    """The peer with its defaults comes first, ours with the same sizes and settings third."""
    theirs = [
        peer(f"peer, {precision}", what, "4", precision),
        peer(f"peer, one residual stream, {precision}", what, "1", precision),
    ]
    if what == "step":
        return [
            *theirs,
            ours(f"ours, {precision}", what, "peer", precision),
            ours(f"ours, our convolution, {precision}", what, "own", precision),
        ]
    return [
        *theirs,
        ours(f"ours, {precision}", what, "peer", "peer", precision),
        ours(f"ours, our convolution and settings, {precision}", what, "own", "own", precision),
    ]


def compare(what: str, precision: str, rounds: int | None, warmup: int) -> None:
    chosen = contenders(what, precision)
    out = RESULTS / f"soundstorm-{what}-{precision}.json"
    interleave(chosen, warmup, rounds or ROUNDS[precision], out)
    record(chosen, out)
    default, single, *own = chosen
    print(table(chosen, {each.name: default.name for each in own}, UNITS[what]))
    same_settings = own[0]
    print(
        f"\nratio of ours to the peer: {mean_cpu(same_settings) / mean_cpu(default):.2f} "
        f"(target {TARGETS[what][precision]}); "
        f"to the peer with one residual stream: {mean_cpu(same_settings) / mean_cpu(single):.2f}"
    )
    if what == "generate":
        passes = {cost["passes"] for contender in chosen for cost in contender.costs}
        if passes != {task.PASSES}:
            raise SystemExit(f"the contenders ran {sorted(passes)} passes instead of {task.PASSES}")
        for contender in chosen:
            print(f"real-time factor of {contender.name}: {mean_cpu(contender) / task.SECONDS:.3f}")
    print(f"raw results: {out}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(TARGETS), help="step, generate, loss")
    parser.add_argument("--precision", choices=list(ROUNDS), default="fp32", help="precision of step and generate")
    parser.add_argument("--rounds", type=int, help="number of rounds of step and generate")
    parser.add_argument("--warmup", type=int, default=2, help="number of warm-up rounds, which are not counted")
    equal_time.add_code_arguments(parser, HERE.parent / "runs" / "bench-soundstorm", "audio-codec", "sounds")
    equal_time.add_arguments(parser)
    arguments = parser.parse_args()
    for what in arguments.what:
        if what == "loss":
            levels = range(1, task.CLIP_LEVELS + 1)
            columns = {f"quantizer {level}": equal_time.shown(f"loss/level {level}") for level in levels}
            equal_time.compare_on_codes("soundstorm", peer, ours, arguments, columns)
        elif what in TARGETS:
            compare(what, arguments.precision, arguments.rounds, arguments.warmup)
        else:
            parser.error(f"'{what}' is not one of {', '.join(TARGETS)}, loss")


if __name__ == "__main__":
    main()
