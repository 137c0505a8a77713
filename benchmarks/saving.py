"""Time that a save every 50 steps costs a training of preset `small`: `make bench-saving`.

Muse on cached codes, and vqgan with its discriminator, one process and one thread, wall-clock time: a save also waits
for the disk. The trainings save every 20 steps, which gives more samples. The cost of a save is the time of the step
that it ends and of the nine steps after it, each the median over all saves, minus ten times the median of the other
steps; it is divided by 50 of those. `checkpoint.background=false` and `true` take turns; `--before SRC` adds the source
of an earlier revision.

On a machine with other work, the steps beside a save vary more than a save costs. `--waiting` measures only how long
the loop waits in a save: one process, both modes in turn, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVERY, BESIDE = 20, 10
"""Steps from one save to the next, and those that may be slower because of it."""
INTERVAL = 50
"""Steps between two saves in the result."""
MODES = {"in the loop": ["checkpoint.background=false"], "in the background": ["checkpoint.background=true"]}
QUIET = {"eval.every": 10**6, "sample.every": 10**6, "log.trackers": [], "checkpoint.every": EVERY}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", default=["muse", "vqgan"])
    parser.add_argument("--saves", type=int, default=15, help="saves that are timed in a training")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--waiting", action="store_true", help="measure only how long the loop waits in a save")
    parser.add_argument("--before", type=Path, help="folder `src` of an earlier revision")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)  # recipe, data, tokenizer, out
    parser.add_argument("keys", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        print(json.dumps(train(arguments.train, (arguments.saves + 1) * EVERY + BESIDE, arguments.keys)))
        return
    if arguments.waiting:
        compare_waiting(arguments)
    else:
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    own = Path(__file__).parents[1] / "src"
    sides = {name: (own, keys) for name, keys in MODES.items()}
    if arguments.before:
        sides = {"before": (arguments.before, []), **sides}
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        data, tokenizer = prepare(folder, next(source for source, _ in sides.values()))
        for recipe in arguments.recipes:
            times: dict[str, list[list[float]]] = {side: [] for side in sides}
            for number in range(arguments.rounds):
                for side, (source, keys) in sides.items():
                    out = folder / f"{recipe}-{side}-{number}"
                    words = [recipe, str(data), str(tokenizer), str(out)]
                    times[side].append(child(source, ["--saves", str(arguments.saves), "--train", *words, *keys]))
                    newest = max((out / "checkpoints").glob("step-*"))
                    size = sum(path.stat().st_size for path in newest.rglob("*.safetensors"))
            print(
                f"{recipe}, checkpoint of {size / 1e6:.0f} MB, {arguments.rounds} x {arguments.saves} saves", flush=True
            )
            for side, found in times.items():
                print(f"  {side:20} {cost(found)}", flush=True)


def compare_waiting(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        data, tokenizer = prepare(folder, Path(__file__).parents[1] / "src")
        for recipe in arguments.recipes:
            words = [recipe, str(data), str(tokenizer), str(folder / recipe)]
            trainer = trainer_of(words, 1000, [])
            steps = [timed(trainer.train_step) for _ in range(6)][1:]
            waits: dict[str, list[float]] = {mode: [] for mode in MODES}
            for number in range(2 * arguments.saves):
                mode = list(MODES)[number % 2]
                background = {"checkpoint.background": mode == "in the background"}
                trainer.state.task.config = trainer.config.changed(background)
                trainer.state.progress.step += 1
                waits[mode].append(timed(trainer.saver.save))
                trainer.saver.finish()
            trainer.close()
            step = statistics.median(steps)
            print(f"{recipe}: a step takes {step * 1000:.0f} ms, {arguments.saves} saves in each mode")
            for mode, found in waits.items():
                wait = statistics.median(found)
                print(
                    f"  {mode:20} waits {wait * 1000:.0f} ms, {wait / (INTERVAL * step):.2%} of {INTERVAL} steps",
                    flush=True,
                )


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def prepare(folder: Path, source: Path) -> tuple[Path, Path]:
    """Images, and a tokenizer of a few steps: its codes cost as much as those of a trained one."""
    from quintet.synthetic.shapes import make_shapes

    data, tokenizer = folder / "data", folder / "tokenizer"
    make_shapes(data, num=1000)
    child(source, ["--train", "vqgan", str(data), "", str(tokenizer), "train.steps=20"])
    return data, tokenizer


def train(words: list[str], steps: int, keys: list[str]) -> list[float]:
    """Train; returns the time at the end of every step."""
    trainer = trainer_of(words, steps, keys)
    times: list[float] = []
    trainer.train(lambda logs: times.append(time.perf_counter()))
    trainer.close()
    return times


def trainer_of(words: list[str], steps: int, keys: list[str]) -> Any:
    from quintet import config, runs
    from quintet.registry import find

    recipe, data, tokenizer, out = words
    frozen = {"tokenizer": tokenizer} if recipe == "muse" else {"loss.discriminator_start": 0}
    given: dict[str, Any] = {key: json.loads(value) for key, _, value in (each.partition("=") for each in keys)}
    overrides = {**QUIET, "data.path": data, "train.steps": steps, "log.every": 20, **frozen, **given}
    return runs.new_trainer(config.build(find(recipe).config_class(), preset="small", overrides=overrides), Path(out))


def child(source: Path, words: list[str]) -> list[float]:
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return [float(value) for value in json.loads(done.stdout.splitlines()[-1])]


def cost(runs: list[list[float]]) -> str:
    """The cost of a save. `times[n]` of a run is the end of step n + 1, and a save belongs to the end of its step."""
    durations: dict[int, list[float]] = {offset: [] for offset in range(EVERY)}
    for times in runs:
        for step in range(EVERY + 1, len(times)):  # the first save starts things up
            durations[(step + 1) % EVERY].append(times[step] - times[step - 1])
    other = statistics.median(value for offset in range(BESIDE, EVERY) for value in durations[offset])
    extra = [statistics.median(durations[offset]) - other for offset in range(BESIDE)]
    fraction = sum(extra) / (INTERVAL * other)
    return (
        f"{fraction:+.2%} of the time: a save takes {sum(extra) * 1000:.0f} ms, of which the step that it ends has "
        f"{extra[0] * 1000:.0f}; a step takes {other * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
