"""Sound and text in one space, ours beside musiclm-pytorch 0.2.8's MuLaN: `make bench-mulan`. One thread, CPU seconds.

`step`: a training step, batch 8 of 2 s at 16 kHz and of 32 text symbols: towers of dim 256, depth 4, heads 4 x 64; 96
patches of 16 x 16, of which 72 are left; SpecAugment, decoupled loss, gradients clipped to 0.5, Adam. The peer runs
with its tokenizer's 49,408 symbols, a table that its optimizer walks through in every step, and with as few symbols as
ours has bytes. What else differs: ours makes log-mel spectrograms of windows of 1024 samples, the peer powers of 256;
ours masks what is no sound, draws its masks for each clip, and averages over the text, where the peer has a token for
it; ours knows distances by rotary positions, the peer by a small network over all pairs of patches.

`loss`: both train for the same CPU seconds on the same windows of drawn sounds in the same batches of 16, with the same
rate and warm-up. On the same held-out clips, all with captions of their own, a softmax loss is measured on the way, at
the temperature that suits the embeddings best, and how many captions find their clip. The peer reads words; ours reads
the same words, and bytes, of which there are five times as many. No side leaves words out of its training captions. The
peer runs as it is, and with the logarithm of its powers, which is not its own.
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

import mulan_task as task
from quintet.media.audio import read_audio
from quintet.synthetic.sounds import make_sounds
from side_by_side import HERE, Contender, audio_peer, interleave, record

RESULTS = HERE / "results"
ROUNDS = {"fp32": 12, "bf16": 1}
"""A processor without bf16 instructions takes some twenty times as long over it."""
BARS = {"fp32": 0.6, "bf16": 0.45}
READS = ("words", "bytes")
SOUNDS = 3000
LONGEST = 4 * task.RATE


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
    print(costs(chosen, BARS[precision]))
    print(f"raw figures: {out}\n")


def costs(contenders: list[Contender], bar: float) -> str:
    """The median of all rounds, and the share that ours, the last, has of each."""
    own = contenders[-1]
    lines = [
        "| contender | trunk | token embedding | others | CPU s per step (min-max) | "
        f"ours of it (bar {bar}) | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for contender in contenders:
        spent = [cost["cpu"] for cost in contender.costs]
        sizes = " | ".join(f"{count / 1e6:.2f} M" for count in contender.about["parameters"].values())
        share = "" if contender is own else f"{_median(own) / _median(contender):.2f}"
        lines.append(
            f"| {contender.name} | {sizes} | {_median(contender):.3f} ({min(spent):.3f}-{max(spent):.3f}) | {share} | "
            f"{max(cost['peak_megabytes'] for cost in contender.costs):.0f} |"
        )
    trunks = [contender.about["parameters"]["trunk"] for contender in contenders]
    return "\n".join([*lines, f"trunk of ours over the peer's: {trunks[-1] / trunks[0]:.3f}"])


def _median(contender: Contender) -> float:
    return statistics.median(cost["cpu"] for cost in contender.costs)


# --- loss after equal time ----------------------------------------------------------------------------------------


def compare_loss(home: Path, seconds: float, slices: int, rates: list[str], fronts: list[str]) -> None:
    folder, each = str(prepared(home)), str(seconds / slices)
    chosen: list[Contender] = []
    for rate in rates:
        for front in fronts:
            name = "peer" if front == "own" else "peer with a logarithm"
            chosen.append(peer(f"{name}, rate {rate}", "loss", front, folder, rate, each))
        for reads in READS:
            chosen.append(ours(f"ours, {reads}, rate {rate}", "loss", reads, folder, rate, each))
    out = RESULTS / "mulan-loss.json"
    interleave(chosen, 0, slices + 1, out)
    if len({contender.about["task"] for contender in chosen}) > 1:
        raise SystemExit("the workers were not given the same sounds and captions")
    print(curves(chosen))
    print(outcome(chosen))
    print(f"raw figures: {out}\n")


def curves(contenders: list[Contender]) -> str:
    """Loss and captions that find their clip at once, against CPU seconds, a column each."""
    names = [contender.name for contender in contenders]
    lines = [f"| CPU s | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for row in zip(*(contender.costs for contender in contenders), strict=True):
        shown = " | ".join(f"{cost['loss']:.3f}, {cost['R@1']:.1%} (step {cost['steps']:.0f})" for cost in row)
        lines.append(f"| {row[0]['trained']:.0f} | {shown} |")
    return "\n".join(lines) + "\n"


def outcome(contenders: list[Contender]) -> str:
    """Where each ended; by chance the loss is the logarithm of the number of clips."""
    found = [f"R@{count}" for count in task.FOUND_AMONG]
    lines = [
        f"| contender | parameters | steps | loss (chance {task.chance():.3f}) | at its own temperature | "
        f"{' | '.join(found)} | median rank of {task.HELD_OUT} |",
        "|---|---|---|---|---|" + "---|" * len(found) + "---|",
    ]
    for contender in contenders:
        last = contender.costs[-1]
        parameters = sum(contender.about["parameters"].values()) / 1e6
        shares = " | ".join(f"{last[name]:.1%}" for name in found)
        lines.append(
            f"| {contender.name} | {parameters:.2f} M | {last['steps']:.0f} | {last['loss']:.3f} | "
            f"{last['loss at its own scale']:.3f} | {shares} | {last['median rank']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def prepared(home: Path) -> Path:
    """Drawn sounds, made where they are missing, in one file for both sides; held out are the first of each caption."""
    data, folder = home / "sounds", home / "task"
    if not data.is_dir():
        make_sounds(data, SOUNDS)
    if folder.is_dir():
        return folder
    rows = [json.loads(line) for line in (data / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
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
    spoken = {name: [row["text"] for row in chosen] for name, chosen in parts.items()}
    (folder / "texts.json").write_text(json.dumps(spoken), encoding="utf-8")
    return folder


def _read(data: Path, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    waves = torch.zeros(len(rows), LONGEST, dtype=torch.int16)
    lengths = torch.zeros(len(rows), dtype=torch.int64)
    for number, row in enumerate(rows):
        samples = torch.from_numpy(read_audio(data / row["file_name"], rate=task.RATE))[0, :LONGEST]
        waves[number, : len(samples)] = (samples * 2**15).round().clamp(-(2**15), 2**15 - 1).to(torch.int16)
        lengths[number] = len(samples)
    return {"waves": waves, "lengths": lengths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["step"], help="step, loss")
    parser.add_argument("--precision", choices=list(ROUNDS), default="fp32", help="of step")
    parser.add_argument("--rounds", type=int, help="of step")
    parser.add_argument("--warmup", type=int, default=2, help="step: rounds before those that count")
    home = HERE.parent / "runs" / "bench-mulan"
    parser.add_argument("--home", type=Path, default=home, help="loss: where the sounds are or go")
    parser.add_argument("--seconds", type=float, default=240, help="loss: CPU seconds of each training")
    parser.add_argument("--slices", type=int, default=6, help="loss: measurements on the way")
    parser.add_argument("--rates", nargs="+", default=["3e-4", "1e-3"], help="loss: learning rates, each for all")
    parser.add_argument("--fronts", nargs="+", choices=["own", "log"], default=["own", "log"], help="loss: the peer's")
    arguments = parser.parse_args()
    for what in arguments.what:
        if what == "step":
            compare_steps(arguments.precision, arguments.rounds, arguments.warmup)
        elif what == "loss":
            compare_loss(arguments.home, arguments.seconds, arguments.slices, arguments.rates, arguments.fronts)
        else:
            parser.error(f"'{what}' is none of step, loss")


if __name__ == "__main__":
    main()
