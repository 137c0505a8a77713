"""The speedrun: `benchmarks/speedrun.py MEDIUM [--seeds 0,1,2] [--full] [--note TEXT] [--out FOLDER]`.

Measures how long `quintet demo MEDIUM` takes from an empty folder until its targets are reached: wall clock and CPU
seconds of all its processes. Each seed adds one line to `benchmarks/results/speedrun.jsonl`, also if it misses a
target, and the table of `docs/speedrun.md`, which has the rules, is written again from all lines. `--table` only writes
the table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from quintet import synthetic
from quintet.demos.demo import Demo, DemoMode
from quintet.demos.media import DEMOS
from quintet.demos.script import read_metrics
from quintet.training.state import cpu_name

ROOT = Path(__file__).parents[1]
LEDGER = ROOT / "benchmarks" / "results" / "speedrun.jsonl"
PAGE = ROOT / "docs" / "speedrun.md"
MARKERS = "<!-- table: written by benchmarks/speedrun.py -->\n", "<!-- end of the table -->\n"
MIN_SEEDS = 3
"""Number of seeds that a record needs."""


@dataclass(frozen=True)
class Entry:
    """One demo from an empty folder: a line of the ledger."""

    date: str
    commit: str
    dirty: bool
    """Whether the source had changes that are not in the commit."""
    note: str
    """What changed since the record before."""
    machine: str
    cores: int
    torch: str
    data: str
    """Hash of the source of the data set and of its judge; only entries with the same one can be compared."""
    medium: str
    mode: str
    seed: int
    wall_seconds: float
    cpu_seconds: float
    """User and system time of all processes."""
    stage_seconds: dict[str, float]
    metrics: list[dict[str, Any]]
    """Each metric that has a target, with its measured value."""

    @property
    def reached(self) -> bool:
        return all(metric["reached"] for metric in self.metrics)

    @property
    def group(self) -> tuple[object, ...]:
        """Entries that differ only in their seed are one row of the table."""
        source = self.commit, self.dirty, self.note
        return self.medium, self.mode, self.data, *source, self.machine, self.cores, self.torch


def run(medium: str, full: bool, seed: int, note: str, out: Path) -> Entry:
    """Run the demo of a medium in an empty folder."""
    if out.exists() and any(out.iterdir()):
        sys.exit(f"error: {out} is not empty, and a speedrun starts from nothing: choose another folder with --out")
    source = _source()
    mode = DemoMode(full=full, seed=seed)
    wall, cpu = measure([sys.executable, "-m", "quintet", "demo", medium, *str(mode).split(), "--out", str(out)])
    return Entry(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        **source,
        note=note,
        machine=cpu_name(),
        cores=_cores(),
        torch=torch.__version__,
        data=_digest(DEMOS[medium].data),
        medium=medium,
        mode="full" if full else "quick",
        seed=seed,
        wall_seconds=round(wall, 1),
        cpu_seconds=round(cpu, 1),
        stage_seconds=stage_seconds(out),
        metrics=judged(DEMOS[medium], mode, out),
    )


def measure(command: Sequence[str]) -> tuple[float, float]:
    """Wall clock and CPU seconds of a command and of all processes that it starts and waits for."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    code = subprocess.run(command, check=False).returncode
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        sys.exit(f"error: the demo failed with exit code {code}, and nothing was recorded")
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def stage_seconds(out: Path) -> dict[str, float]:
    """The time of each part of a demo, from its ledger."""
    seconds = json.loads((out / "demo.json").read_text(encoding="utf-8"))["seconds"]
    return {part: round(value, 1) for part, value in seconds.items()}


def judged(demo: Demo, mode: DemoMode, out: Path) -> list[dict[str, Any]]:
    """The metrics of a finished demo that have a target, with value and verdict."""
    length, found = demo.length(mode), []
    for stage in demo.stages:
        results = read_metrics(out / stage.name)
        for metric in stage.metrics:
            target, value = metric.target(length), results.get(metric.name)
            if target is not None:
                reached = bool(metric.reached(value, length))
                row = {"stage": stage.name, "metric": metric.name, "value": value, "target": target, "reached": reached}
                found.append(row)
    return found


def _source() -> dict[str, Any]:
    """The commit, and whether the source differs from it; the files that a speedrun writes do not count."""
    commit = _git("rev-parse", "--short=10", "HEAD")
    written = [f":!{path.relative_to(ROOT).as_posix()}" for path in (LEDGER, PAGE)]
    return {
        "commit": commit or "unknown",
        "dirty": not commit or bool(_git("status", "--porcelain", "--", ".", *written)),
    }


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.strip()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _digest(data: str) -> str:
    """Hash of the source of a data set and of its judge."""
    folder = Path(synthetic.__path__[0])
    names = (f"{data}.py", f"{data}_judge.py", "folders.py", "judges.py")
    return hashlib.sha256(b"\0".join((folder / name).read_bytes() for name in names)).hexdigest()[:8]


# --- the ledger and its table -----------------------------------------------------------------------------------


def read(ledger: Path) -> list[Entry]:
    if not ledger.exists():
        return []
    return [Entry(**json.loads(line)) for line in ledger.read_text(encoding="utf-8").splitlines()]


