"""Savings of the token cache: a training step of Muse with cached codes, compared with one that encodes its images.

`muse_cache.py`, by default with tokenizer and generator of preset `base` and random weights, which cost as much as
trained ones; synthetic shapes of the tokenizer's size as PNG. One thread, process CPU seconds, fp32. A training step
includes gradients, their norm, AdamW and the moving average. The cost of the update does not depend on the batch size
and hides some of the savings at a small batch; the last column excludes it. The savings are the tokenizer's fraction of
a step, which is larger for a smaller generator (`--preset small`).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from quintet import config
from quintet.common.batch import Batch, Dataset, collate
from quintet.common.rng import ItemRNG
from quintet.data.image import folder_splits
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.task import MuseTask
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.pipeline import VQGanPipeline
from quintet.synthetic.shapes import make_shapes
from quintet.training.engine import Engine
from quintet.training.optim import clip_gradients, gradient_norm
from quintet.training.state import TrainingState
from side_by_side import HERE, write_facts
from worker import count_parameters

PARTS = ("read", "encode", "gradients", "update")
CACHED, ENCODED = "codes from the cache", "codes from the tokenizer"


@dataclass
class Clock:
    """CPU seconds by part of a step."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @contextmanager
    def running(self, part: str) -> Iterator[None]:
        start_time = time.process_time()
        yield
        self.seconds[part] += time.process_time() - start_time


class Training:
    """Muse with its optimizer and average, and its images both as cached codes and as files."""

    def __init__(self, folder: Path, num_images: int, batch: int, tokenizer_preset: str, preset: str) -> None:
        vqgan = config.build(VQGanConfig, preset=tokenizer_preset)
        torch.manual_seed(vqgan.train.seed)
        self.tokenizer = VQGanPipeline(vqgan, VQGanPipeline.build_modules(vqgan, {})).freeze()
        self.encode = self.tokenizer.token_encoder().encode
        shape = self.tokenizer.model.config
        make_shapes(folder / "data", num=num_images, size=shape.size[0])
        keys: dict[str, Any] = {
            "data.path": str(folder / "data"),
            "data.cache_dir": str(folder / "cache"),
            "data.memory_megabytes": 0,
            "train.batch_size": batch,
            "engine.precision": "fp32",
        }
        settings = config.build(MuseConfig, preset=preset, overrides=keys)
        torch.manual_seed(0)
        self.task = MuseTask(settings, {"tokenizer": self.tokenizer})
        self.batch = batch
        self.images: Dataset = folder_splits(settings.data, shape.size, shape.channels).train
        start_time = time.process_time()
        self.codes: Dataset = self.task.splits().train
        self.filling = (time.process_time() - start_time) / num_images
        self.engine = Engine(settings.engine)
        # Also the tokenizer, so that it encodes in its preferred memory format.
        self.engine.to_device({**self.task.modules, **self.tokenizer.modules})
        self.state = TrainingState(self.task)

    def step(self, number: int, cached: bool) -> dict[str, float]:
        clock = Clock()
        indices = range(number * self.batch, (number + 1) * self.batch)
        items = [index % len(self.codes) for index in indices]
        dataset = self.codes if cached else self.images
        with clock.running("read"):
            fields = collate([dataset.load(item, ItemRNG(0, [number], [item])) for item in items])
            names = tuple(dataset.name(item) for item in items)
            batch = Batch(fields, names, ItemRNG(0, [number] * self.batch, items))
        if not cached:
            with clock.running("encode"):
                batch = Batch({**fields, "codes": self.encode(batch).long()}, names, batch.rng)
        with clock.running("gradients"):
            report = self.task.backward([batch], self.task.modules, self.engine, number)
        with clock.running("update"):
            self._update(number)
        assert all(value.isfinite() for value in report.metrics.values())
        return {"cpu": sum(clock.seconds.values()), **clock.seconds}

    def _update(self, number: int) -> None:
        for phase in self.state.phases:
            norm = gradient_norm(phase.parameters)
            if phase.phase.optim.max_grad_norm is not None:
                clip_gradients(phase.parameters, norm, phase.phase.optim.max_grad_norm)
            phase.optimizer.step()
            phase.optimizer.zero_grad()
        if self.state.ema is not None:
            self.state.ema.update(number)


def table(costs: dict[str, list[dict[str, float]]]) -> str:
    means = {
        name: {part: statistics.fmean(cost[part] for cost in rows) for part in ("cpu", *PARTS)}
        for name, rows in costs.items()
    }
    lines = [
        "| a step with | read s | encode s | gradients s | update s | total s (min-max) | ratio to cached | "
        "ratio to cached without update |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cached = means[CACHED]
    for name, mean in means.items():
        totals = [cost["cpu"] for cost in costs[name]]
        without = (mean["cpu"] - mean["update"]) / (cached["cpu"] - cached["update"])
        lines.append(
            f"| {name} | {' | '.join(f'{mean[part]:.3f}' for part in PARTS)} | {mean['cpu']:.3f} "
            f"({min(totals):.3f}-{max(totals):.3f}) | {mean['cpu'] / cached['cpu']:.2f} | {without:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer-preset", default="base", choices=list(VQGanConfig.PRESETS))
    parser.add_argument("--preset", default="base", choices=list(MuseConfig.PRESETS), help="preset of the generator")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--images", type=int, default=8, help="number of images; steps cycle through them")
    parser.add_argument("--out", type=Path, help="default: results/muse-cache-PRESET.json")
    arguments = parser.parse_args()
    out = arguments.out or HERE / "results" / f"muse-cache-{arguments.preset}.json"
    torch.set_num_threads(1)
    costs: dict[str, list[dict[str, float]]] = {CACHED: [], ENCODED: []}
    with tempfile.TemporaryDirectory() as folder:
        training = Training(
            Path(folder), arguments.images, arguments.batch, arguments.tokenizer_preset, arguments.preset
        )
        for number in range(arguments.warmup + arguments.rounds):
            for name, rows in costs.items():
                cost = training.step(number, cached=name == CACHED)
                if number >= arguments.warmup:
                    rows.append(cost)
    parameters = {
        "generator": count_parameters(training.task.maskgit),
        "tokenizer": count_parameters(training.tokenizer.model),
    }
    sizes = {name: getattr(arguments, name) for name in ("tokenizer_preset", "preset", "batch")}
    facts = {**sizes, "parameters": parameters, "filling_per_picture": training.filling, "costs": costs}
    write_facts(out, facts)
    named = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in parameters.items())
    print(f"batch {arguments.batch}; {named} parameters; filling the cache: {training.filling:.2f} s per image\n")
    print(table(costs))
    print(f"raw results: {out}")


if __name__ == "__main__":
    main()
