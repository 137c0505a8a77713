"""Invalid input to `quintet view` in a separate process: the page reports it and keeps working."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import environment, error_line, quintet
from quintet.web.server import LOOPBACK
from viewing import add_row, add_samples, row, viewing, wait_for, write_run

READ_ONLY = (
    "unshare",
    "--mount",
    "--map-root-user",
    "sh",
    "-c",
    'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"',
)
"""The folder in the next argument is read-only for the command after it."""


def test_empty_folder_has_no_runs_until_the_first_one_appears(tmp_path: Path) -> None:
    with viewing(tmp_path) as (site, output):
        assert output.startswith("0 runs in ")
        assert site.ask("/").status == 200
        assert site.ask("/api/runs").json["runs"] == []
        assert site.ask("/api/run?run=x").json == {"problem": "there is no run x"}
        write_run(tmp_path / "first")
        wait_for(lambda: len(site.ask("/api/runs").json["runs"]) == 1, "the new run is listed")


def test_half_written_last_line_waits_until_it_is_complete(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    line = row(110)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(line[:40])
    with viewing(tmp_path) as (site, _):
        last = "/api/curves?run=run&name=train/lr&from=95"
        assert site.ask("/api/runs").json["runs"][0]["state"] == "finished"
        assert site.ask("/api/run?run=run").json["rows"] == 10
        assert site.ask(last).json["train/lr"]["steps"] == [90, 100]
        with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line[40:])
        add_row(run, 120)
        wait_for(lambda: site.ask("/api/run?run=run").json["rows"] == 12, "the rest of the line is read")
        assert site.ask(last).json["train/lr"]["steps"] == [90, 100, 110, 120]


def test_deleted_run_is_reported_and_other_runs_stay(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    write_run(tmp_path / "other")
    with viewing(tmp_path) as (site, _):
        for name, content in site.news("/api/events?run=run"):
            if name == "hello":
                shutil.rmtree(tmp_path / "run")
            if name == "gone":
                assert "no longer exists" in content
                break
        reply = site.ask("/api/run?run=run")
        assert (reply.status, "no longer exists" in reply.json["problem"] or "no run" in reply.json["problem"]) == (
            404,
            True,
        )
        wait_for(lambda: [each["id"] for each in site.ask("/api/runs").json["runs"]] == ["other"], "it left the list")
        assert site.ask("/api/run?run=other").status == 200


def test_missing_media_are_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (add_samples(run, 10, count=2) / "000-made.png").unlink()
    with viewing(tmp_path) as (site, _):
        assert [each.get("missing", False) for each in site.ask("/api/samples?run=run&step=10").json] == [True, False]
        reply = site.ask("/media?run=run&step=10&file=000-made.png")
        assert (reply.status, reply.json) == (404, {"problem": "000-made.png is missing"})
        assert site.ask("/media?run=run&step=10&file=001-made.png").status == 200


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = quintet("view", tmp_path, "--port", port, "--no-browser")
    assert outcome.code == 2
    assert error_line(outcome.errors) == f"error: port {port} is in use; choose another with --port, or leave it out"


def test_read_only_file_system_is_served(tmp_path: Path) -> None:
    if subprocess.run([*READ_ONLY, str(tmp_path), "true"], capture_output=True, check=False).returncode:
        pytest.skip("cannot create a namespace with a read-only folder")
    add_samples(write_run(tmp_path / "runs" / "run"), 10)
    runs = tmp_path / "runs"
    within = (*READ_ONLY, str(runs))
    with viewing(runs, within=within) as (site, _):
        paths = ("/", "/api/runs", "/api/run?run=run", "/api/samples?run=run&step=10")
        assert [site.ask(path).status for path in paths] == [200] * len(paths)
        assert site.ask("/media?run=run&step=10&file=000-made.png").status == 200
    words = [*within, sys.executable, "-m", "quintet", "view", str(runs), "--export", str(runs / "page.html")]
    refused = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
    assert (refused.returncode, "Read-only file system" in error_line(refused.stderr)) == (2, True)
    assert sorted(path.name for path in runs.iterdir()) == ["run"]
