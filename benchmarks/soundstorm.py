"""SoundStorm, ours beside soundstorm-pytorch 0.6.1's: `make bench-soundstorm`. One thread, CPU seconds.

dim 256, depth 4, heads 4 x 64, feed-forward of four widths; 8 levels of 1024 codes, 250 frames, which are 5 s; told
semantic tokens of 500 codes at half the frames' rate. Ours has the peer's convolution, over 31 frames and two widths,
and, as rows of their own, that of our recipe: 5 frames, one width. The peer has four residual streams by default, and
one as a row of its own.

`step`: a training step of batch 4, gradients clipped to 0.5, Adam. What differs: the peer makes the logits of all
levels at all frames, ours those of each row's level at its hidden frames; the peer draws one level and one prompt for
the batch, ours one for each row. `generate`: one clip, 16 passes at the first level and one at each other, 23 in all,
to codes; ours with the peer's way of drawing codes (three tenths of them, a temperature that falls) and with our own.
The real-time factor is by CPU seconds, of which one thread has no more than there are seconds.
"""

from __future__ import annotations

import argparse
import sys

import soundstorm_task as task
from side_by_side import HERE, Contender, audio_peer, interleave, mean_cpu, record, table

RESULTS = HERE / "results"
ROUNDS = {"fp32": 8, "bf16": 1}
"""A processor without bf16 instructions takes some ten times as long over it."""
BARS = {"step": {"fp32": 0.6, "bf16": 0.4}, "generate": {"fp32": 0.5, "bf16": 0.3}}
UNITS = {"step": "step", "generate": "clip"}


def ours(name: str, *arguments: str) -> Contender:
    return Contender(name, sys.executable, "soundstorm_ours.py", arguments)


def peer(name: str, *arguments: str) -> Contender:
    return Contender(name, audio_peer(), "peers/soundstorm_peer.py", arguments)


def contenders(what: str, precision: str) -> list[Contender]:
    """The peer as it is by default comes first, ours of the same sizes and settings third."""
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
    whole, single, *own = chosen
    print(table(chosen, {each.name: whole.name for each in own}, UNITS[what]))
    same_settings = own[0]
    print(
        f"\nours of the peer's: {mean_cpu(same_settings) / mean_cpu(whole):.2f} (bar {BARS[what][precision]}); "
        f"of the peer's with one residual stream: {mean_cpu(same_settings) / mean_cpu(single):.2f}"
    )
    if what == "generate":
        passes = {cost["passes"] for contender in chosen for cost in contender.costs}
        if passes != {task.PASSES}:
            raise SystemExit(f"the contenders made {sorted(passes)} passes, not {task.PASSES} each")
        for contender in chosen:
            print(f"real-time factor of {contender.name}: {mean_cpu(contender) / task.SECONDS:.3f}")
    print(f"raw figures: {out}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(BARS), help="step, generate")
    parser.add_argument("--precision", choices=list(ROUNDS), default="fp32")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warmup", type=int, default=2, help="rounds before those that count")
    arguments = parser.parse_args()
    for what in arguments.what:
        if what not in BARS:
            parser.error(f"'{what}' is none of {', '.join(BARS)}")
        compare(what, arguments.precision, arguments.rounds, arguments.warmup)


if __name__ == "__main__":
    main()
