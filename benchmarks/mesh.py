"""Compares mesh models with meshgpt-pytorch 1.8.1: `make bench-mesh`. One thread, CPU seconds, no text conditioning.

`step`: a training step of the autoencoder, 4 closed meshes of 128 faces, 2 quantizers of 1024 codes. Ours gets the
edges between faces from its loader; the peer runs with and without edges, and ours is compared with the faster one.

`transformer`: a training step of 2 x 384 tokens of 1024 codes: dim 256, 6 layers over faces and 2 within a face, heads
8 x 32. The peer has 2 additional gate loops before each of its stages, which ours does not have.

`generate`: 384 tokens per row, greedy, with KV caches, batches of 1 and 4. A second row of ours has one more layer for
each gate loop of the peer.

`loss`: both train for the same CPU seconds, with the same optimizer, on the same batches of codes; the cross-entropy of
held-out meshes is measured during training.

`adjacency`: edges and features of a mesh of 5000 faces.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

import mesh_task as task
from quintet.synthetic.solids import make_solids
from side_by_side import HERE, Contender, interleave, mean_cpu, mesh_peer, record, table

RESULTS = HERE / "results"
ROUNDS = {"fp32": 12, "bf16": 2}
"""A processor without bf16 instructions takes about twenty times as long."""
BATCHES = ("1", "4")
TOKENIZER_KEYS = (f"model.codebook_size={task.CODES}", "train.steps=1200", "eval.every=1200", "sample.every=1200")
SOLIDS = 3000


def ours(name: str, *arguments: str) -> Contender:
    return Contender(name, sys.executable, "mesh_ours.py", arguments)


def peer(name: str, *arguments: str) -> Contender:
    return Contender(name, mesh_peer(), "peers/mesh_peer.py", arguments)


# --- steps --------------------------------------------------------------------------------------------------------


def compare_autoencoders(precision: str, rounds: int | None, warmup: int) -> None:
    theirs = [
        peer(f"peer, edges {edges}, {precision}", "autoencoder", edges, precision) for edges in ("given", "derived")
    ]
    own = [ours(f"ours, {precision}", "autoencoder", precision)]
    compare(theirs, own, f"mesh-autoencoder-{precision}", "step", rounds or ROUNDS[precision], warmup)


def compare_transformers(precision: str, rounds: int | None, warmup: int) -> None:
    theirs, own = (
        [peer(f"peer, {precision}", "transformer", precision)],
        [ours(f"ours, {precision}", "transformer", precision)],
    )
    compare(theirs, own, f"mesh-transformer-{precision}", "step", rounds or ROUNDS[precision], warmup)


def compare_adjacency(rounds: int | None) -> None:
    compare([peer("peer", "adjacency")], [ours("ours", "adjacency")], "mesh-adjacency", "mesh", rounds or 4, 1)


def compare(theirs: list[Contender], own: list[Contender], name: str, unit: str, rounds: int, warmup: int) -> None:
    chosen = [*theirs, *own]
    interleave(chosen, warmup, rounds)
    record(chosen, RESULTS / f"{name}.json")
    faster = min(theirs, key=mean_cpu)
    print(table(chosen, {contender.name: faster.name for contender in own}, unit))
    print(f"raw results: {RESULTS / name}.json\n")


# --- generation ---------------------------------------------------------------------------------------------------


def compare_generation(rounds: int | None, warmup: int) -> None:
    for batch in BATCHES:
        layers = (str(task.DEPTH), str(task.FINE_DEPTH))
        more = (str(task.DEPTH + task.GATE_LOOPS), str(task.FINE_DEPTH + task.GATE_LOOPS))
        theirs = peer(f"peer, batch {batch}", "generate", batch)
        chosen = [
            theirs,
            ours(f"ours, batch {batch}", "generate", batch, *layers),
            ours(f"ours, a layer for each gate loop, batch {batch}", "generate", batch, *more),
        ]
        interleave(chosen, warmup, rounds or 6)
        out = RESULTS / f"mesh-generate-{batch}.json"
        record(chosen, out)
        print(speeds(chosen, theirs))
        print(f"raw results: {out}\n")


def speeds(contenders: list[Contender], other: Contender) -> str:
    """Tokens per CPU second, as the median of all rounds, because single rounds may be disturbed."""
    lines = [
        "| contender | parameters | layers | tokens per CPU s (min-max) | ratio to peer |",
        "|---|---|---|---|---|",
    ]
    for contender in contenders:
        rates = _rates(contender)
        ratio = statistics.median(rates) / statistics.median(_rates(other))
        lines.append(
            f"| {contender.name} | {_millions(contender)} | {contender.about['layers']} | "
            f"{statistics.median(rates):.0f} ({min(rates):.0f}-{max(rates):.0f}) | {ratio:.2f} |"
        )
    return "\n".join(lines)


def _rates(contender: Contender) -> list[float]:
    return [cost["tokens"] / cost["cpu"] for cost in contender.costs]


def _millions(contender: Contender) -> str:
    return f"{sum(contender.about['parameters'].values()) / 1e6:.2f} M"


# --- loss after equal time ----------------------------------------------------------------------------------------


def compare_loss(home: Path, seconds: float, slices: int, rates: list[str]) -> None:
    codes, each = str(prepared(home)), str(seconds / slices)
    chosen: list[Contender] = []
    for rate in rates:
        chosen.append(peer(f"peer, rate {rate}", "loss", codes, rate, each))
        chosen.append(ours(f"ours, rate {rate}", "loss", codes, rate, each))
    interleave(chosen, 0, slices + 1)
    if len({contender.about["task"] for contender in chosen}) > 1:
        raise SystemExit("the workers did not get the same codes")
    out = RESULTS / "mesh-loss.json"
    record(chosen, out)
    print(curves(chosen))
    print(f"raw results: {out}\n")


def curves(contenders: list[Contender]) -> str:
    """Table of loss over CPU seconds, with one column per contender."""
    names = [f"{contender.name} ({_millions(contender)})" for contender in contenders]
    lines = [f"| CPU s | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for row in zip(*(contender.costs for contender in contenders), strict=True):
        losses = " | ".join(f"{cost['loss']:.3f} (step {cost['steps']:.0f})" for cost in row)
        lines.append(f"| {row[0]['trained']:.0f} | {losses} |")
    return "\n".join(lines)


def prepared(home: Path) -> Path:
    """File with codes of synthetic solids for both sides; creates the data, tokenizer and codes if missing."""
    data, tokenizer, codes = home / "solids", home / "tokenizer", home / "codes"
    if not data.is_dir():
        make_solids(data, SOLIDS)
    if not tokenizer.is_dir():
        quintet("train", "mesh-autoencoder", str(data), *TOKENIZER_KEYS, "--preset", "small", "--out", str(tokenizer))
    if not codes.is_dir():
        quintet("encode", str(tokenizer), str(data), "--out", str(codes))
    known = {row["file_name"]: row["split"] for row in _lines(data / "metadata.jsonl")}
    splits = {item["row"]: known[item["file"]] for item in _lines(codes / "items.jsonl") if "row" in item}
    rows = load_file(codes / "codes.safetensors")["codes"]
    short = task.lengths_of(rows) <= task.ROW_FACES
    train, held_out = (
        [number for number in sorted(splits) if short[number] and splits[number] == split]
        for split in ("train", "validation")
    )
    truncated: Tensor = rows[:, : task.ROW_FACES].contiguous()
    file = home / "task.safetensors"
    save_file({"train": truncated[train], "held_out": truncated[held_out[: task.HELD_OUT]]}, file)
    return file


def quintet(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "quintet", *arguments], check=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


WORKS = ("step", "transformer", "generate", "loss", "adjacency")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(WORKS), help=", ".join(WORKS))
    parser.add_argument("--precision", choices=list(ROUNDS), default="fp32", help="precision of step and transformer")
    parser.add_argument("--rounds", type=int, help="number of rounds, except for loss")
    parser.add_argument("--warmup", type=int, default=2, help="number of warm-up rounds, which are not counted")
    home = HERE.parent / "runs" / "bench-mesh"
    parser.add_argument("--home", type=Path, default=home, help="loss: folder of data, tokenizer and codes")
    parser.add_argument("--seconds", type=float, default=240, help="loss: CPU seconds of each training")
    parser.add_argument("--slices", type=int, default=6, help="loss: number of measurements during training")
    parser.add_argument("--rates", nargs="+", default=["3e-4", "1e-3"], help="loss: learning rates for both sides")
    arguments = parser.parse_args()
    for what in arguments.what:
        if what == "step":
            compare_autoencoders(arguments.precision, arguments.rounds, arguments.warmup)
        elif what == "transformer":
            compare_transformers(arguments.precision, arguments.rounds, arguments.warmup)
        elif what == "generate":
            compare_generation(arguments.rounds, arguments.warmup)
        elif what == "loss":
            compare_loss(arguments.home, arguments.seconds, arguments.slices, arguments.rates)
        elif what == "adjacency":
            compare_adjacency(arguments.rounds)
        else:
            parser.error(f"'{what}' is not one of {', '.join(WORKS)}")


if __name__ == "__main__":
    main()
