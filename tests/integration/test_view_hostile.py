"""Runs and clients that try to freeze or exhaust `quintet view`: one run can only hurt itself, and nobody is locked
out."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from helpers import environment
from quintet.web.server import LOOPBACK
from viewing import add_samples, serving, viewing, write_run

pytestmark = pytest.mark.fault("hostile-page")

HUGE = "1" + "0" * 400


def write_checkpoint(run: Path, **tensors: np.ndarray) -> Path:
    folder = run / "checkpoints" / "step-00000100"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "vae.safetensors")
    return folder


def add_pipe(run: Path) -> None:
    os.mkfifo(write_checkpoint(run) / "a.safetensors")


def add_counts(values: list[float]) -> Callable[[Path], None]:
    return lambda run: void(write_checkpoint(run, **{f"layers.{'7' * 5000}.cluster_size": np.array(values, "f4")}))


def void(_: object) -> None:
    pass


def add_rows(*rows: str) -> Callable[[Path], None]:
    def add(run: Path) -> None:
        with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write("".join(f"{row}\n" for row in rows))

    return add


def replace(name: str, text: str) -> Callable[[Path], None]:
    return lambda run: void((run / name).write_text(text, encoding="utf-8"))


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def large_rows() -> list[str]:
    return [f'{{"step": {step}e300, "time": {step}, "train/lr": 1.7e308}}' for step in range(2_000)]


HOSTILE: dict[str, Callable[[Path], None]] = {
    "a pipe in a checkpoint": add_pipe,
    "a time of 400 digits": add_rows(f'{{"step": 110, "time": {HUGE}, "train/lr": 1}}', '{"step": 120, "time": 1}'),
    "a negative and a huge step": add_rows(
        '{"step": -1e300, "time": 1, "train/lr": 1}', f'{{"step": 1{"0" * 299}, "time": 5e-324, "train/lr": 1}}'
    ),
    "a step of 400 digits": add_rows(f'{{"step": {HUGE}, "time": 1, "train/lr": 1}}'),
    "not numbers": add_rows('{"step": NaN, "time": NaN}', '{"step": 120, "time": Infinity, "train/lr": -Infinity}'),
    "values whose sum is infinite": add_rows(*large_rows()),
    "a nested row": add_rows(f'{{"step": 110, "time": 1, "train/lr": {deep(900)}}}'),
    "an empty count": add_counts([]),
    "counts that are not finite": add_counts([float("nan"), float("inf"), -1.0]),
    "counts without a sum": add_counts([0.0] * 1025),
    "a state of huge numbers": replace("state.json", json.dumps(dict.fromkeys(("step", "steps", "pid"), 10**400))),
    "a nested configuration": replace("config.yaml", f"recipe: vqgan\nmodel: {deep(60)}\n"),
    "a deeply nested configuration": replace("config.yaml", f"recipe: vqgan\nmodel: {deep(5_000)}\n"),
    "nested data": replace("data.json", f'{{"skipped": {{"a": {deep(900)}}}, "train": {HUGE}}}'),
    "nested samples": lambda run: void(replace("samples.jsonl", deep(900))(add_samples(run, 10))),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_one_run_cannot_hide_itself_or_another(kind: str, tmp_path: Path) -> None:
    HOSTILE[kind](write_run(tmp_path / "bad", status="running"))
    write_run(tmp_path / "good")
    paths = ["/api/runs", "/api/samples?run=bad&step=10", "/api/run?run=good", "/api/run?run=bad"]
    with serving(tmp_path) as site:
        assert [site.ask(path).status for path in paths] == [200] * len(paths)
        assert {each["id"] for each in site.ask("/api/runs").json["runs"]} == {"bad", "good"}
        about = site.ask("/api/run?run=bad").json
        names = "".join(f"&name={name}" for name in about["metrics"])
        curves = site.ask(f"/api/curves?run=bad&points=10{names}")
        assert (curves.status, [*curves.json]) == (200, [*about["metrics"]])


def test_a_header_that_lies_about_its_tensors_is_skipped(tmp_path: Path) -> None:
    folder = write_checkpoint(write_run(tmp_path / "run"), **{"0.cluster_size": np.arange(4, dtype="f4")})
    lies = [
        {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]},
        {"dtype": "F32", "shape": [4], "data_offsets": [2**70, 2**70 + 16]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [16, 0]},
        {"dtype": "F32", "shape": ["4"], "data_offsets": None},
        {"dtype": [], "shape": [], "data_offsets": []},
        [],
    ]
    for number, lie in enumerate(lies):
        header = json.dumps({"0.cluster_size": lie}).encode()
        (folder / f"lie-{number}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "long.safetensors").write_bytes(b"\xff" * 100)
    with serving(tmp_path) as site:
        codes = site.ask("/api/run?run=run").json["codes"]
        assert [level["cells"] for level in codes["levels"]] == [[0.0, 0.667, 1.333, 2.0]]


def test_a_reader_that_fails_shows_its_problem_beside_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checkpoints(_: object) -> None:
        raise ZeroDivisionError("nobody expected this")

    write_run(tmp_path / "run")
    monkeypatch.setattr("quintet.web.detail.checkpoints", checkpoints)
    with serving(tmp_path) as site:
        about = site.ask("/api/run?run=run").json
        assert about["summary"]["note"] == "cannot be read: checkpoints (ZeroDivisionError: nobody expected this)"
        assert (about["checkpoints"], about["data"]["counts"]["train"]) == ([], 3)


# --- clients --------------------------------------------------------------------------------------------------


def resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_made_up_words_in_a_query_do_not_fill_the_memory(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    folder = add_samples(run, 10)
    lines = (json.dumps({"file": f"{number:06d}.png", "text": "x" * 1_900}) for number in range(8_000))
    (folder / "samples.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with serving(tmp_path) as site:
        words = "/api/samples?run=run&step=10&word="
        assert len(site.ask(f"{words}0").body) > 15_000_000
        before = resident_bytes(os.getpid())
        for number in range(1, 20):
            assert site.ask(f"{words}{number}").status == 200
        assert resident_bytes(os.getpid()) - before < 100_000_000


def test_the_cache_of_responses_is_limited_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.web.responses.MAX_CACHE_BYTES", 5_000)
    write_run(tmp_path / "run", steps=500)
    with serving(tmp_path) as site:
        for points in range(20, 50):
            assert site.ask(f"/api/curves?run=run&name=train/lr&points={points}").status == 200
            assert site.server._site._cache.num_bytes <= 5_000


def test_idle_connections_lock_nobody_out(tmp_path: Path) -> None:
    """More connections than the server may have descriptors; the limit is low, so that the test needs few itself."""
    write_run(tmp_path / "run")
    log = tmp_path / "stderr"
    within = ("sh", "-c", f'ulimit -n 256; exec "$@" 2>{log}', "sh")
    with viewing(tmp_path, within=within) as (site, _), ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection((LOOPBACK, site.port), timeout=30))
        for _ in range(3):
            assert site.ask("/api/runs").status == 200
    assert log.read_text() == ""


def test_a_connection_without_a_request_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.web.connections.REQUEST_SECONDS", 0.05)
    write_run(tmp_path / "run")
    with serving(tmp_path) as site:
        for begun in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "):
            with socket.create_connection((LOOPBACK, site.port), timeout=60) as slow:
                slow.sendall(begun)
                answer = b""
                with suppress(ConnectionResetError):
                    answer = slow.recv(100)
                assert answer == b""
        assert next(site.news("/api/events"))[0] == "hello"


def test_without_descriptors_the_server_says_nothing_and_recovers(tmp_path: Path) -> None:
    """Fewer descriptors than connections that are accepted at once."""
    write_run(tmp_path / "run")
    log = tmp_path / "stderr"
    within = ("sh", "-c", f'ulimit -n 40; exec "$@" 2>{log}', "sh")
    with viewing(tmp_path, within=within) as (site, _):
        with ExitStack() as stack:
            for _ in range(80):
                stack.enter_context(socket.create_connection((LOOPBACK, site.port), timeout=30))
        assert site.ask("/api/runs").status == 200
    assert log.read_text() == ""


def test_the_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    script = "from quintet.web.connections import *; raise_file_limit(); print(connection_limit())"
    limited = ["sh", "-c", 'ulimit -S -n 300; exec "$@"', "sh", sys.executable, "-c", script]
    found = subprocess.run(limited, capture_output=True, text=True, env=environment(), check=True)
    assert int(found.stdout) > 300
