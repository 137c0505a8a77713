"""Runs are read from disk as they are: growing, rewritten, half written, damaged, or not runs at all."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from quintet.errors import UsageError
from quintet.web import detail, samples
from quintet.web.curves import Column, MetricsLog
from quintet.web.folders import Folders, Missing, RunDir
from quintet.web.library import Library
from quintet.web.summary import summarise
from viewing import DEADLINE, add_row, add_samples, row, write_run, write_state


def run_dir_of(folder: Path) -> RunDir:
    return RunDir(str(folder.resolve()), str(folder.resolve()))


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    code = (
        "import sys\nfrom pathlib import Path\nfrom quintet.web.folders import Folders\n"
        "from quintet.web.library import Library\nimport quintet.web.app, quintet.web.server, quintet.web.export\n"
        "library = Library(Folders([Path(sys.argv[1])])); run = library.find('a'); run.refresh()\n"
        "assert library.list() and run.describe(False)['rows'] == 10\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_items_of_a_run_on_shards_are_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    record = {"fingerprint": "x", "notes": ["a"], "skipped": {"b": "c"}, "train": 950_000, "validation": ["d", "e"]}
    (run / "data.json").write_text(json.dumps(record))
    assert detail.data(run_dir_of(run))["counts"] == {"train": 950_000, "validation": 2}


# --- metrics --------------------------------------------------------------------------------------------------


def test_rows_are_read_as_they_are_added_and_a_half_written_line_waits(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=30)
    metrics = MetricsLog(run_dir_of(run))
    reset, rows = metrics.advance()
    assert (reset, [each["step"] for each in rows]) == (False, [10, 20, 30])
    line = row(40)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(line[:25])
    assert metrics.advance() == (False, [])
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(line[25:])
    assert [each["step"] for each in metrics.advance()[1]] == [40]
    assert list(metrics.columns["train/lr"].steps) == [10, 20, 30, 40]


def test_only_new_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", steps=5_000)
    metrics = MetricsLog(run_dir_of(run))
    metrics.advance()
    read: list[int] = []
    pieces = MetricsLog._pieces

    def counted(self: MetricsLog, file: object) -> object:
        read.append(os.fstat(file.fileno()).st_size - file.tell())  # type: ignore[attr-defined]
        return pieces(self, file)

    monkeypatch.setattr(MetricsLog, "_pieces", counted)
    add_row(run, 5_010)
    metrics.advance()
    assert read == [len(row(5_010))]


def test_long_run_is_sketched_first_and_then_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.web.library.SKETCHED_BYTES", 2**16)
    monkeypatch.setattr("quintet.web.curves.SKETCH_PART_BYTES", 2**10)
    run = write_run(tmp_path / "run", steps=30_000)
    reading, may_read = threading.Event(), threading.Event()
    advance = MetricsLog.advance

    def wait(metrics: MetricsLog) -> tuple[bool, list[dict[str, Any]]]:
        reading.set()
        assert may_read.wait(DEADLINE)
        return advance(metrics)

    monkeypatch.setattr(MetricsLog, "advance", wait)
    watched = Library(Folders([tmp_path])).find("run")
    watched.refresh()
    about = watched.describe(True)
    assert (about["sketched"], 64 < about["rows"] < 1_000) == (True, True)
    sketched = watched.curves(["train/generator/loss"], -math.inf, math.inf, 4_000)["train/generator/loss"]
    assert (sketched["steps"][0], sketched["steps"][-1]) == (10, 30_000)
    assert reading.wait(DEADLINE)
    watched.refresh()
    assert watched.sketched
    add_row(run, 30_010)
    before = watched.version
    may_read.set()
    asyncio.run(watched.wait_until_complete())
    assert watched.news().reset
    watched.refresh()
    assert (watched.describe(True)["rows"], watched.describe(True)["sketched"]) == (3_001, False)
    assert watched.version > before


def test_file_rewritten_by_a_resumed_run_is_read_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=100)
    metrics = MetricsLog(run_dir_of(run))
    metrics.advance()
    shorter = run / "shorter"
    shorter.write_text(row(10) + row(20), encoding="utf-8")
    shorter.replace(run / "metrics.jsonl")
    assert metrics.advance()[0]
    assert list(metrics.columns["train/lr"].steps) == [10, 20]
    (run / "metrics.jsonl").unlink()
    assert metrics.advance() == (True, [])
    assert metrics.columns == {}


def test_invalid_lines_are_skipped(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=10)
    bad = ['{"step": 1', "[]", "7", '{"loss": 1}', '{"step": "x"}', '{"step": NaN}', "\x00\xff", "[" * 5_000, ""]
    values = f'{{"step": 5, "a": 1e999, "b": null, "c": "text", "d": true, "e": NaN, "f": {10**400}, "g": 2}}'
    (run / "metrics.jsonl").write_text("\n".join([*bad, values]) + "\n", encoding="utf-8")
    metrics = MetricsLog(run_dir_of(run))
    metrics.advance()
    assert {name: list(column.values) for name, column in metrics.columns.items() if column.values} == {"g": [2.0]}


def test_reduced_points_preserve_means_and_extremes() -> None:
    column = Column()
    rng = np.random.default_rng(0)
    values = rng.normal(size=100_000)
    values[54_321] = 1_000
    column.steps.extend(range(100_000))
    column.values.extend(values)
    points = column.points(-np.inf, np.inf, 500)
    assert {len(each) for each in points.values()} == {500}
    assert max(points["high"]) == 1_000
    assert min(points["low"]) == pytest.approx(values.min(), rel=1e-5)
    assert np.mean(points["mean"]) == pytest.approx(values.mean(), abs=1e-3)
    near = column.points(54_300, 54_340, 500)
    assert near["steps"] == list(range(54_299, 54_342))
    assert near["mean"][22] == 1_000
    assert "low" not in near


# --- the list -------------------------------------------------------------------------------------------------


def test_summary_has_the_newest_rates_that_are_numbers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert summarise(run_dir_of(run), "run")["rates"] == {}
    rates = {"items_per_second": 9.5, "tokens_per_second": 1e4, "flops_per_second": 4.5e10, "mfu": math.nan}
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(row(110, **{f"train/rate/{name}": value for name, value in rates.items()}))
    expected = {name: value for name, value in rates.items() if name != "mfu"}
    assert summarise(run_dir_of(run), "run")["rates"] == expected


def test_summary_has_state_step_rate_time_left_best_and_device(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", status="running", steps=100)
    write_state(run, recipe="vqgan", status="running", step=100, steps=200)
    line = summarise(run_dir_of(run), "run")
    assert (line["state"], line["recipe"], line["step"], line["steps"], line["device"]) == (
        *("running", "vqgan", 100, 200),
        "cpu",
    )
    assert line["rate"] == pytest.approx(5.0)
    assert line["left"] == pytest.approx(20.0)
    assert line["best"] == {"metric": "psnr", "value": 21.5, "step": 50}


@pytest.mark.parametrize(
    ("step", "status", "estimating"), [(99, "running", True), (100, "running", False), (5, "stopped", False)]
)
def test_the_time_left_is_an_estimate_for_the_first_hundred_steps(
    step: int, status: str, estimating: bool, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", status=status, steps=100)
    write_state(run, recipe="vqgan", status=status, step=step, steps=200)
    assert summarise(run_dir_of(run), "run")["estimating"] is estimating


def test_a_run_whose_process_is_gone_has_failed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_state(run, status="running", step=3, steps=9, pid=ended.pid, host=socket.gethostname())
    line = summarise(run_dir_of(run), "run")
    assert line["state"] == "failed"
    assert "its process was killed" in line["note"]
    write_state(run, status="running", step=3, steps=9, pid=os.getpid(), host=socket.gethostname())
    assert summarise(run_dir_of(run), "run")["state"] == "running"
    write_state(run, status="running", step=3, steps=9, heartbeat=time.time() - 7_200)  # on another machine
    assert "no heartbeat for 2.0 hours" in summarise(run_dir_of(run), "run")["note"]
    write_state(run, status="failed", error="out of memory")
    assert summarise(run_dir_of(run), "run")["note"] == "out of memory"


def test_on_this_machine_the_process_decides_not_the_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.web.summary.SILENT_SECONDS", -1.0)
    run = write_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    write_state(run, status="running", pid=os.getpid(), host=socket.gethostname())
    assert summarise(run_dir_of(run), "run")["state"] == "running"
    write_state(run, status="running")
    assert summarise(run_dir_of(run), "run")["state"] == "failed"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux reports the start time of a process")
def test_pid_of_a_younger_process_is_not_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    write_state(run, status="running", pid=os.getpid(), host=socket.gethostname(), heartbeat=boot - 3_600)
    assert "its process was killed" in summarise(run_dir_of(run), "run")["note"]


def test_killed_run_is_news_without_a_changed_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        write_state(run, status="running", pid=process.pid, host=socket.gethostname())
        watched = Library(Folders([tmp_path])).find("run")
        watched.refresh()
        before, news = watched.version, watched.news()
        assert (news.summary or {})["state"] == "running"
        watched.refresh()
        assert (watched.version, watched.news().summary) == (before, None)
        process.kill()
    watched.refresh()
    assert watched.version > before
    assert (watched.news().summary or {})["state"] == "failed"


def test_metrics_do_not_grow_while_they_are_described(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    watched = Library(Folders([tmp_path])).find("run")
    watched.refresh()

    class Guarded(dict[str, Column]):
        def items(self) -> Any:
            assert watched.lock.locked()
            return super().items()

    watched.metrics.columns = Guarded(watched.metrics.columns)
    assert watched.describe(True)["metrics"]["train/lr"] == 10


@pytest.mark.parametrize("content", ["", "{", "[]", '{"status": 3}', '{"status": "running", "step": 1e999}', "\x00"])
def test_damaged_state_raises_no_error(tmp_path: Path, content: str) -> None:
    run = write_run(tmp_path / "run")
    (run / "state.json").write_text(content, encoding="utf-8")
    line = summarise(run_dir_of(run), "run")
    assert line["state"] in ("stopped", "failed")
    assert line["recipe"] == "vqgan"
    json.dumps(line, allow_nan=False)


def test_runs_are_found_below_the_folders_and_nothing_else_is(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "demo" / "b")
    (tmp_path / "runs" / "data" / "images").mkdir(parents=True)
    write_run(tmp_path / "runs" / "a" / "tokenizer")  # belongs to a
    write_run(tmp_path / "other" / "c")
    library = Library(Folders([tmp_path / "runs"]))
    assert {line["id"] for line in library.list()} == {"a", "demo/b"}
    both = Library(Folders([tmp_path / "runs", tmp_path / "other"]))
    assert {line["id"] for line in both.list()} == {"runs/a", "runs/demo/b", "other/c"}
    assert [line["id"] for line in Library(Folders([tmp_path / "other" / "c"])).list()] == ["c"]
    with pytest.raises(UsageError, match=r"nowhere does not exist; name a run folder, or a folder that contains runs"):
        Folders([tmp_path / "nowhere"])


def test_folder_name_that_is_not_text_has_an_escaped_id(tmp_path: Path) -> None:
    write_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff")))
    library = Library(Folders([tmp_path]))
    (line,) = library.list()
    assert line["id"] == "b\\xff"
    assert library.find(line["id"]).run_dir.exists()


def test_a_run_that_appears_is_listed_and_one_that_goes_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.web.library.SCAN_SECONDS", 0.0)
    library = Library(Folders([tmp_path]))
    assert library.list() == []
    run = write_run(tmp_path / "new")
    assert [line["id"] for line in library.list()] == ["new"]
    watched = library.find("new")
    watched.refresh()
    for path in sorted(run.rglob("*"), reverse=True):
        path.unlink()
    run.rmdir()
    assert library.list() == []
    with pytest.raises(Missing, match="no longer exists"):
        watched.refresh()
    with pytest.raises(Missing, match="no longer exists"):
        library.find("new")


# --- links ----------------------------------------------------------------------------------------------------


def test_links_out_of_the_folder_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    write_run(secret / "run")
    (secret / "word.png").write_text("secret")
    root = tmp_path / "root"
    run = write_run(root / "run")
    folder = add_samples(run, 10)
    (folder / "out.png").symlink_to(secret / "word.png")
    (run / "samples" / "step-00000020").symlink_to(secret)
    (root / "linked").symlink_to(secret / "run")
    (run / "eval.json").symlink_to(secret / "run" / "state.json")
    (run / "log.txt").unlink()
    (run / "log.txt").symlink_to("/etc/hostname")
    library = Library(Folders([root]))
    assert [line["id"] for line in library.list()] == ["run"]
    watched = library.find("run")
    watched.refresh()
    about = watched.describe(False)
    assert about["console"] == ""
    assert about["evaluated"] == {}
    for parts in (
        ("step-00000010", "out.png"),
        ("step-00000020", "word.png"),
        ("..", "state.json"),
        ("step-00000010", ""),
    ):
        with pytest.raises(Missing):
            samples.media(watched.run_dir, "samples", *parts)
    inside = root / "elsewhere"
    inside.symlink_to(run)
    assert samples.media(watched.run_dir, "samples", "step-00000010", "000-made.png")[1] == "image/png"


def test_named_pipe_does_not_block_the_reader(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    metrics = MetricsLog(run_dir_of(run))
    assert metrics.advance() == (False, [])


# --- the rest of a run ----------------------------------------------------------------------------------------


def test_samples_are_listed_with_captions_and_missing_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    folder = add_samples(run, 10, ("png", "wav", "glb", "obj"), caption="<script>alert(1)</script>")
    (folder / "000-made.wav").unlink()
    (folder / "page.html").write_text("<script>alert(1)</script>")
    (folder / "extra.png").write_bytes(b"")
    for name in ("clip.mp4", "clip.gif", "lone.gif"):
        (folder / name).write_bytes(b"")
    with (folder / "samples.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"file": "clip.mp4", "rows": "input, reconstruction"}) + "\n")
    found = samples.entries(run_dir_of(run), "samples", "step-00000010")
    assert [(each["file"], each["kind"], each.get("missing", False)) for each in found] == [
        ("000-made.png", "image", False),
        ("000-made.wav", "audio", True),
        ("000-made.glb", "mesh", False),
        ("clip.mp4", "video", False),
        ("extra.png", "image", False),
        ("lone.gif", "image", False),
    ]
    assert found[3]["rows"] == "input, reconstruction"
    assert found[0]["text"] == "<script>alert(1)</script> 0"
    assert samples.steps(run_dir_of(run)) == [10]
    for file in ("page.html", "samples.jsonl", "nothing.png"):
        with pytest.raises(Missing):
            samples.media(run_dir_of(run), "samples", "step-00000010", file)


def test_configuration_is_shown_beside_its_preset(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=77)
    found = detail.configuration(run_dir_of(run))
    differing = {key for key, value in found["keys"].items() if found["preset_keys"].get(key) != value}
    assert found["problem"] is None
    assert differing == {"train.steps"}
    (run / "config.yaml").write_text("recipe: not-yet-written\nmodel:\n  dim: 3\n", encoding="utf-8")
    later = detail.configuration(run_dir_of(run))
    assert later["keys"]["model.dim"] == 3
    assert "unknown recipe" in later["problem"]
    (run / "config.yaml").write_text("{", encoding="utf-8")
    assert "is not YAML" in detail.configuration(run_dir_of(run))["problem"]


def test_checkpoints_and_code_usage_are_read_from_the_newest(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for step in (5, 10):
        folder = run / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text("{}")
        counts = np.array([0, 10, 30, 0], dtype=np.float32)
        names = [f"quantizer.quantizers.{level}.cluster_size" for level in (0, 1, 10, 2)]
        save_file({name: counts + number for number, name in enumerate(names)}, folder / "vae.safetensors")
    (run / "checkpoints" / "best").write_text("step-00000005\n")
    found = detail.checkpoints(run_dir_of(run))
    assert [(each["step"], each["marks"]) for each in found] == [(5, ["best"]), (10, [])]
    assert found[0]["bytes"] > 64
    codes = detail.codes(run_dir_of(run))
    assert codes is not None
    assert codes["step"] == 10
    assert codes["levels"][0] == {"size": 4, "used": 0.5, "cells": [0.0, 1.0, 3.0, 0.0]}
    assert codes["levels"][3]["cells"][0] == pytest.approx(4 * 2 / 48, abs=1e-3)  # level 10 comes after level 2
    (run / "checkpoints" / "step-00000010" / "vae.safetensors").write_bytes(b"broken")
    assert (detail.codes(run_dir_of(run)) or {})["step"] == 5


def test_playground_needs_a_finished_generator(tmp_path: Path) -> None:
    muse = write_run(tmp_path / "muse", "muse")
    keys = detail.configuration(run_dir_of(muse))["keys"]
    line = summarise(run_dir_of(muse), "muse")
    assert detail.playground(keys, line, saved=True) == {"guidance_scale": 3.0, "steps": 4, "step_list": False}
    assert detail.playground(keys, {**line, "state": "running"}, saved=True) is None
    assert detail.playground(keys, line, saved=False) is None
    assert detail.playground(keys, {**line, "recipe": "vqgan"}, saved=True) is None
