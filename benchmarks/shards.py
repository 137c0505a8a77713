"""A million small images in shards: `python benchmarks/shards.py DIR`, about ten minutes of one core, 4 GB of disk.

`start` and `resume`, with a million and with a thousand items, each in a separate process: wall and CPU seconds from
the first read of the data to the end of the first step, and of the complete process including interpreter and torch.
`memory`: one epoch with the loader and two data workers; the memory of all three processes (proportional set size)
after a twentieth of the epoch and at its end. `throughput`: items per second of process CPU time, compared with the
`webdataset` package on the same files, alternating in one process, shuffled, in batches: only bytes and captions, and
decoded to tensors. The package is not part of quintet's environment: `pip install --no-deps --target FOLDER webdataset
braceexpand`, and WEBDATASET=FOLDER.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from quintet.training.state import cpu_name

RESULTS = Path(__file__).parent / "results" / "shards.json"
SIDE = 16
BATCH = 256
PER_SHARD = 10_000
IMAGES = 1000
"""Number of different images among the items."""
TINY = (
    *("model.dim=8", f"model.image_size={SIDE}", "model.layers=1", "model.quantizer=fsq", "loss.discriminator_dim=8"),
    *("train.batch_size=4", "eval.every=1000000", "sample.every=1000000", "checkpoint.every=1", "log.trackers=[]"),
)
EXTENSIONS = frozenset({".png"})


# --- data -------------------------------------------------------------------------------------------------------


def make(folder: Path, items: int) -> None:
    """Write shards directly, because writing a million single files would take longer than the benchmark."""
    from quintet.data.index.entry import Entry
    from quintet.data.index.shard_writer import ShardWriter
    from quintet.media.files import Blob

    folder.mkdir(parents=True)
    images = [_png(number) for number in range(IMAGES)]
    writer = ShardWriter(folder, PER_SHARD, 1024)
    for item in range(items):
        entry = Entry(f"{item // 1000:04d}/{item:07d}.png", f"noise, as it was drawn for item {item}")
        writer.add(entry, Blob(entry.file, images[item % IMAGES]))
    writer.close()


def _png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


# --- start and resume -------------------------------------------------------------------------------------------


def begin(folder: str, run: str, resumed: bool) -> None:
    """In one process: create a trainer and take its first step; prints the seconds and the step."""
    from quintet import config as configs
    from quintet import registry, runs

    start_time, start_cpu = time.perf_counter(), time.process_time()
    if resumed:
        trainer = runs.resumed_trainer(Path(run), {"train.steps": 1000}, silent=True)
    else:
        overrides = configs.parse_overrides([*TINY, f"data.path={folder}", "train.steps=1000"])
        config = configs.build(registry.find("vqgan").config_class(), preset="debug", overrides=overrides)
        trainer = runs.new_trainer(config, Path(run), silent=True)
    trainer.train_step()
    seconds, cpu_seconds = time.perf_counter() - start_time, time.process_time() - start_cpu
    trainer.save()
    items = len(trainer.splits.train) + len(trainer.splits.validation)
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "step": trainer.step, "items": items}))
    trainer.close()


def timed_begin(folder: Path, run: Path, resumed: bool) -> dict[str, float]:
    command = [sys.executable, __file__, str(folder), "--begin", str(run), *(["--resumed"] if resumed else [])]
    start_time = time.perf_counter()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = json.loads(output.strip().splitlines()[-1])
    return {**result, "process_seconds": time.perf_counter() - start_time}


# --- memory -----------------------------------------------------------------------------------------------------


def memory_of_epoch(folder: Path) -> dict[str, float]:
    from quintet.common.batch import collate
    from quintet.training.loader import Loader
    from quintet.training.order import Order

    dataset = image_dataset(folder)
    loader = Loader(dataset, 0, collate, _engine(), workers=2)
    steps = len(dataset) // BATCH
    marks = {round(fraction * steps): f"{fraction:.0%}" for fraction in (0.05, 0.25, 0.5, 0.75, 1)}
    memory: dict[str, float] = {}
    for step, _ in enumerate(loader.training(Order(len(dataset), BATCH, 0), 0, steps, 1), start=1):
        if step in marks:
            memory[marks[step]] = megabytes()
            print(f"{step * BATCH} items read: {memory[marks[step]]:.0f} MB", flush=True)
    assert not loader.skipped, loader.skipped
    return {**memory, "items": steps * BATCH, "growth_percent": 100 * (memory["100%"] / memory["5%"] - 1)}


def _engine() -> Any:
    from quintet.config import EngineConfig
    from quintet.training.engine import Engine

    return Engine(EngineConfig(), 0)


def image_dataset(folder: Path) -> Any:
    from quintet.data.image import ImageFolder
    from quintet.data.index.listing import list_media

    entries = list_media(folder, EXTENSIONS).entries
    return ImageFolder(folder, entries, SIDE, SIDE, flip=True, memory=512 * 2**20)


def megabytes() -> float:
    """Memory of this process and its children; shared pages count once."""
    processes = [os.getpid(), *map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())]
    texts = [Path(f"/proc/{process}/smaps_rollup").read_text() for process in processes]
    return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("Pss:")) / 1024


# --- throughput -------------------------------------------------------------------------------------------------


def ours_raw(folder: Path) -> Iterator[int]:
    from quintet.training.order import Order

    dataset = image_dataset(folder)
    order = Order(len(dataset), BATCH, 0)
    for step in range(10**9):
        batch = [dataset.entries[item] for _, item in order.batch(step)]
        contents = [(entry.media(folder).content, entry.text) for entry in batch]
        yield len(contents)


def ours_decoded(folder: Path) -> Iterator[int]:
    from quintet.common.batch import collate
    from quintet.training.loader import Loader
    from quintet.training.order import Order

    dataset = image_dataset(folder)
    loader = Loader(dataset, 0, collate, _engine(), workers=0)
    for loaded in loader.training(Order(len(dataset), BATCH, 0), 0, 10**9, 1):
        assert loaded.batch["images"].shape == (BATCH, 3, SIDE, SIDE)
        yield len(loaded.batch)


def theirs_raw(folder: Path) -> Iterator[int]:
    for batch in _webdataset(folder).to_tuple("png", "txt").batched(BATCH, collation_fn=None):
        yield len(batch)


def theirs_decoded(folder: Path) -> Iterator[int]:
    import torch

    def tensor(image: Any) -> Any:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    data = _webdataset(folder).decode("pil").to_tuple("png", "txt").map_tuple(tensor, str)
    for images, texts in data.batched(BATCH):
        assert images.shape[1:] == (3, SIDE, SIDE)
        yield len(texts)


def _webdataset(folder: Path) -> Any:
    import webdataset

    shards = sorted(str(path) for path in folder.glob("*.tar"))
    return webdataset.WebDataset(shards, shardshuffle=len(shards), seed=0).shuffle(1000)


def throughput(folder: Path, rounds: int, items: int) -> dict[str, Any]:
    import webdataset

    sides: dict[str, Callable[[Path], Iterator[int]]] = {
        "ours_raw": ours_raw,
        "webdataset_raw": theirs_raw,
        "ours_decoded": ours_decoded,
        "webdataset_decoded": theirs_decoded,
    }
    streams = {name: make_stream(folder) for name, make_stream in sides.items()}
    for stream in streams.values():
        next(stream)  # opens files and fills the buffer
    rates: dict[str, list[float]] = {name: [] for name in streams}
    for _ in range(rounds):
        for name, stream in streams.items():
            start_time = time.process_time()
            read = sum(islice(stream, items // BATCH))
            rates[name].append(read / (time.process_time() - start_time))
    medians = {name: float(np.median(found)) for name, found in rates.items()}
    return {"webdataset": webdataset.__version__, "items_per_cpu_second": medians, "rounds": rates}


# --- command line -----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", nargs="*", default=["begin", "throughput", "memory"])
    parser.add_argument("--begin", help=argparse.SUPPRESS)
    parser.add_argument("--resumed", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.begin:
        begin(str(arguments.folder), arguments.begin, arguments.resumed)
        return
    sys.path.append(os.environ.get("WEBDATASET", ""))
    shards = arguments.folder / "shards"
    if not shards.exists():
        start_time = time.perf_counter()
        make(shards, arguments.items)
        print(f"{arguments.items} items written in {time.perf_counter() - start_time:.0f} s")
    results: dict[str, Any] = {"cpu": cpu_name(), "cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}
    if "begin" in arguments.parts:
        few = arguments.folder / "few"
        if not few.exists():
            make(few, 1000)
        timings: dict[str, list[dict[str, float]]] = {"start": [], "resume": [], "start_few": [], "resume_few": []}
        for name in (*timings, *timings, *timings):
            of_few, resumed = name.endswith("few"), name.startswith("resume")
            run = arguments.folder / f"run-{'few' if of_few else 'all'}-{len(timings[name])}"
            if not resumed:
                shutil.rmtree(run, ignore_errors=True)
            timings[name].append(timed_begin(few if of_few else shards, run, resumed))
            print(name, timings[name][-1], flush=True)
        results |= timings
    if "throughput" in arguments.parts:
        results["throughput"] = throughput(shards, arguments.rounds, 20_000)
        print(results["throughput"]["items_per_cpu_second"], flush=True)
    if "memory" in arguments.parts:
        results["memory"] = memory_of_epoch(shards)
        print("memory", results["memory"], flush=True)
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(before | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
