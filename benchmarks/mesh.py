"""Compares mesh models with meshgpt-pytorch 1.8.1: `make bench-mesh`. One thread, CPU seconds, no text conditioning.

`step`: a training step of the autoencoder, 4 closed meshes of 128 faces, 2 quantizers of 1024 codes. Ours gets the
edges between faces from its loader; the peer runs with and without edges, and ours is compared with the faster one.

`transformer`: a training step of 2 x 384 tokens of 1024 codes: dim 256, 6 layers over faces and 2 within a face, heads
8 x 32. The peer has 2 additional gate loops before each of its stages, which ours does not have.

`generate`: 384 tokens per row, greedy, with KV caches, batches of 1 and 4. A second row of ours has one more layer for
each gate loop of the peer.

`loss`: both train for the same CPU seconds, with the same optimizer, on the same batches of codes; the cross-entropy of
held-out meshes is measured during training. The better of the peer's learning rates counts. A second row of ours has
all settings of the preset `small` but the text, which the peer does not get either: its sizes, batch, optimizer and
precision, and face counts, which are not shown in the measurement. The learning rate does not decay.

`adjacency`: edges and features of a mesh of 5000 faces.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

import equal_time
import loss_task
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


def compare_loss(home: Path, plan: equal_time.Plan) -> None:
    codes, tokenizer = str(prepared(home)), str(home / "tokenizer")
    chosen = equal_time.contenders(
        plan,
        lambda name, rate, each: peer(name, "loss", codes, rate, each),
        lambda name, settings, each: ours(name, "loss", tokenizer, codes, settings, each),
    )
    equal_time.compare("mesh", chosen, plan.slices, {"loss of averaged weights": equal_time.shown("averaged loss")})


def prepared(home: Path) -> Path:
    """File with codes of synthetic solids for both sides; creates the data, tokenizer and codes if missing."""
    data, tokenizer, codes = home / "solids", home / "tokenizer", home / "codes"
    if not data.is_dir():
        make_solids(data, SOLIDS)
    if not tokenizer.is_dir():
        small = ("--preset", "small", "--out", str(tokenizer))
        equal_time.quintet("train", "mesh-autoencoder", str(data), *TOKENIZER_KEYS, *small)
    if not codes.is_dir():
        equal_time.quintet("encode", str(tokenizer), str(data), "--out", str(codes))
    equal_time.write_texts(data, codes)
    rows, items = loss_task.read_rows(codes)
    short = task.lengths_of(rows) <= task.ROW_FACES
    train, held_out = (
        [number for number, item in enumerate(items) if short[number] and item["split"] == split]
        for split in ("train", "validation")
    )
    truncated: Tensor = rows[:, : task.ROW_FACES].contiguous()
    file = home / "task.safetensors"
    save_file({"train": truncated[train], "held_out": truncated[held_out[: task.HELD_OUT]]}, file)
    return file


WORKS = ("step", "transformer", "generate", "loss", "adjacency")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(WORKS), help=", ".join(WORKS))
    parser.add_argument("--precision", choices=list(ROUNDS), default="fp32", help="precision of step and transformer")
    parser.add_argument("--rounds", type=int, help="number of rounds, except for loss")
    parser.add_argument("--warmup", type=int, default=2, help="number of warm-up rounds, which are not counted")
    home = HERE.parent / "runs" / "bench-mesh"
    parser.add_argument("--home", type=Path, default=home, help="loss: folder of data, tokenizer and codes")
    equal_time.add_arguments(parser)
    arguments = parser.parse_args()
    for what in arguments.what:
        if what == "step":
            compare_autoencoders(arguments.precision, arguments.rounds, arguments.warmup)
        elif what == "transformer":
            compare_transformers(arguments.precision, arguments.rounds, arguments.warmup)
        elif what == "generate":
            compare_generation(arguments.rounds, arguments.warmup)
        elif what == "loss":
            compare_loss(arguments.home, equal_time.Plan.of(arguments))
        elif what == "adjacency":
            compare_adjacency(arguments.rounds)
        else:
            parser.error(f"'{what}' is not one of {', '.join(WORKS)}")


if __name__ == "__main__":
    main()
