"""The ledger of speedruns: what is read from a finished demo, and the table that is written from its lines."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quintet.demos.demo import DemoMode
from quintet.demos.media import DEMOS

PATH = Path(__file__).parents[2] / "benchmarks" / "speedrun.py"


@pytest.fixture(scope="module")
def speedrun() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_speedrun", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def entry(speedrun: ModuleType, seed: int, seconds: float, **changes: Any) -> Any:
    metric = {"stage": "muse", "metric": "match_shape", "value": 0.9, "target": 0.8, "reached": True}
    values = {
        **{"date": "2026-11-18", "commit": "abc", "dirty": False, "note": "start", "machine": "CPU", "cores": 2},
        **{"torch": "2", "data": "d", "medium": "image", "mode": "quick", "seed": seed, "wall_seconds": seconds},
        **{"cpu_seconds": 2 * seconds, "stage_seconds": {"muse": 1.0}, "metrics": [metric]},
    }
    return speedrun.Entry(**{**values, **changes})


def rows(speedrun: ModuleType, entries: list[Any]) -> list[str]:
    return speedrun.table(entries).splitlines()[2:]  # type: ignore[no-any-return]


def test_the_metrics_of_a_demo_are_read_with_the_targets_of_its_length(speedrun: ModuleType, tmp_path: Path) -> None:
    for stage, results in {"tokenizer": {"psnr": 27.0}, "muse": {"match_colour": 0.96, "match_shape": 0.5}}.items():
        (tmp_path / stage).mkdir()
        (tmp_path / stage / "eval.json").write_text(json.dumps(results), "utf-8")
    found = {row["metric"]: row for row in speedrun.judged(DEMOS["image"], DemoMode(), tmp_path)}
    assert {name: row["reached"] for name, row in found.items()} == {
        "match_colour": True,
        "match_position": False,  # not measured
        "match_shape": False,
        "match_withheld": False,
    }
    full = {row["metric"]: row["reached"] for row in speedrun.judged(DEMOS["image"], DemoMode(full=True), tmp_path)}
    assert full["match_colour"] is False
    assert full["psnr"] is False


def test_the_time_of_a_command_includes_the_processes_that_it_starts(speedrun: ModuleType) -> None:
    work = "import time\nwhile time.process_time() < 0.3: pass"
    command = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    wall, cpu = speedrun.measure([sys.executable, "-c", command])
    assert wall > 0
    assert cpu >= 0.3


def test_a_speedrun_starts_from_an_empty_folder(speedrun: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "demo.json").touch()
    with pytest.raises(SystemExit, match="is not empty"):
        speedrun.run("image", False, 0, "", tmp_path)


def test_a_record_has_three_seeds_that_reach_all_targets_faster_than_before(speedrun: ModuleType) -> None:
    first = [entry(speedrun, seed, 100.0 + seed) for seed in range(3)]
    slower = [entry(speedrun, seed, 200.0, commit="slow") for seed in range(3)]
    two = [entry(speedrun, seed, 50.0, commit="two") for seed in range(2)]
    missed = {"stage": "muse", "metric": "match_shape", "value": 0.7, "target": 0.8, "reached": False}
    misses = [entry(speedrun, 0, 40.0, commit="misses", metrics=[missed])]
    misses += [entry(speedrun, seed, 40.0, commit="misses") for seed in (1, 2)]
    dirty = [entry(speedrun, seed, 30.0, commit="dirty", dirty=True) for seed in range(3)]
    faster = [entry(speedrun, seed, 90.0, commit="fast", note="a | b") for seed in range(3)]
    lines = rows(speedrun, [*first, *slower, *two, *misses, *dirty, *faster])
    assert [("**" in line) for line in lines] == [True, False, False, False, False, True]
    assert "| 3 of 3 | **1:41 min, 1:42 min** | 3:22 min, 3:24 min | match_shape 0.9 for 0.8 | start |" in lines[0]
    assert "| 2 of 3 | 0:40 min, 0:40 min | 1:20 min, 1:20 min | match_shape 0.7 for 0.8 |" in lines[3]
    assert "`dirty` with changes" in lines[4]
    assert "a \\| b" in lines[5]


def test_the_table_of_the_page_is_that_of_the_ledger(speedrun: ModuleType, tmp_path: Path) -> None:
    page, ledger = tmp_path / "page.md", tmp_path / "ledger.jsonl"
    page.write_text(speedrun.PAGE.read_text("utf-8"), "utf-8")
    speedrun.write_table(speedrun.read(speedrun.LEDGER), page)
    assert page.read_text("utf-8") == speedrun.PAGE.read_text("utf-8"), "run `benchmarks/speedrun.py --table`"
    speedrun.append(entry(speedrun, 0, 61.0), ledger)
    speedrun.append(entry(speedrun, 1, 62.0), ledger)
    assert [each.seed for each in speedrun.read(ledger)] == [0, 1]
    speedrun.write_table(speedrun.read(ledger), page)
    assert "| 2 of 2 |" in page.read_text("utf-8")
