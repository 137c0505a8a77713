"""What needs a real GPU, in about an hour: `docs/examples/gpu_hour.sh [--preset base] [--steps 60] [--recipes NAME…]`.

Runs the tests of CUDA (`tests/gpu`), then trains every recipe for some steps on synthetic data, with the gradient
accumulation that `quintet plan` proposes for this card, and compares memory and time with the plan. With two or more
GPUs it also trains in two processes (NCCL), with DDP and with FSDP. Writes `docs/results/gpu.md`. `--device cpu
--preset debug` tries the script itself where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quintet import registry
from quintet.demos.media import DEMOS
from side_by_side import HERE, git_commit

ROOT = HERE.parent
PAGE = ROOT / "docs" / "results" / "gpu.md"
NUM_ITEMS = 256
DATA = {stage.recipe: demo.data for demo in DEMOS.values() for stage in demo.stages}
"""The synthetic data set of each recipe."""
PAIRS: tuple[tuple[str, ...], ...] = (("engine.fsdp=false",), ("engine.fsdp=true",))
"""Keys of the trainings in two processes, which only recipes that can be sharded do."""
SHARDED = ("muse", "mesh-transformer")


@dataclass(frozen=True)
class Trained:
    """A short training: the last line of a failed one, or the rates of one that ended."""

    name: str
    problem: str = ""
    steps_per_second: float = 0.0
    mfu: float | None = None
    gigabytes: float = 0.0

    def row(self) -> str:
        if self.problem:
            return f"| {self.name} | **failed**: {self.problem} | | |"
        mfu = "" if self.mfu is None else f"{self.mfu:.0%}"
        return f"| {self.name} | {self.steps_per_second:.2f} | {mfu} | {self.gigabytes:.2f} |"


def quintet(*words: object) -> list[str]:
    return [sys.executable, "-m", "quintet", *map(str, words)]


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    print("$", *command, flush=True)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_result() -> str:
    """The last line of pytest."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    print("$", *command, flush=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "\n".join([f"`{done.stdout.splitlines()[-1].strip('= ')}`", *(f"- `{line}`" for line in failed)])


def train(recipe: str, folder: Path, options: argparse.Namespace, launcher: Sequence[str], *keys: str) -> Trained:
    """A short training, with the frozen models that were trained before it."""
    name = " ".join([recipe, *keys, *(["(two processes)"] if launcher else [])])
    out = folder / name.replace(" ", "-").replace("=", "-")
    # The first training of a recipe has its name.
    frozen = [f"{key}={folder / model}" for key, model in registry.find(recipe).frozen.items()]
    words = ["train", recipe, folder / DATA[recipe], "--preset", options.preset, "--out", out, *frozen, *keys]
    words += [f"engine.device={options.device}", f"train.steps={options.steps}", "log.every=5", "eval.batches=1"]
    command = quintet(*words, *([] if launcher else [f"train.grad_accum_steps={accumulation(recipe, options)}"]))
    done = run([*launcher, *command[1:]] if launcher else command)
    if done.returncode:
        return Trained(name, (done.stderr.strip().splitlines() or ["no message"])[-1][:200])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = [row["train/rate/items_per_second"] for row in rows if "train/rate/items_per_second" in row]
    shares = [row["train/rate/mfu"] for row in rows if "train/rate/mfu" in row]
    batch = registry.read_config(out / "config.yaml").train.batch_size
    speed = statistics.median(rates[len(rates) // 3 :]) / batch
    return Trained(
        name, "", speed, statistics.median(shares) if shares else None, peak_gigabytes(done.stdout + done.stderr)
    )


def accumulation(recipe: str, options: argparse.Namespace) -> int:
    """The gradient accumulation steps that `quintet plan` proposes for this card."""
    planned = run(quintet("plan", recipe, "--preset", options.preset, "--device", options.card)).stdout
    found = [word for word in planned.split() if word.startswith("train.grad_accum_steps=")]
    return int(found[0].partition("=")[2].rstrip(":")) if found else 1


def peak_gigabytes(said: str) -> float:
    """The largest memory that the progress lines name."""
    found = [float(number) for number in re.findall(r"([0-9.]+) GB", said)]
    return max(found, default=0.0)


def make_data(folder: Path, options: argparse.Namespace) -> None:
    size = {"base": 256}.get(options.preset, 64)
    for name in sorted({DATA[recipe] for recipe in options.recipes}):
        sizes = ["--size", size] if name in ("shapes", "motions") else []
        made = run(quintet("data", "make", name, folder / name, "--num", NUM_ITEMS, *sizes))
        if made.returncode:
            raise SystemExit(made.stderr)


def page(options: argparse.Namespace, tested: str, trained: Sequence[Trained], began: float) -> str:
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU (a trial of the script)"
    facts = f"{device}, torch {torch.__version__}, commit {git_commit()[:10]}, {time.strftime('%Y-%m-%d')}"
    lines = [
        "# Results: GPU",
        "",
        "This page says what ran on a real GPU. `docs/examples/gpu_hour.sh` writes it.",
        f"{facts}; {(time.monotonic() - began) / 60:.0f} minutes.",
        "",
        f"Tests of CUDA (`pytest -m gpu`): {tested}",
        "",
        f"Trainings of {options.steps} steps, preset `{options.preset}`, synthetic data:",
        "",
        "| recipe | steps per second | MFU | GB |",
        "|---|---|---|---|",
        *(each.row() for each in trained),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    options = arguments()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("error: this machine has no CUDA device; try the script itself with --device cpu")
    began = time.monotonic()
    tested = "not run" if options.device == "cpu" else test_result()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, options)
        trained = [train(recipe, folder, options, ()) for recipe in options.recipes]
        if options.device == "cuda" and torch.cuda.device_count() > 1:
            two = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
            names = [recipe for recipe in SHARDED if recipe in options.recipes]
            trained += [train(recipe, folder, options, two, *keys) for recipe in names for keys in PAIRS]
    options.page.write_text(page(options, tested, trained, began), encoding="utf-8")
    print(f"written to {options.page}")
    if any(each.problem for each in trained):
        raise SystemExit(1)


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--card", default="4090", help="the card for `quintet plan --device`; default: 4090 (24 GB)")
    parser.add_argument("--recipes", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--page", type=Path, default=PAGE)
    return parser.parse_args()


if __name__ == "__main__":
    main()
