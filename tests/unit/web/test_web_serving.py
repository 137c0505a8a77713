"""Concurrency in the server: viewers that connect and disconnect, requests that wait, and the worker process. A problem
of one does not affect the others."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from quintet.web.app import Site
from quintet.web.curves import MetricsLog
from quintet.web.folders import Folders, Missing, RunDir
from quintet.web.library import Library
from quintet.web.live import Live, event
from quintet.web.playground import GenerationJob, JobQueue, QueuedJob
from viewing import DEADLINE, write_run

# --- live updates ---------------------------------------------------------------------------------------------


class SlowLibrary(Library):
    """Lists runs only when a test allows it, or fails."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Folders([folder]))
        self.listing = threading.Event()
        self.may_list = threading.Event()
        self.problem: Exception | None = None

    def list(self) -> list[dict[str, Any]]:
        self.listing.set()
        assert self.may_list.wait(DEADLINE)
        if self.problem is not None:
            raise self.problem
        return super().list()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowLibrary:
    monkeypatch.setattr("quintet.web.live.LIST_SECONDS", 0.01)
    monkeypatch.setattr("quintet.web.library.SCAN_SECONDS", 0.0)
    (tmp_path / "runs").mkdir()
    return SlowLibrary(tmp_path / "runs")


async def next_event(viewer: AsyncIterator[bytes]) -> tuple[str, Any]:
    """The next event; keep-alive messages are skipped."""
    while True:
        message = await asyncio.wait_for(anext(viewer), DEADLINE)
        if message.startswith(b"event: "):
            name, _, content = message.decode().removeprefix("event: ").partition("\ndata: ")
            return name, json.loads(content)


def test_viewer_that_leaves_during_the_first_poll_does_not_affect_others(library: SlowLibrary, tmp_path: Path) -> None:
    async def watch() -> None:
        live = Live(library)
        # First the only viewer of the channel leaves, then one of two.
        alone = asyncio.create_task(next_event(live.listen("")))
        await asyncio.to_thread(library.listing.wait, DEADLINE)
        alone.cancel()
        await asyncio.gather(alone, return_exceptions=True)
        assert not live._channels
        staying = live.listen("")
        hello = asyncio.create_task(next_event(staying))
        leaving = asyncio.create_task(next_event(live.listen("")))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        library.may_list.set()
        assert await hello == ("hello", {"version": -1})
        write_run(tmp_path / "runs" / "new")
        name, content = await next_event(staying)
        assert (name, [line["id"] for line in content["changed"]]) == ("runs", ["new"])
        await staying.aclose()  # type: ignore[attr-defined]
        assert not live._channels

    asyncio.run(watch())


def test_viewers_are_disconnected_during_the_first_poll(library: SlowLibrary) -> None:
    async def watch() -> None:
        live = Live(library)
        waiting = asyncio.create_task(next_event(live.listen("")))
        await asyncio.to_thread(library.listing.wait, DEADLINE)
        live.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
        library.may_list.set()

    asyncio.run(watch())


@pytest.mark.parametrize("problem", [Missing("the run is gone"), ZeroDivisionError("a bug")])
def test_any_error_is_sent_and_polling_continues(
    library: SlowLibrary, caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    library.may_list.set()

    async def watch() -> None:
        live = Live(library)
        viewer = live.listen("")
        assert (await next_event(viewer))[0] == "hello"
        library.problem = problem
        assert await next_event(viewer) == ("gone", str(problem))
        library.problem = None
        assert await next_event(viewer) == ("back", {})
        await viewer.aclose()  # type: ignore[attr-defined]

    with caplog.at_level(logging.ERROR):
        asyncio.run(watch())
    # A bug is also logged once, with its traceback.
    assert ["ZeroDivisionError" in (record.exc_text or "") for record in caplog.records] == (
        [True] if isinstance(problem, ZeroDivisionError) else []
    )


def test_event_is_valid_json_for_any_content() -> None:
    content = event("rows", [{"step": 1, "loss": float("nan"), "bad\udcff.png": "</script>\n"}])
    assert content.startswith(b"event: rows\ndata: ")
    decoded = json.loads(content.partition(b"data: ")[2], parse_constant=pytest.fail)
    assert decoded == [{"step": 1, "loss": "nan", "bad?.png": "</script>\n"}]


# --- waiting --------------------------------------------------------------------------------------------------


def test_requests_that_wait_for_all_rows_block_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.web.library.SKETCHED_BYTES", 2**10)
    monkeypatch.setattr("quintet.web.curves.SKETCH_PART_BYTES", 2**10)
    write_run(tmp_path / "run", steps=1_000)
    may_read, advance = threading.Event(), MetricsLog.advance

    def wait(metrics: MetricsLog) -> tuple[bool, list[dict[str, Any]]]:
        assert may_read.wait(DEADLINE)
        return advance(metrics)

    monkeypatch.setattr(MetricsLog, "advance", wait)
    site = Site(Folders([tmp_path]), read_only=True)

    monkeypatch.setattr("quintet.web.library.MAX_READING_SECONDS", 10.0 * DEADLINE)

    async def ask() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = [asyncio.create_task(site.curves(request("/api/curves", "run=run&complete="))) for _ in range(3)]
        try:
            async with asyncio.timeout(DEADLINE):
                for _ in range(5):  # meanwhile the other requests start to wait
                    await site.runs(request("/api/runs"))
            assert not any(task.done() for task in waiting)
        finally:
            may_read.set()
        assert [reply.status_code for reply in await asyncio.gather(*waiting)] == [200] * 3

    asyncio.run(ask())


def request(path: str, query: str = "") -> Request:
    return Request({"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": []})


# --- playground -----------------------------------------------------------------------------------------------


def finished_job(tmp_path: Path) -> QueuedJob:
    """A finished job for a run that does not exist."""

    async def run() -> QueuedJob:
        queue = JobQueue()
        job = queue.start("run", RunDir(str(tmp_path), str(tmp_path / "run")), GenerationJob("a"))
        assert queue._task is not None
        await queue._task
        assert not queue.busy
        await queue.close()
        return job

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("read job; head -c 100000 /dev/zero | tr '\\0' x; echo; read more", "gave no answer"),
        ("exit 1", "gave no answer"),
        (None, "cannot be started: No such file or directory"),
    ],
)
def test_worker_that_does_not_answer_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, message: str
) -> None:
    worker = tmp_path / "worker"
    if program is not None:
        worker.write_text(f"#!/bin/sh\n{program}\n")
        worker.chmod(0o755)
    monkeypatch.setattr("quintet.web.playground.sys", SimpleNamespace(executable=str(worker)))
    job = finished_job(tmp_path)
    assert job.state == "failed"
    assert message in job.message


def test_file_in_the_current_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("open('imported', 'w').close()\nfrom nothing import loads\n")
    monkeypatch.chdir(tmp_path)
    assert "does not exist" in finished_job(tmp_path).message
    assert not (tmp_path / "imported").exists()


def test_long_error_is_truncated() -> None:
    code = (
        "from quintet.web import worker\n"
        "def fail(self, job): raise ValueError('x' * 100_000)\n"
        "worker.Worker.generate = fail\nworker.main()\n"
    )
    output = subprocess.run([sys.executable, "-c", code], input=b"{}\n", capture_output=True, check=True).stdout
    assert json.loads(output)["error"] == "ValueError: " + "x" * 988
