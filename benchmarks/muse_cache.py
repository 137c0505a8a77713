"""What the code cache saves: a training step of Muse from cached codes beside one that encodes its pictures first.

`muse_cache.py`, by default with tokenizer and generator of preset `base` and random weights, which cost what trained
ones do; drawn shapes of the tokenizer's size as PNG. One thread, process CPU seconds, fp32. A step is one of training:
gradients, their norm, AdamW, moving average. The update costs the same for any batch, so at a small batch it hides some
of what the cache saves: the last column leaves it out, as a large batch would. What is saved is the tokenizer's share
of a step: the smaller the generator beside it, the more (`--preset small`).
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
        began = time.process_time()
        yield
        self.seconds[part] += time.process_time() - began


class Training:
    """Muse with its optimizer and average, and its pictures both as codes in a cache and as files."""

    def __init__(self, folder: Path, pictures: int, batch: int, tokenizer_preset: str, preset: str) -> None:
        vqgan = config.build(VQGanConfig, preset=tokenizer_preset)
        torch.manual_seed(vqgan.train.seed)
        self.tokenizer = VQGanPipeline(vqgan, VQGanPipeline.build_modules(vqgan, {})).freeze()
        self.encode = self.tokenizer.token_encoder().encode
        shape = self.tokenizer.model.config
        make_shapes(folder / "data", num=pictures, size=shape.size[0])
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
        self.pictures: Dataset = folder_splits(settings.data, shape.size, shape.channels).train
        began = time.process_time()
        self.codes: Dataset = self.task.splits().train
        self.filling = (time.process_time() - began) / pictures
        self.engine = Engine(settings.engine)
        # The tokenizer too: encoding in every step would be done in the memory format that suits it.
        self.engine.to_device({**self.task.modules, **self.tokenizer.modules})
        self.state = TrainingState(self.task)

    def step(self, number: int, cached: bool) -> dict[str, float]:
        clock = Clock()
        places = range(number * self.batch, (number + 1) * self.batch)
        items = [place % len(self.codes) for place in places]
        source = self.codes if cached else self.pictures
        with clock.running("read"):
            fields = collate([source.load(item, ItemRNG(0, [number], [item])) for item in items])
            names = tuple(source.name(item) for item in items)
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
        "| a step with | read s | encode s | gradients s | update s | whole s (min-max) | of the cached | "
        "of the cached without update |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cached = means[CACHED]
    for name, mean in means.items():
        whole = [cost["cpu"] for cost in costs[name]]
        without = (mean["cpu"] - mean["update"]) / (cached["cpu"] - cached["update"])
        lines.append(
            f"| {name} | {' | '.join(f'{mean[part]:.3f}' for part in PARTS)} | {mean['cpu']:.3f} "
            f"({min(whole):.3f}-{max(whole):.3f}) | {mean['cpu'] / cached['cpu']:.2f} | {without:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer-preset", default="base", choices=list(VQGanConfig.PRESETS))
    parser.add_argument("--preset", default="base", choices=list(MuseConfig.PRESETS), help="of the generator")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--pictures", type=int, default=8, help="drawn and encoded once; steps go round them")
    parser.add_argument("--out", type=Path, help="default: results/muse-cache-PRESET.json")
    arguments = parser.parse_args()
    out = arguments.out or HERE / "results" / f"muse-cache-{arguments.preset}.json"
    torch.set_num_threads(1)
    costs: dict[str, list[dict[str, float]]] = {CACHED: [], ENCODED: []}
    with tempfile.TemporaryDirectory() as folder:
        training = Training(
            Path(folder), arguments.pictures, arguments.batch, arguments.tokenizer_preset, arguments.preset
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
    print(f"batch {arguments.batch}; {named} parameters; filling the cache once: {training.filling:.2f} s a picture\n")
    print(table(costs))
    print(f"raw figures: {out}")


if __name__ == "__main__":
    main()
