"""Compares MuLaN with musiclm-pytorch 0.2.8: `make bench-mulan`. One thread, CPU seconds.

`step`: a training step, batch 8 of 2 s at 16 kHz and of 32 text symbols: encoders of dim 256, depth 4, heads 4 x 64; 96
patches of 16 x 16, of which 72 remain; SpecAugment, decoupled loss, gradients clipped to 0.5, Adam. The peer runs with
the 49,408 symbols of its tokenizer, all of which its optimizer updates in every step, and with as few symbols as ours
has bytes. Other differences: ours computes log-mel spectrograms with windows of 1024 samples, the peer power
spectrograms with windows of 256; ours masks padding, samples its masks for each clip, and averages over the text, where
the peer has a token for it; ours has rotary positions, the peer a small network over all pairs of patches.

`loss`: both train for the same CPU seconds on the same windows of synthetic clips in the same batches of 16, with the
same learning rate and warm-up. On the same held-out clips with distinct captions, a softmax loss at the best
temperature and the retrieval accuracy are measured during training. The peer reads words; ours reads the same words,
and bytes, of which there are five times as many. Neither side drops words from its training captions. The peer runs
unchanged, and with a logarithm after its power spectrogram; the best of its rows counts. One more row of ours has all
settings of the preset `small` (sizes, batch, learning rate, bytes, word dropout) but its windows of 4 s.
The learning rate does not decay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import equal_time
import mulan_task as task
from quintet.media.audio import read_audio
from quintet.synthetic.sounds import make_sounds
from side_by_side import HERE, Contender, audio_peer, interleave, record

RESULTS = HERE / "results"
ROUNDS = {"fp32": 12, "bf16": 1}
"""A processor without bf16 instructions takes about twenty times as long."""
TARGETS = {"fp32": 0.6, "bf16": 0.45}
SYMBOLS = ("words", "bytes")
CLIPS = 3000
MAX_SAMPLES = 4 * task.RATE


def ours(name: str, *arguments: str) -> Contender:
    return Contender(name, sys.executable, "mulan_ours.py", arguments)


def peer(name: str, *arguments: str) -> Contender:
    return Contender(name, audio_peer(), "peers/mulan_peer.py", arguments)


# --- a step -------------------------------------------------------------------------------------------------------


def compare_steps(precision: str, rounds: int | None, warmup: int) -> None:
    chosen = [
        peer(f"peer, {precision}", "step", "own", precision),
        peer(f"peer, few symbols, {precision}", "step", "small", precision),
        ours(f"ours, {precision}", "step", precision),
    ]
    interleave(chosen, warmup, rounds or ROUNDS[precision])
    out = RESULTS / f"mulan-step-{precision}.json"
    record(chosen, out)
    print(costs(chosen, TARGETS[precision]))
    print(f"raw results: {out}\n")


def costs(contenders: list[Contender], target: float) -> str:
    """Table of the medians of all rounds, and the ratio of ours, the last contender, to each."""
    own = contenders[-1]
    lines = [
        "| contender | trunk | token embedding | others | CPU s per step (min-max) | "
        f"ratio of ours (target {target}) | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for contender in contenders:
        spent = [cost["cpu"] for cost in contender.costs]
        sizes = " | ".join(f"{count / 1e6:.2f} M" for count in contender.about["parameters"].values())
        ratio = "" if contender is own else f"{_median(own) / _median(contender):.2f}"
        lines.append(
            f"| {contender.name} | {sizes} | {_median(contender):.3f} ({min(spent):.3f}-{max(spent):.3f}) | {ratio} | "
            f"{max(cost['peak_megabytes'] for cost in contender.costs):.0f} |"
        )
    trunks = [contender.about["parameters"]["trunk"] for contender in contenders]
    return "\n".join([*lines, f"trunk parameters of ours divided by the peer's: {trunks[-1] / trunks[0]:.3f}"])


def _median(contender: Contender) -> float:
    return statistics.median(cost["cpu"] for cost in contender.costs)


# --- loss after equal time ----------------------------------------------------------------------------------------


def compare_loss(home: Path, plan: equal_time.Plan, fronts: list[str]) -> None:
    folder = str(prepared(home))
    chosen: list[Contender] = []
    for rate in plan.rates:
        for front in fronts:
            name = "peer" if front == "own" else "peer with a logarithm"
            chosen.append(peer(f"{name}, rate {rate}", "loss", front, folder, rate, plan.slice))
        for symbols in () if plan.defaults_only else SYMBOLS:
            chosen.append(ours(f"ours, {symbols}, rate {rate}", "loss", symbols, folder, rate, plan.slice))
    preset = equal_time.preset_row(plan, lambda name, preset, each: ours(name, "loss", "bytes", folder, preset, each))
    chosen.append(preset)
    columns = {"loss at its own temperature": equal_time.shown("loss at its own scale")}
    columns |= {f"R@{count}": equal_time.shown(f"R@{count}", ".1%") for count in task.FOUND_AMONG}
    columns |= {f"median rank of {task.HELD_OUT}": equal_time.shown("median rank", ".0f")}
    equal_time.compare("mulan", chosen, plan.slices, columns, loss_and_recall)
    print(f"loss at chance level: {task.chance():.3f}")


def loss_and_recall(metrics: equal_time.Metrics) -> str:
    return f"{metrics['loss']:.3f}, {metrics['R@1']:.1%}"


def prepared(home: Path) -> Path:
    """File with synthetic clips for both sides, created if missing; the held-out clips have distinct captions."""
    data, folder = home / "sounds", home / "task"
    if not data.is_dir():
        make_sounds(data, CLIPS)
    if folder.is_dir():
        return folder
    rows = equal_time.read_lines(data / "metadata.jsonl")
    train = [row for row in rows if row["split"] == "train"]
    distinct = list({row["text"]: row for row in reversed(rows) if row["split"] == "validation"}.values())[::-1]
    if len(distinct) < task.HELD_OUT:
        raise SystemExit(f"{data} has only {len(distinct)} held-out captions; {task.HELD_OUT} are needed")
    parts = {"train": train, "held_out": distinct[: task.HELD_OUT]}
    tensors: dict[str, Tensor] = {}
    for name, chosen in parts.items():
        tensors |= {f"{name}.{field}": tensor for field, tensor in _read(data, chosen).items()}
    folder.mkdir(parents=True)
    save_file(tensors, folder / "sounds.safetensors")
    captions = {name: [row["text"] for row in chosen] for name, chosen in parts.items()}
    (folder / "texts.json").write_text(json.dumps(captions), encoding="utf-8")
    return folder


def _read(data: Path, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    waves = torch.zeros(len(rows), MAX_SAMPLES, dtype=torch.int16)
    lengths = torch.zeros(len(rows), dtype=torch.int64)
    for number, row in enumerate(rows):
        samples = torch.from_numpy(read_audio(data / row["file_name"], rate=task.RATE))[0, :MAX_SAMPLES]
        waves[number, : len(samples)] = (samples * 2**15).round().clamp(-(2**15), 2**15 - 1).to(torch.int16)
        lengths[number] = len(samples)
    return {"waves": waves, "lengths": lengths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["step"], help="step, loss")
    parser.add_argument("--precision", choices=list(ROUNDS), default="fp32", help="precision of step")
    parser.add_argument("--rounds", type=int, help="step: number of rounds")
    parser.add_argument("--warmup", type=int, default=2, help="step: number of warm-up rounds, which are not counted")
    home = HERE.parent / "runs" / "bench-mulan"
    parser.add_argument("--home", type=Path, default=home, help="loss: folder of the clips")
    equal_time.add_arguments(parser)
    parser.add_argument(
        "--fronts", nargs="+", choices=["own", "log"], default=["own", "log"], help="loss: spectrogram of the peer"
    )
    arguments = parser.parse_args()
    for what in arguments.what:
        if what == "step":
            compare_steps(arguments.precision, arguments.rounds, arguments.warmup)
        elif what == "loss":
            compare_loss(arguments.home, equal_time.Plan.of(arguments), arguments.fronts)
        else:
            parser.error(f"'{what}' is not one of step, loss")


if __name__ == "__main__":
    main()
