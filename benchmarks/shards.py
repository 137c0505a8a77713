"""A million small pictures in shards: `python benchmarks/shards.py DIR`, about ten minutes of one core, 4 GB of disk.

`start` and `resume`, of the million and of a thousand: a process of its own each; seconds from the first line that is
read of the data to the end of the first step, on the clock and of the CPU, and of the whole process, interpreter and
torch included. `memory`: one epoch through the loader and two data workers; the memory of all three (proportional share
of what they share) after a twentieth of it and at its end. `throughput`: items a second of process CPU time beside the
`webdataset` package on the same files, in turns within one process, shuffled, in batches: the bytes and captions alone,
and decoded to tensors. The package is no part of quintet's environment: `pip install --no-deps --target FOLDER
webdataset braceexpand`, and WEBDATASET=FOLDER.
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
PICTURES = 1000
"""Different ones; each item is one of them."""
TINY = (
    *("model.dim=8", f"model.image_size={SIDE}", "model.layers=1", "model.quantizer=fsq", "loss.discriminator_dim=8"),
    *("train.batch_size=4", "eval.every=1000000", "sample.every=1000000", "checkpoint.every=1", "log.trackers=[]"),
)
EXTENSIONS = frozenset({".png"})


# --- data -------------------------------------------------------------------------------------------------------


def make(folder: Path, items: int) -> None:
    """Written straight into shards: a million single files would take longer than all that follows."""
    from quintet.data.index.entry import Entry
    from quintet.data.index.shard_writer import ShardWriter
    from quintet.media.files import Blob

    folder.mkdir(parents=True)
    pictures = [_png(number) for number in range(PICTURES)]
    writer = ShardWriter(folder, PER_SHARD, 1024)
    for item in range(items):
        entry = Entry(f"{item // 1000:04d}/{item:07d}.png", f"noise, as it was drawn for item {item}")
        writer.add(entry, Blob(entry.file, pictures[item % PICTURES]))
    writer.close()


def _png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


# --- start and resume -------------------------------------------------------------------------------------------


def begin(folder: str, run: str, resumed: bool) -> None:
    """One process: a trainer, and its first step. Prints seconds, and the step."""
    from quintet import config as configs
    from quintet import registry, runs

    began, worked = time.perf_counter(), time.process_time()
    if resumed:
        trainer = runs.resumed_trainer(Path(run), {"train.steps": 1000}, silent=True)
    else:
        overrides = configs.parse_overrides([*TINY, f"data.path={folder}", "train.steps=1000"])
        config = configs.build(registry.find("vqgan").config_class(), preset="debug", overrides=overrides)
        trainer = runs.new_trainer(config, Path(run), silent=True)
    trainer.train_step()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked
    trainer.save()
    items = len(trainer.splits.train) + len(trainer.splits.validation)
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "step": trainer.step, "items": items}))
    trainer.close()


def timed_begin(folder: Path, run: Path, resumed: bool) -> dict[str, float]:
    command = [sys.executable, __file__, str(folder), "--begin", str(run), *(["--resumed"] if resumed else [])]
    began = time.perf_counter()
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    told = json.loads(said.strip().splitlines()[-1])
    return {**told, "process_seconds": time.perf_counter() - began}


# --- memory -----------------------------------------------------------------------------------------------------


def memory_of_epoch(folder: Path) -> dict[str, float]:
    from quintet.common.batch import collate
    from quintet.training.loader import Loader
    from quintet.training.order import Order

    source = picture_source(folder)
    loader = Loader(source, 0, collate, _engine(), workers=2)
    steps = len(source) // BATCH
    marks = {round(share * steps): f"{share:.0%}" for share in (0.05, 0.25, 0.5, 0.75, 1)}
    found: dict[str, float] = {}
    for step, _ in enumerate(loader.training(Order(len(source), BATCH, 0), 0, steps, 1), start=1):
        if step in marks:
            found[marks[step]] = megabytes()
            print(f"{step * BATCH} items read: {found[marks[step]]:.0f} MB", flush=True)
    assert not loader.skipped, loader.skipped
    return {**found, "items": steps * BATCH, "growth_percent": 100 * (found["100%"] / found["5%"] - 1)}


def _engine() -> Any:
    from quintet.config import EngineConfig
    from quintet.training.engine import Engine

    return Engine(EngineConfig(), 0)


def picture_source(folder: Path) -> Any:
    from quintet.data.image import ImageFolder
    from quintet.data.index.listing import list_media

    entries = list_media(folder, EXTENSIONS).entries
    return ImageFolder(folder, entries, SIDE, SIDE, flip=True, memory=512 * 2**20)


def megabytes() -> float:
    """Of this process and its children, pages that several have counted once."""
    processes = [os.getpid(), *map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())]
    texts = [Path(f"/proc/{process}/smaps_rollup").read_text() for process in processes]
    return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("Pss:")) / 1024


# --- throughput -------------------------------------------------------------------------------------------------


def ours_raw(folder: Path) -> Iterator[int]:
    from quintet.training.order import Order

    source = picture_source(folder)
    order = Order(len(source), BATCH, 0)
    for step in range(10**9):
        batch = [source.entries[item] for _, item in order.batch(step)]
        held = [(entry.media(folder).content, entry.text) for entry in batch]
        yield len(held)


def ours_decoded(folder: Path) -> Iterator[int]:
    from quintet.common.batch import collate
    from quintet.training.loader import Loader
    from quintet.training.order import Order

    source = picture_source(folder)
    loader = Loader(source, 0, collate, _engine(), workers=0)
    for loaded in loader.training(Order(len(source), BATCH, 0), 0, 10**9, 1):
        assert loaded.batch["images"].shape == (BATCH, 3, SIDE, SIDE)
        yield len(loaded.batch)


def theirs_raw(folder: Path) -> Iterator[int]:
    for batch in _webdataset(folder).to_tuple("png", "txt").batched(BATCH, collation_fn=None):
        yield len(batch)


def theirs_decoded(folder: Path) -> Iterator[int]:
    import torch

    def tensor(picture: Any) -> Any:
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)

    data = _webdataset(folder).decode("pil").to_tuple("png", "txt").map_tuple(tensor, str)
    for pictures, texts in data.batched(BATCH):
        assert pictures.shape[1:] == (3, SIDE, SIDE)
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
        next(stream)  # opens files, fills the buffer
    rates: dict[str, list[float]] = {name: [] for name in streams}
    for _ in range(rounds):
        for name, stream in streams.items():
            began = time.process_time()
            read = sum(islice(stream, items // BATCH))
            rates[name].append(read / (time.process_time() - began))
    medians = {name: float(np.median(found)) for name, found in rates.items()}
    return {"webdataset": webdataset.__version__, "items_per_cpu_second": medians, "rounds": rates}


# --- all of it --------------------------------------------------------------------------------------------------


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
        began = time.perf_counter()
        make(shards, arguments.items)
        print(f"{arguments.items} items written in {time.perf_counter() - began:.0f} s")
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
