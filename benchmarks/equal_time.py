"""Compares the loss on held-out items after equal CPU time: contenders, codes for all of them, and tables.

All contenders train in slices of CPU seconds, interleaved, and measure the loss after each slice, which is not timed.
The peer's best loss, at any of its learning rates, is the loss that the others have to reach. The time in which they do
is that of the first measurement at or below it, so it is at most one slice too long.

With `--defaults-only`, ours appears with its default settings alone, and for a quarter of the CPU seconds of the peer,
which is twice the target.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import HERE, Contender, interleave

PRESET = "small"
"""Preset of the recipe in the row of default settings."""
TARGET = 1 / 8
"""Fraction of the peer's CPU time in which ours should reach the peer's best loss."""

SHORTER = 4
"""With `--defaults-only`, the peer's CPU seconds divided by those of ours."""

Metrics = Mapping[str, float]
Show = Callable[[Metrics], str]


def shown(name: str, form: str = ".3f") -> Show:
    """Column of one metric, empty for contenders without it."""
    return lambda metrics: format(metrics[name], form) if name in metrics else ""


LOSS = shown("loss")


@dataclass(frozen=True)
class Plan:
    """Which contenders train for how long."""

    seconds: float
    """CPU seconds of each training of the peer."""
    slices: int
    rates: tuple[str, ...]
    """Learning rates at the peer's sizes."""
    defaults_only: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Plan:
        return cls(arguments.seconds, arguments.slices, tuple(arguments.rates), arguments.defaults_only)

    @property
    def slice(self) -> str:
        """CPU seconds of a slice."""
        return str(self.seconds / self.slices)

    @property
    def preset_slice(self) -> str:
        """CPU seconds of a slice of the row of default settings."""
        return str(self.seconds / self.slices / (SHORTER if self.defaults_only else 1))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=240, help="loss: CPU seconds of each training")
    parser.add_argument("--slices", type=int, default=24, help="loss: number of measurements during training")
    parser.add_argument("--rates", nargs="+", default=["3e-4", "1e-3"], help="loss: learning rates at the peer's sizes")
    only = f"loss: ours with default settings alone, for 1/{SHORTER} of the CPU seconds"
    parser.add_argument("--defaults-only", action="store_true", help=only)


def add_code_arguments(parser: argparse.ArgumentParser, home: Path, tokenizer: str, kind: str) -> None:
    """Options of the codes; `home` is the folder of the defaults, `tokenizer` the recipe and `kind` the data set."""
    parser.add_argument("--tokenizer", type=Path, default=home / "tokenizer", help=f"loss: trained {tokenizer} run")
    parser.add_argument("--data", type=Path, default=home / "data", help=f"loss: synthetic {kind} to encode")


def contenders(
    plan: Plan, peer: Callable[[str, str, str], Contender], ours: Callable[[str, str, str], Contender]
) -> list[Contender]:
    """Both sides at the peer's sizes for every learning rate, and ours with the preset.

    `peer` and `ours` take a name, a setting and the CPU seconds of a slice."""
    chosen: list[Contender] = []
    for rate in plan.rates:
        chosen.append(peer(f"peer, rate {rate}", rate, plan.slice))
        if not plan.defaults_only:
            chosen.append(ours(f"ours, rate {rate}", rate, plan.slice))
    return [*chosen, preset_row(plan, ours)]


def preset_row(plan: Plan, ours: Callable[[str, str, str], Contender]) -> Contender:
    return ours(f"ours, default settings, preset {PRESET}", PRESET, plan.preset_slice)


def compare_on_codes(
    name: str,
    peer: Callable[..., Contender],
    ours: Callable[..., Contender],
    arguments: argparse.Namespace,
    columns: Mapping[str, Show],
) -> None:
    """Encode the data, and compare both sides on the codes; both take the name, `loss` and the worker's arguments."""
    plan = Plan.of(arguments)
    with tempfile.TemporaryDirectory() as folder:
        codes = str(Path(folder) / "codes")
        encode(arguments.tokenizer, arguments.data, Path(codes))
        chosen = contenders(
            plan,
            lambda row, rate, each: peer(row, "loss", codes, rate, each),
            lambda row, settings, each: ours(row, "loss", str(arguments.tokenizer), codes, settings, each),
        )
        compare(name, chosen, plan.slices, {"loss of averaged weights": shown("averaged loss"), **columns})


