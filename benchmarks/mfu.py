"""MFU of a training step of every recipe: `make bench-mfu`. One thread, CPU seconds, synthetic data.

The sizes are those of `quintet demo` (preset `small`), in fp32 and bf16. A step is everything but reading data: forward
and backward pass, optimizer and moving average, on `--batches` batches in turn. FLOPs are those that `quintet train`
counts: matrix products, convolutions and attention of forward and backward pass, not the optimizer. The peak is the
fastest product of two matrices in the same precision on one thread, the best of all rows. The codes of a generator are
those of a tokenizer that was hardly trained; their number is the same.

`--media image audio` measures some media and keeps the rows of the others in the file of results.
`--profile RECIPE` prints the operations of a step in bf16, sorted by their own CPU time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from quintet import config, registry, runs
from quintet.config.tree import flatten, parse_overrides
from quintet.demos.demo import Demo, Schedule, Stage
from quintet.demos.media import DEMOS
from quintet.synthetic.motions import make_motions
from quintet.synthetic.shapes import make_shapes
from quintet.synthetic.solids import make_solids
from quintet.synthetic.sounds import make_sounds
from quintet.training.peak import measure_peak
from quintet.training.throughput import FlopCounter, Throughput
from quintet.training.trainer import Trainer
from side_by_side import HERE, write_facts

RESULTS = HERE / "results" / "mfu.json"
MAKERS: dict[str, Any] = {"shapes": make_shapes, "motions": make_motions, "sounds": make_sounds, "solids": make_solids}
NUM_ITEMS = 160
STEPS = 1000
"""Length of the run in its configuration; only some of its first steps are taken."""
_STEPS = Schedule(steps=STEPS, every=STEPS)
# The mesh demo has no learned tokenizer.
AUTOENCODER = Stage("autoencoder", "mesh-autoencoder", _STEPS, _STEPS, fraction=0.0, steps_per_second=1.0, metrics=())
MEDIA = {**DEMOS, "mesh": replace(DEMOS["mesh"], stages=(AUTOENCODER, *DEMOS["mesh"].stages))}
WARMUP = 3
PRECISIONS = ("fp32", "bf16")
ADVERSARIAL = {"vqgan", "audio-codec"}
"""Recipes that are also measured with an active discriminator."""


@dataclass(frozen=True)
class Measured:
    recipe: str
    adversarial: bool
    """Whether the discriminator is active."""
    precision: str
    batch_size: int
    parameters: int
    tokens: float | None
    flops: float
    """Per step, like the tokens."""
    seconds: float
    """CPU seconds of a step."""
    optimizer_seconds: float
    """Of it: optimizers, codebook updates and moving average."""
    peak: float

    @property
    def name(self) -> str:
        return f"{self.recipe}, adversarial" if self.adversarial else self.recipe

    @property
    def mfu(self) -> float:
        return self.flops / self.seconds / self.peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="CPU seconds of steps for each row")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--media", nargs="+", choices=MEDIA, default=list(MEDIA))
    parser.add_argument("--profile", metavar="RECIPE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for medium in options.media:
        if options.profile and options.profile not in {stage.recipe for stage in MEDIA[medium].stages}:
            continue
        rows = measure_demo(MEDIA[medium], options)
        if rows:
            write(rows)
    if not options.profile:
        print("\n".join(table(read())))


def measure_demo(demo: Demo, options: argparse.Namespace) -> list[Measured]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        sizes = {"size": int(demo.data_options[1])} if "--size" in demo.data_options else {}
        MAKERS[demo.data](out / "data", num=NUM_ITEMS, **sizes)
        return [row for stage in demo.stages for row in measure_stage(demo, stage, out, options)]


def read() -> list[Measured]:
    """The rows in the file of results, in the order of the demos."""
    if not RESULTS.exists():
        return []
    found = [Measured(**row) for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]]
    order = [stage.recipe for demo in MEDIA.values() for stage in demo.stages]
    return sorted(found, key=lambda row: (order.index(row.recipe), row.adversarial, PRECISIONS.index(row.precision)))


def write(rows: list[Measured]) -> None:
    """Add rows to the file of results, in the place of former rows of the same recipes."""
    recipes = {row.recipe for row in rows}
    rows = [*rows, *(row for row in read() if row.recipe not in recipes)]
    best = {precision: max(row.peak for row in rows if row.precision == precision) for precision in PRECISIONS}
    write_facts(RESULTS, {"rows": [asdict(replace(row, peak=best[row.precision])) for row in rows]})


def measure_stage(demo: Demo, stage: Stage, out: Path, options: argparse.Namespace) -> Iterator[Measured]:
    """The rows of a stage. The first trainer saves its weights, for the other rows and for stages that build on it."""
    adversarial = [False, True] if stage.recipe in ADVERSARIAL else [False]
    for is_adversarial, precision in itertools.product(adversarial, PRECISIONS):
        is_first = precision == "fp32" and not is_adversarial
        is_profiled = options.profile == stage.recipe and precision == "bf16"
        if options.profile and not (is_first or is_profiled):
            continue
        keys: dict[str, Any] = {"loss.discriminator_start": 0} if is_adversarial else {}
        if is_first:
            trainer = new_trainer(demo, stage, out, out / stage.name, {**keys, "engine.precision": precision})
        else:
            # Not initialised from data once more, which takes longer than the steps.
            keys |= {"init": str(out / stage.name), "engine.precision": precision}
            trainer = new_trainer(demo, stage, out, out / f"{stage.name}-{precision}-{is_adversarial}", keys)
        if is_profiled:
            profile(trainer, options.batches)
        elif not options.profile:
            yield measure(trainer, is_adversarial, options)
        if is_first:
            trainer.save(final=True)
        trainer.close()


def new_trainer(demo: Demo, stage: Stage, out: Path, run: Path, extra: dict[str, Any]) -> Trainer:
    keys = flatten(parse_overrides(stage.keys(STEPS, 0)))
    keys |= {"data.path": str(out / "data"), "data.cache_dir": str(out / "cache"), "data.num_workers": 0}
    keys |= {"train.steps": STEPS, "engine.threads": 1, "log.trackers": [], **extra}
    for name, model in stage.frozen:
        keys[name] = str(out / model) if (out / model).exists() else model
    schema: Any = registry.find(stage.recipe).config_class()
    return runs.new_trainer(config.build(schema, preset=demo.preset, overrides=keys), run, silent=True)


def prepare(trainer: Trainer, number: int) -> list[Any]:
    """Batches of the first steps, which the steps then take in turn."""
    loader = trainer._loader(trainer.splits.train)
    batches = list(loader.init_batches(trainer._order(), 1, number))
    trainer._stream = itertools.cycle(batches)
    trainer.throughput = Throughput(counts_flops=False)
    return batches


def measure(trainer: Trainer, adversarial: bool, options: argparse.Namespace) -> Measured:
    batches = prepare(trainer, options.batches)
    tokens = [trainer.task.num_tokens(loaded.batch) for loaded in batches]
    with FlopCounter() as counter:
        for loaded in batches:
            trainer.task.backward([trainer._to_device(loaded)], trainer.modules, trainer.engine, 0)
    for state in trainer.state.phases:
        state.optimizer.zero_grad()
    applied: list[float] = []
    apply = trainer._apply

    def timed_apply(*arguments: Any) -> None:
        began = time.process_time()
        apply(*arguments)
        applied.append(time.process_time() - began)

    trainer._apply = timed_apply  # type: ignore[method-assign,assignment]
    for _ in range(WARMUP):
        trainer.train_step()
    applied.clear()
    rounds: list[float] = []
    while sum(rounds) < options.seconds:
        began = time.process_time()
        for _ in batches:
            trainer.train_step()
        rounds.append(time.process_time() - began)
    measured = Measured(
        recipe=trainer.task.name,
        adversarial=adversarial,
        precision=trainer.config.engine.precision,
        batch_size=trainer.config.train.batch_size,
        parameters=sum(value.numel() for module in trainer.task.modules.values() for value in module.parameters()),
        tokens=None if None in tokens else statistics.fmean(number or 0 for number in tokens),
        flops=counter.flops / len(batches),
        seconds=statistics.median(rounds) / len(batches),
        optimizer_seconds=statistics.median(applied),
        peak=measure_peak(trainer.engine.device, trainer.engine.product_dtype, time.process_time),
    )
    print(
        f"{measured.name}, {measured.precision}: {measured.seconds * 1000:.0f} ms, MFU {measured.mfu:.1%}", flush=True
    )
    return measured


def table(rows: list[Measured]) -> Iterator[str]:
    columns = [f"{name}{unit}" for name in PRECISIONS for unit in ("", ", optimizer", ", tokens/s", ", MFU")]
    yield f"| recipe | parameters | batch | tokens | GFLOP | {' | '.join(columns)} |"
    yield "|" + "---|" * (5 + len(columns))
    for full, half in zip(rows[::2], rows[1::2], strict=True):
        cells = [full.name, f"{full.parameters / 1e6:.1f} M", str(full.batch_size), number(full.tokens)]
        cells.append(f"{full.flops / 1e9:.1f}")
        for row in (full, half):
            rate = None if row.tokens is None else row.tokens / row.seconds
            cells += [f"{row.seconds * 1000:.0f} ms", f"{row.optimizer_seconds * 1000:.0f} ms", number(rate)]
            cells.append(f"{row.mfu:.0%}")
        yield f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def profile(trainer: Trainer, num_batches: int) -> None:
    """Print the operations of the steps on some batches, sorted by their own CPU time."""
    batches = prepare(trainer, num_batches)
    for _ in range(WARMUP):
        trainer.train_step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in batches:
            trainer.train_step()
    print(f"{trainer.task.name}, bf16, {len(batches)} steps")
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=60))


if __name__ == "__main__":
    main()
