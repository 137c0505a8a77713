"""`quintet demo`: every medium runs completely, continues after an interruption, and ends with a table of metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from helpers import error_line, quintet, succeed
from quintet import demos
from quintet.demos.demo import Demo, DemoMode, Metric, Row, Schedule, Stage, lines, row_of
from quintet.demos.media import ema_decay

STEPS = 6


def tiny(demo: Demo) -> Demo:
    """The same demo with almost no training."""
    quick = Schedule(STEPS, STEPS // 2)
    stages = tuple(replace(stage, quick=quick, keys=_light(stage)) for stage in demo.stages)
    small = {"quick_num": 60, "quick_num_judged": 4, "num_per_text": 1, "texts": demo.texts[:2], "preset": "debug"}
    return replace(demo, stages=stages, **small)


def _light(stage: Stage) -> Callable[[int, int], Sequence[str]]:
    """Without worker processes, which take longer to start than this test."""
    return lambda steps, num_judged: (*stage.keys(steps, num_judged), "data.num_workers=0", "log.trackers=[]")


@pytest.fixture(autouse=True)
def _tiny_demos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demos, "DEMOS", {medium: tiny(demo) for medium, demo in demos.DEMOS.items()})


@pytest.mark.parametrize("medium", demos.DEMOS)
def test_demo_runs_from_data_to_the_page_only_once(medium: str, tmp_path: Path) -> None:
    out, demo = tmp_path / "demo", demos.DEMOS[medium]
    output = succeed("demo", medium, "--out", out).output
    order = [line.split()[2] for line in output.splitlines() if line.startswith("$ quintet")]
    assert [order.index(verb) for verb in ("data", "train", "sample", "eval", "view")] == sorted(
        order.index(verb) for verb in ("data", "train", "sample", "eval", "view")
    )
    assert order.count("train") == order.count("eval") == len(demo.stages)
    table = output[output.index("stage  ") :]
    for stage in demo.stages:
        assert re.search(rf"^{stage.name} +steps +{STEPS} +\d+m\d\ds$", table, re.MULTILINE), table
        for metric in stage.metrics:
            (line,) = [
                each for each in table.splitlines() if each.split("  ")[0] == "" and f"  {metric.label}  " in each
            ][:1]
            assert ("reached" in line) == (metric.quick is not None)
            assert metric.quick is None or f" {100 * metric.quick:.1f} %" in line
    assert "not reached" in table
    assert re.search(r"^total +\d+m\d\ds$", table, re.MULTILINE)
    assert re.search(r"^\d of \d+ targets reached$", table, re.MULTILINE)
    assert f"next: quintet view {out}" in table
    assert all(stage.name in (out / "page.html").read_text("utf-8") for stage in demo.stages)
    again = succeed("demo", medium, "--out", out).output
    assert not {"train", "resume", "data", "eval", "sample", "view"} & {
        line.split()[2] for line in again.splitlines() if line.startswith("$ quintet")
    }
    assert again[again.index("stage  ") :].splitlines()[0] == table.splitlines()[0]


def test_minutes_are_shared_by_the_stages_and_missing_steps_are_reported(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    output = succeed("demo", "image", "--minutes", "0.2", "--out", out).output
    plans = json.loads((out / "demo.json").read_text("utf-8"))["plans"]
    tokenizer, muse = plans["tokenizer"], plans["muse"]
    assert tokenizer["seconds"] == pytest.approx(0.3 * 12)
    assert 0 < muse["seconds"] < 12
    assert tokenizer["steps"] == int(3.6 * demos.DEMOS["image"].stages[0].steps_per_second)
    for name, plan in plans.items():
        config = (out / name / "config.yaml").read_text("utf-8")
        assert f"decay_steps: {plan['steps']}\n" in config
        assert re.search(r"^  minutes: 0\.\d+$", config, re.MULTILINE)
        taken = json.loads((out / name / "state.json").read_text("utf-8"))["step"]
        shown = f"{taken:,}" if taken == plan["steps"] else f"{taken:,} of {plan['steps']:,}, stopped at its time limit"
        assert re.search(rf"^{name} +steps +{shown} ", output, re.MULTILINE), output
    assert "no targets: " in output
    assert " reached" not in output[output.index("stage  ") :].replace("targets reached", "")
    assert "$ quintet resume" not in succeed("demo", "image", "--minutes", "0.2", "--out", out).output


def test_interrupted_demo_continues_with_its_stage(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    succeed("demo", "mesh", "--out", out)
    (out / "page.html").unlink()
    ledger = json.loads((out / "demo.json").read_text("utf-8"))
    ledger["plans"]["transformer"]["steps"] += 2
    (out / "demo.json").write_text(json.dumps(ledger), "utf-8")
    output = succeed("demo", "mesh", "--out", out).output
    assert [line.split()[2] for line in output.splitlines() if line.startswith("$ quintet")] == [
        "resume",
        "eval",
        "view",
    ]
    assert re.search(rf"^transformer +steps +{STEPS + 2} ", output, re.MULTILINE)
    spent = json.loads((out / "demo.json").read_text("utf-8"))["seconds"]
    assert spent["transformer"] > ledger["seconds"]["transformer"]
    assert spent["data"] == ledger["seconds"]["data"]


def test_another_mode_of_a_demo_needs_another_folder(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text(json.dumps({"command": "quintet demo image --full"}), "utf-8")
    sentence = error_line(quintet("demo", "image", "--out", tmp_path).errors)
    assert (
        "was started by `quintet demo image --full`: continue with that command, or choose another folder" in sentence
    )
    assert not (tmp_path / "data").exists()
    (tmp_path / "demo.json").write_text("{", "utf-8")
    assert "demo.json cannot be read" in error_line(quintet("demo", "image", "--out", tmp_path).errors)
    assert "choose one" in error_line(quintet("demo", "--full", "--minutes", "5", "--out", tmp_path).errors)


def test_all_media_share_the_minutes_and_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, float | None]] = []

    def run(demo: demos.DemoRun) -> list[Row]:
        calls.append((demo.out.name, demo.mode.minutes))
        return [Row("stage", "steps", "5", seconds=61.0), Row("", "metric", "1 %", ">= 2 %", "not reached")]

    monkeypatch.setattr(demos.DemoRun, "run", run)
    output = succeed("demo", "all", "--minutes", "8", "--out", tmp_path).output
    assert calls == [("image", 2.0), ("video", 2.0), ("audio", 2.0), ("mesh", 2.0)]
    assert output.count("stage         metric") == 1
    assert [line.split()[0] for line in output.splitlines() if "1m01s" in line] == [
        "image:",
        "video:",
        "audio:",
        "mesh:",
    ]
    assert "0 of 4 targets reached" in output


def test_each_length_has_its_own_targets_and_keys(tmp_path: Path) -> None:
    commands: list[Sequence[str]] = []
    demo = demos.DEMOS["image"]
    tokenizer = demo.stages[0]
    schedules = {"quick": replace(tokenizer.quick, keys=("model.dim=8",)), "full": replace(tokenizer.full, keys=())}
    demo = replace(demo, stages=(replace(tokenizer, **schedules), *demo.stages[1:]))

    def call(words: Sequence[str]) -> int:
        commands.append(words)
        raise KeyboardInterrupt

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metadata.jsonl").touch()
    for mode in (DemoMode(), DemoMode(full=True), DemoMode(minutes=5.0), DemoMode(minutes=60.0, seed=3)):
        with pytest.raises(KeyboardInterrupt):
            demos.DemoRun(demo, tmp_path, mode, demos.Script(call, print)).run()
        (tmp_path / "demo.json").unlink()
    assert ["model.dim=8" in words for words in commands] == [True, False, True, False]
    assert ["train.seed=3" in words for words in commands] == [False, False, False, True]
    limits = (DemoMode(minutes=demo.minutes - 1.0), DemoMode(minutes=float(demo.minutes)))
    assert [demo.length(mode) for mode in limits] == [None, "full"]


def test_a_demo_ends_with_the_exit_code_of_its_command(tmp_path: Path) -> None:
    commands: list[str] = []

    def call(words: Sequence[str]) -> int:
        commands.append(words[0])
        if len(commands) > 1:
            raise AssertionError(f"{words[0]} after a failure")
        return 130

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metadata.jsonl").touch()
    with pytest.raises(SystemExit) as stopped:
        demos.DemoRun(demos.DEMOS["image"], tmp_path, DemoMode(), demos.Script(call, print)).run()
    assert (stopped.value.code, commands) == (130, ["train"])


@pytest.mark.parametrize(("steps", "decay"), [(1, 0.5), (20, 0.5), (100, 0.8), (2000, 0.99)])
def test_the_decay_of_the_weights_fits_every_length(steps: int, decay: float) -> None:
    assert ema_decay(steps) == decay


def test_target_is_reached_missed_or_not_measured() -> None:
    shape = Metric("match", "shape", quick=0.7, full=0.9)
    assert row_of(shape, {"match": 0.8}, "full") == Row("", "shape", "80.0 %", ">= 90.0 %", "not reached")
    assert row_of(shape, {"match": 0.8}, "quick") == Row("", "shape", "80.0 %", ">= 70.0 %", "reached")
    assert row_of(shape, {"match": 0.8}, None) == Row("", "shape", "80.0 %", "", "")
    assert row_of(shape, {}, None) == Row("", "shape", "not measured", "", "")
    least = Metric("distance", "distance", full=0.02, unit="", digits=3, lower_is_better=True, note="Opus")
    assert row_of(least, {"distance": 0.01}, "full") == Row("", "distance", "0.010", "<= 0.020 (Opus)", "reached")
    assert row_of(least, {"distance": 0.01}, "quick") == Row("", "distance", "0.010", "", "")
    assert row_of(least, {"distance": float("nan")}, "full").verdict == "not reached"
    assert row_of(least, {}, "full") == Row("", "distance", "not measured", "<= 0.020 (Opus)", "not reached")
    head, rule, *rest = lines([Row("a", "b", "1", seconds=70.0), Row("", "longer", "22", ">= 3", "reached")])
    assert rest == ["a      b              1                   1m10s", "       longer        22  >= 3    reached"]
    assert len(head) <= len(rule)