def compare(
    name: str,
    chosen: list[Contender],
    slices: int,
    columns: Mapping[str, Show] | None = None,
    show: Show = LOSS,
) -> None:
    """Train and measure all contenders, and print their curves and the outcome with these additional columns."""
    out = HERE / "results" / f"{name}-loss.json"
    interleave(chosen, 0, slices + 1, out)
    if len({contender.about["task"] for contender in chosen}) > 1:
        raise SystemExit("the workers did not get the same items, texts and masks")
    print(curves(chosen, show))
    print(outcome(chosen, columns or {}))
    print(f"raw results: {out}\n")


def curves(chosen: list[Contender], show: Show) -> str:
    """Table of the loss over CPU seconds, with one column per contender.

    The seconds are those of the first one; another one that trains for shorter has its own in brackets."""
    names = [contender.name for contender in chosen]
    lines = [f"| CPU s | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for row in zip(*(contender.costs for contender in chosen), strict=True):
        own = [f", {cost['trained']:.0f} s" if plainly_shorter(cost, row[0]) else "" for cost in row]
        cells = " | ".join(
            f"{show(cost)} (step {cost['steps']:.0f}{seconds})" for cost, seconds in zip(row, own, strict=True)
        )
        lines.append(f"| {row[0]['trained']:.0f} | {cells} |")
    return "\n".join(lines) + "\n"


def plainly_shorter(cost: Metrics, first: Metrics) -> bool:
    """Whether a slice ended long before that of the first contender, and not by the length of a step."""
    return cost["trained"] < 0.5 * first["trained"]


def outcome(chosen: list[Contender], columns: Mapping[str, Show]) -> str:
    """Table of the final metrics, and the CPU time in which each reached the best loss of the peer."""
    best, peer_seconds = best_of_peer(chosen)
    more = "".join(f" {title} |" for title in columns)
    head = (
        f"| contender | parameters | steps | loss |{more} CPU s to the peer's best loss, {best:.3f} | "
        f"fraction of the peer's CPU time (target {TARGET:g}) | peak MB |"
    )
    lines = [head, "|---" * (7 + len(columns)) + "|"]
    for contender in chosen:
        last = contender.costs[-1]
        parameters = sum(contender.about["parameters"].values()) / 1e6
        reached = seconds_to(contender, best)
        cells = [
            contender.name,
            f"{parameters:.2f} M",
            f"{last['steps']:.0f}",
            f"{last['loss']:.3f}",
            *(show(last) for show in columns.values()),
            "not reached" if reached is None else f"{reached:.0f}",
            "" if is_peer(contender) else fraction(reached, peer_seconds),
            f"{max(cost['peak_megabytes'] for cost in contender.costs):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def best_of_peer(chosen: list[Contender]) -> tuple[float, float]:
    """The lowest loss of the peer at any of its learning rates, and the CPU seconds after which it was measured."""
    costs = [cost for contender in chosen if is_peer(contender) for cost in contender.costs]
    return min((cost["loss"], cost["trained"]) for cost in costs)


def seconds_to(contender: Contender, loss: float) -> float | None:
    """CPU seconds until the first measurement of this loss or a lower one; None if there is none."""
    return next((cost["trained"] for cost in contender.costs if cost["loss"] <= loss), None)


def fraction(seconds: float | None, peer_seconds: float) -> str:
    """Cell of the fraction of the peer's CPU time, marked if the target is missed."""
    if seconds is None:
        return "not reached"
    if not (seconds and peer_seconds):
        return "not comparable: reached untrained"
    value = seconds / peer_seconds
    return f"{value:.3f}" if value <= TARGET else f"{value:.3f}, **missed**"


def is_peer(contender: Contender) -> bool:
    return contender.name.startswith("peer")


# --- codes for all contenders ---------------------------------------------------------------------------------------


def encode(tokenizer: Path, data: Path, codes: Path) -> None:
    """Run `quintet encode`, and write the texts."""
    for option, folder in (("--tokenizer", tokenizer), ("--data", data)):
        if not folder.is_dir():
            raise SystemExit(f"`loss` needs {option}: there is no folder {folder}; the Makefile shows how to create it")
    quintet("encode", str(tokenizer), str(data), "--out", str(codes))
    write_texts(data, codes)


def write_texts(data: Path, codes: Path) -> None:
    """Write the texts and the splits of a synthetic data set in the order of its codes."""
    known = {row["file_name"]: row for row in read_lines(data / "metadata.jsonl")}
    items = (item for item in read_lines(codes / "items.jsonl") if "row" in item)
    encoded = [known[item["file"]] for item in sorted(items, key=lambda item: item["row"])]
    texts = [{"text": row["text"], "split": row["split"]} for row in encoded]
    (codes / "texts.json").write_text(json.dumps(texts), encoding="utf-8")


def quintet(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "quintet", *arguments], check=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
