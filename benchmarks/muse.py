"""Compares masked transformers with muse-maskgit-pytorch 0.3.5: `make bench-muse`.

`step` and `sample`: dim 256, depth 4, heads 8 x 32, 256 tokens of 1024 codes, text of 32 symbols, one thread. A
training step of batch 4 with AdamW; sampling of 18 steps, guidance 3, batch 2, to codes. The peer gets text embeddings
and only projects them; ours also runs its byte encoder over the same number of symbols. The peer runs with both of its
attention implementations, and ours is compared with the faster one.

`loss`: the same sizes on the 8 x 8 codes of synthetic shapes, batch 16; both train for the same CPU seconds, and the
loss on held-out codes under the same masks is measured during training. The peer has neither a trainer nor, without a
download, a text encoder: it gets AdamW and the same warm-up, and untrained embeddings of bytes. The loss without text
is therefore measured as well. Ours starts from the codebook of the tokenizer, as in its recipe.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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


# --- loss after equal time ----------------------------------------------------------------------------------------


def compare_loss(tokenizer: Path, codes: Path, seconds: float, slices: int, rates: list[str], attention: str) -> None:
    each = str(seconds / slices)
    chosen: list[Contender] = []
    for rate in rates:
        chosen.append(peer(f"peer, rate {rate}", "loss", attention, str(codes), rate, each))
        chosen.append(ours(f"ours, rate {rate}", "loss", str(tokenizer), str(codes), rate, each))
    interleave(chosen, 0, slices + 1)
    if len({contender.about["task"] for contender in chosen}) > 1:
        raise SystemExit("the workers did not get the same codes, texts and masks")
    out = RESULTS / "muse-loss.json"
    record(chosen, out)
    print(curves(chosen))
    print(outcome(chosen))
    print(f"raw results: {out}\n")


def curves(contenders: list[Contender]) -> str:
    """Table of loss with text over CPU seconds, with one column per contender."""
    names = [contender.name for contender in contenders]
    lines = [f"| CPU s | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for row in zip(*(contender.costs for contender in contenders), strict=True):
        losses = " | ".join(f"{cost['loss']:.3f} (step {cost['steps']:.0f})" for cost in row)
        lines.append(f"| {row[0]['trained']:.0f} | {losses} |")
    return "\n".join(lines) + "\n"


def outcome(contenders: list[Contender]) -> str:
    """Table of the final metrics, and the time at which each reached the best loss of the peer."""
    best = min(cost["loss"] for contender in contenders if _is_peer(contender) for cost in contender.costs)
    lines = [
        "| contender | parameters | steps | loss | loss of averaged weights | loss without text | "
        f"CPU s to the peer's best, {best:.3f} |",
        "|---|---|---|---|---|---|---|",
    ]
    for contender in contenders:
        last = contender.costs[-1]
        shown = [_formatted(last, name) for name in ("loss", "averaged loss", "loss without text")]
        parameters = sum(contender.about["parameters"].values()) / 1e6
        reached = [cost["trained"] for cost in contender.costs if cost["loss"] <= best]
        when = f"{reached[0]:.0f}" if reached else "not reached"
        lines.append(f"| {contender.name} | {parameters:.2f} M | {last['steps']:.0f} | {' | '.join(shown)} | {when} |")
    return "\n".join(lines) + "\n"


def _is_peer(contender: Contender) -> bool:
    return contender.name.startswith("peer")


def _formatted(metrics: dict[str, float], name: str) -> str:
    return f"{metrics[name]:.3f}" if name in metrics else ""


def encode(tokenizer: Path, data: Path, codes: Path) -> None:
    """Run `quintet encode`, and write the texts and the split in the order of the codes."""
    if not tokenizer.is_dir() or not data.is_dir():
        raise SystemExit(
            "`loss` needs --tokenizer RUN and --data FOLDER of synthetic shapes; `make results` creates both"
        )
    command = [sys.executable, "-m", "quintet", "encode", str(tokenizer), str(data), "--out", str(codes)]
    subprocess.run(command, check=True)
    known = {row["file_name"]: row for row in _lines(data / "metadata.jsonl")}
    encoded = sorted((item for item in _lines(codes / "items.jsonl") if "row" in item), key=lambda item: item["row"])
    texts = [{"text": known[item["file"]]["text"], "split": known[item["file"]]["split"]} for item in encoded]
    (codes / "texts.json").write_text(json.dumps(texts), encoding="utf-8")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["step", "sample"], help="step, sample, loss")
    parser.add_argument("--precision", choices=list(ROUNDS), default="fp32", help="precision of step and sample")
    parser.add_argument("--rounds", type=int, help="number of rounds of step and sample")
    parser.add_argument("--warmup", type=int, default=2, help="number of warm-up rounds, which are not counted")
    full = HERE.parent / "runs" / "full"
    parser.add_argument("--tokenizer", type=Path, default=full / "tokenizer", help="loss: trained tokenizer")
    parser.add_argument("--data", type=Path, default=full / "data", help="loss: synthetic shapes to encode")
    parser.add_argument("--seconds", type=float, default=240, help="loss: CPU seconds of each training")
    parser.add_argument("--slices", type=int, default=6, help="loss: number of measurements during training")
    parser.add_argument("--rates", nargs="+", default=["3e-4", "1e-3"], help="loss: learning rates for both sides")
    parser.add_argument("--attention", choices=["flash", "plain"], default="plain", help="loss: attention of the peer")
    arguments = parser.parse_args()
    for what in arguments.what:
        if what == "loss":
            with tempfile.TemporaryDirectory() as folder:
                codes = Path(folder) / "codes"
                encode(arguments.tokenizer, arguments.data, codes)
                compare_loss(
                    arguments.tokenizer,
                    codes,
                    arguments.seconds,
                    arguments.slices,
                    arguments.rates,
                    arguments.attention,
                )
        elif what in UNITS:
            compare_speed(what, arguments.precision, arguments.rounds, arguments.warmup)
        else:
            parser.error(f"'{what}' is not one of step, sample, loss")


if __name__ == "__main__":
    main()