def append(entry: Entry, ledger: Path) -> None:
    with ledger.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(entry)) + "\n")


COLUMNS = (
    *("medium", "mode", "date", "commit", "seeds that reached all targets"),
    *("wall clock: median, worst", "CPU time: median, worst", "lowest metric, relative to its target"),
    *("what changed", "machine", "data"),
)


def table(entries: Iterable[Entry]) -> str:
    """The table of all entries, one row for the seeds of a commit. A record is in bold."""
    groups: dict[tuple[object, ...], dict[int, Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.group, {})[entry.seed] = entry  # a repeated seed replaces the earlier one
    best: dict[tuple[str, str, str], float] = {}
    rows = []
    for group in groups.values():
        first = next(iter(group.values()))
        key = first.medium, first.mode, first.data
        median = statistics.median(entry.wall_seconds for entry in group.values())
        counts = len(group) >= MIN_SEEDS and not first.dirty and all(entry.reached for entry in group.values())
        record = counts and median < best.get(key, float("inf"))
        if record:
            best[key] = median
        rows.append(_row(list(group.values()), record))
    if not rows:
        return "There is no entry yet.\n"
    return "\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *rows]) + "\n"


def _row(group: Sequence[Entry], record: bool) -> str:
    first, mark = group[0], "**" if record else ""
    wall = _median_and_worst([entry.wall_seconds for entry in group])
    cpu = _median_and_worst([entry.cpu_seconds for entry in group])
    cells = (
        *(first.medium, first.mode, first.date, f"`{first.commit}`{' with changes' if first.dirty else ''}"),
        f"{sum(entry.reached for entry in group)} of {len(group)}",
        *(f"{mark}{wall}{mark}", cpu, _lowest(group), first.note.replace("|", "\\|"), first.machine),
        f"`{first.data}`",
    )
    return f"| {' | '.join(cells)} |"


def _median_and_worst(seconds: Sequence[float]) -> str:
    return f"{_time(statistics.median(seconds))}, {_time(max(seconds))}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min"


def _lowest(group: Sequence[Entry]) -> str:
    """The metric of any seed that misses its target by most, or exceeds it by least."""
    targets = {metric.name: metric for stage in DEMOS[group[0].medium].stages for metric in stage.metrics}
    shown = []
    for row in (row for entry in group for row in entry.metrics):
        if not isinstance(row["value"], float):
            return f"{row['metric']} not measured"
        ratio = row["value"] / row["target"]
        known = targets.get(row["metric"])
        shown.append((1 / ratio if known and known.lower_is_better and ratio else ratio, row))
    if not shown:
        return ""
    row = min(shown, key=lambda pair: pair[0])[1]
    return f"{row['metric']} {row['value']:.3g} for {row['target']:g}"


def write_table(entries: Iterable[Entry], page: Path) -> None:
    """Replace what is between the markers of a page."""
    text = page.read_text(encoding="utf-8")
    begin, end = MARKERS
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"error: {page} has no line {begin.strip()} with a later line {end.strip()}")
    page.write_text(before + begin + table(entries) + end + after, encoding="utf-8")


def say(entry: Entry) -> None:
    for row in entry.metrics:
        verdict = "reached" if row["reached"] else "not reached"
        print(f"  {row['stage']} {row['metric']}: {row['value']}, target {row['target']:g}, {verdict}")
    print(f"{entry.medium}, seed {entry.seed}: {entry.wall_seconds} s of wall clock, {entry.cpu_seconds} s of CPU time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("medium", nargs="?", choices=tuple(DEMOS))
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seed", type=int, default=0, help="train.seed of all stages (default: 0)")
    seeds.add_argument("--seeds", help="several seeds, one run each, such as 0,1,2")
    parser.add_argument("--full", action="store_true", help="run the demo with --full")
    parser.add_argument("--note", default="", help="what changed since the last record, for the table")
    parser.add_argument("--out", type=Path, help="empty folder (default: runs/speedrun-MEDIUM-MODE)")
    parser.add_argument("--table", action="store_true", help=f"only write the table of {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if options.table:
        write_table(read(LEDGER), PAGE)
        return
    if options.medium is None:
        parser.error("name a medium, or give --table")
    try:
        numbers = [int(word) for word in options.seeds.split(",")] if options.seeds else [options.seed]
    except ValueError:
        parser.error(f"--seeds {options.seeds}: give numbers with commas, such as 0,1,2")
    out = options.out or Path(f"runs/speedrun-{options.medium}-{'full' if options.full else 'quick'}")
    entries = []
    for number in numbers:
        entry = run(options.medium, options.full, number, options.note, out / f"seed-{number}")
        append(entry, LEDGER)
        write_table(read(LEDGER), PAGE)
        say(entry)
        entries.append(entry)
    wall = _median_and_worst([entry.wall_seconds for entry in entries])
    cpu = _median_and_worst([entry.cpu_seconds for entry in entries])
    reached = sum(entry.reached for entry in entries)
    print(f"{reached} of {len(entries)} seeds reached all targets; wall clock: median, worst {wall}; CPU time: {cpu}")
    sys.exit(0 if reached == len(entries) else 1)


if __name__ == "__main__":
    main()
