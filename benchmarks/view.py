"""The web page with many runs and many viewers: `make bench-view`.

`scale`: 200 runs of 100,000 rows each; seconds until the list, until a run with its first curves, and until the curves
of all its rows are loaded. `load`: 50 viewers of two live runs for one minute, one of which is being trained; latency
of their requests and cost of the server. The server has one core, the training and the viewers share the other.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from quintet import config as configs
from quintet.families.muse.config import MuseConfig

RESULTS = Path(__file__).parent / "results" / "view.json"
NAMES = (
    "generator/loss",
    "generator/accuracy",
    "generator/gradient_norm",
    "lr",
    "rate/items_per_second",
    "time/overhead",
)
RUNS = ("live", "training")
"""Runs of the viewers: one with many rows, to which five rows per second are added, and one that is being trained."""
DIFFERENT_FILES = 10
"""Number of different metrics.jsonl; the runs share them by hard links to save disk space."""


# --- runs -----------------------------------------------------------------------------------------------------


def row(step: int, random_numbers: random.Random) -> str:
    values = {f"train/{name}": math.exp(-step / 30_000) + random_numbers.gauss(0, 0.05) for name in NAMES}
    if step % 500 == 0:
        values = {"validation/loss": math.exp(-step / 40_000), "validation/accuracy": 0.5}
    return json.dumps({"step": step, "time": 1.8e9 + step / 5, **values}) + "\n"


def write_rows(path: Path, rows: int, seed: int) -> None:
    numbers = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(row(step, numbers) for step in range(1, rows + 1))


def write_run(folder: Path, rows: int, status: str = "finished") -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(configs.build(MuseConfig, preset="small").to_yaml(), encoding="utf-8")
    (folder / "log.txt").write_text("started\n", encoding="utf-8")
    (folder / "data.json").write_text(json.dumps({"train": [f"{n}.png" for n in range(10_000)], "skipped": {}}))
    write_state(folder, rows, status)


def write_state(folder: Path, step: int, status: str) -> None:
    state = {"status": status, "heartbeat": time.time(), "pid": os.getpid(), "host": platform.node(), "device": "cpu"}
    more = {"recipe": "muse", "step": step, "steps": 10**6, "best": {"metric": "loss", "value": 3.0, "step": 500}}
    temporary = folder / ".state.json.writing"
    temporary.write_text(json.dumps({**state, **more}), encoding="utf-8")
    temporary.replace(folder / "state.json")


# --- the server -----------------------------------------------------------------------------------------------


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    """Port and process id of `quintet view`, on the last core."""
    cores = sorted(os.sched_getaffinity(0))
    words = [sys.executable, "-m", "quintet", "view", str(folder), "--no-browser", "--read-only"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(process.pid, {cores[-1]})
    os.sched_setaffinity(0, {cores[0]})
    assert process.stdout is not None
    try:
        output = process.stdout.readline()
        yield int(output.split("http://127.0.0.1:")[1].split("/")[0]), process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
        os.sched_setaffinity(0, set(cores))


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def fetch(port: int, path: str) -> bytes:
    """One request on a new connection; returns the decompressed body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n".encode()
    )
    head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{path}: {head.splitlines()[0].decode()}")
    return gzip.decompress(body) if b"content-encoding: gzip" in head else body


FIRST = "".join(f"&name={quote(f'train/{name}', safe='')}" for name in NAMES) + "&name=validation%2Floss"


async def open_run(port: int, run: str) -> None:
    """Requests of a browser that opens a run."""
    await fetch(port, "/")
    await fetch(port, "/api/runs")
    await fetch(port, f"/api/run?run={run}")
    await fetch(port, f"/api/curves?run={run}&points=400{FIRST}")


async def open_complete_run(port: int, run: str) -> None:
    """Request of a browser for all rows after the sketch."""
    await fetch(port, f"/api/curves?run={run}&points=400{FIRST}&complete=")


# --- measurements ---------------------------------------------------------------------------------------------


def scale(runs: int, rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "runs"
        files = []
        for number in range(min(DIFFERENT_FILES, runs)):
            files.append(Path(temporary) / f"{number}.jsonl")
            write_rows(files[-1], rows, number)
        for number in range(runs):
            write_run(root / f"run-{number:03d}", rows)
            os.link(files[number % len(files)], root / f"run-{number:03d}" / "metrics.jsonl")
        with served(root) as (port, process):

            def timed(*paths: str) -> float:
                start_time = time.perf_counter()
                for path in paths:
                    asyncio.run(fetch(port, path))
                return time.perf_counter() - start_time

            result = {"list_seconds": timed("/", "/api/runs"), "list_again_seconds": timed("/", "/api/runs")}
            opened, completed, before = [], [], cpu_seconds(process)
            for number in range(0, runs, max(1, runs // 8)):
                start_time = time.perf_counter()
                asyncio.run(open_run(port, f"run-{number:03d}"))
                opened.append(time.perf_counter() - start_time)
                asyncio.run(open_complete_run(port, f"run-{number:03d}"))
                completed.append(time.perf_counter() - start_time)
            result["run_and_whole_cpu_seconds"] = (cpu_seconds(process) - before) / len(opened)
            result["run_seconds_median"] = statistics.median(opened)
            result["run_seconds_largest"] = max(opened)
            result["run_whole_seconds_median"] = statistics.median(completed)
            result["run_whole_seconds_largest"] = max(completed)
            result["run_again_seconds"] = timed("/api/run?run=run-000", f"/api/curves?run=run-000&points=400{FIRST}")
            result["server_cpu_seconds"] = cpu_seconds(process)
            result["megabytes_a_run"] = files[0].stat().st_size / 1e6
    return {"runs": runs, "rows": rows, **result}


async def viewer(port: int, seed: int, until: float, latencies: list[float], events: list[int]) -> None:
    """A viewer that opens a run and, about every ten seconds, zooms, moves the slider or reloads."""
    numbers = random.Random(seed)
    run = RUNS[seed % len(RUNS)]
    await asyncio.sleep(numbers.uniform(0, 5))

    async def timed(path: str) -> bytes:
        start_time = time.perf_counter()
        answer = await fetch(port, path)
        latencies.append(time.perf_counter() - start_time)
        return answer

    async def load() -> int:
        """Load the page; returns the newest step with samples."""
        for path in ("/", "/api/runs"):
            await timed(path)
        about = json.loads(await timed(f"/api/run?run={run}"))
        await timed(f"/api/curves?run={run}&points=400{FIRST}")
        return int(about["sample_steps"][-1])

    step = await load()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/events?run={run} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    async def listen() -> None:
        while line := await reader.readline():
            events[0] += line.startswith(b"event: rows")

    listening = asyncio.create_task(listen())
    while time.perf_counter() < until:
        await asyncio.sleep(numbers.uniform(5, 15))
        start = numbers.randrange(50_000)
        action = numbers.random()
        if action < 0.2:
            step = await load()
        elif action < 0.6:
            await timed(f"/api/curves?run={run}&points=400&from={start}&to={start + 20_000}{FIRST}")
        else:
            entries = json.loads(await timed(f"/api/samples?run={run}&step={step}"))
            await timed(f"/media?run={run}&step={step}&file={quote(entries[0]['file'])}")
    listening.cancel()
    writer.close()


async def write_live(run: Path, first: int, until: float) -> None:
    """Add five rows per second, as a fast training run does."""
    numbers = random.Random(0)
    step = first
    while time.perf_counter() < until:
        step += 1
        with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(row(step, numbers))
        write_state(run, step, "running")
        await asyncio.sleep(0.2)


@contextmanager
def trained(folder: Path) -> Iterator[int]:
    """A real training run on the first core, which writes rows, samples and checkpoints."""
    command = [sys.executable, "-m", "quintet"]
    data = folder.parent / "images"
    subprocess.run([*command, "data", "make", "shapes", str(data), "--num", "200", "--size", "32"], check=True)
    words = ["train", "vqgan", str(data), "--out", str(folder / "training"), "--preset", "debug", "train.steps=1000000"]
    often = ["log.every=5", "eval.every=100", "sample.every=100", "checkpoint.every=200", "data.num_workers=0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, *words, *often], stderr=subprocess.DEVNULL, env=environment) as process:
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        try:
            while not any((folder / "training" / "samples").glob("*/samples.jsonl")):
                if process.poll() is not None:
                    raise RuntimeError("the training stopped")
                time.sleep(0.2)
            yield process.pid
        finally:
            process.terminate()


def load(viewers: int, rows: int, seconds: float) -> dict[str, Any]:
    from PIL import Image

    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "runs"
        run = root / "live"
        write_run(run, rows, "running")
        write_rows(run / "metrics.jsonl", rows, 0)
        samples = run / "samples" / "step-00000001"
        samples.mkdir(parents=True)
        Image.effect_noise((512, 512), 50).save(samples / "000.png")
        (samples / "samples.jsonl").write_text('{"file": "000.png", "text": "noise"}\n', encoding="utf-8")
        latencies: list[float] = []
        events = [0]
        with trained(root) as trainer, served(root) as (port, process):

            async def run_viewers() -> None:
                for each in RUNS:
                    await open_run(port, each)
                    await open_complete_run(port, each)
                until = time.perf_counter() + seconds
                all_viewers = [viewer(port, seed, until, latencies, events) for seed in range(viewers)]
                await asyncio.gather(write_live(run, rows, until), *all_viewers)

            before, trained_before, start_time = cpu_seconds(process), cpu_seconds(trainer), time.perf_counter()
            asyncio.run(run_viewers())
            lasted = time.perf_counter() - start_time
            used, trained_for = cpu_seconds(process) - before, cpu_seconds(trainer) - trained_before
    ordered = sorted(latencies)
    return {
        "viewers": viewers,
        "seconds": lasted,
        "requests": len(ordered),
        "events_told": events[0],
        "latency_median_seconds": statistics.median(ordered),
        "latency_p95_seconds": ordered[int(0.95 * len(ordered))],
        "latency_largest_seconds": ordered[-1],
        "server_cpu_seconds": used,
        "server_share_of_a_core": used / lasted,
        "trainer_share_of_the_other_core": trained_for / lasted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["scale", "load"], help="scale, load")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    measured = {
        "scale": lambda: scale(arguments.runs, arguments.rows),
        "load": lambda: load(arguments.viewers, arguments.rows, arguments.seconds),
    }
    for what in arguments.what:
        other_load = os.getloadavg()[0]
        results[what] = {**measured[what](), "load_average_before": other_load, "date": time.strftime("%Y-%m-%d")}
        for name, value in results[what].items():
            print(f"{what:<6} {name:<24} {value if isinstance(value, str) else format(value, '.4g')}")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
