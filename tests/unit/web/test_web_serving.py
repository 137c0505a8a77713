"""What goes on in the server at the same time: viewers who come and go, those who wait, and the process that makes
what was asked for. Nobody's trouble is another's."""

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
from quintet.web.figures import Figures
from quintet.web.folders import Folders, Missing, Place
from quintet.web.library import Library
from quintet.web.live import Live, event
from quintet.web.playground import GenerationJob, Job, JobQueue
from viewing import DEADLINE, write_run

# --- news -----------------------------------------------------------------------------------------------------


class Slow(Library):
    """Lists runs when it is let, or fails."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Folders([folder]))
        self.inference_mode = threading.Event()
        self.may_look = threading.Event()
        self.trouble: Exception | None = None

    def list(self) -> list[dict[str, Any]]:
        self.inference_mode.set()
        assert self.may_look.wait(DEADLINE)
        if self.trouble is not None:
            raise self.trouble
        return super().list()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr("quintet.web.live.LIST_SECONDS", 0.01)
    monkeypatch.setattr("quintet.web.library.SCAN_SECONDS", 0.0)
    (tmp_path / "runs").mkdir()
    return Slow(tmp_path / "runs")


async def heard(viewer: AsyncIterator[bytes]) -> tuple[str, Any]:
    """The next event; what is sent to keep a connection is none."""
    while True:
        message = await asyncio.wait_for(anext(viewer), DEADLINE)
        if message.startswith(b"event: "):
            name, _, content = message.decode().removeprefix("event: ").partition("\ndata: ")
            return name, json.loads(content)


def test_whoever_leaves_during_the_first_look_takes_no_news_from_others(library: Slow, tmp_path: Path) -> None:
    async def watch() -> None:
        live = Live(library)
        # Alone, and so with the channel; then as one of two, of whom the other stays.
        alone = asyncio.create_task(heard(live.listen("")))
        await asyncio.to_thread(library.inference_mode.wait, DEADLINE)
        alone.cancel()
        await asyncio.gather(alone, return_exceptions=True)
        assert not live._channels
        staying = live.listen("")
        hello = asyncio.create_task(heard(staying))
        leaving = asyncio.create_task(heard(live.listen("")))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        library.may_look.set()
        assert await hello == ("hello", {"version": -1})
        write_run(tmp_path / "runs" / "new")
        name, content = await heard(staying)
        assert (name, [line["id"] for line in content["changed"]]) == ("runs", ["new"])
        await staying.aclose()  # type: ignore[attr-defined]
        assert not live._channels

    asyncio.run(watch())


def test_viewers_are_let_go_though_the_first_look_does_not_end(library: Slow) -> None:
    async def watch() -> None:
        live = Live(library)
        waiting = asyncio.create_task(heard(live.listen("")))
        await asyncio.to_thread(library.inference_mode.wait, DEADLINE)
        live.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
        library.may_look.set()

    asyncio.run(watch())


@pytest.mark.parametrize("trouble", [Missing("the run is gone"), ZeroDivisionError("a fault of ours")])
def test_trouble_of_any_kind_is_told_and_looking_goes_on(
    library: Slow, caplog: pytest.LogCaptureFixture, trouble: Exception
) -> None:
    library.may_look.set()

    async def watch() -> None:
        live = Live(library)
        viewer = live.listen("")
        assert (await heard(viewer))[0] == "hello"
        library.trouble = trouble
        assert await heard(viewer) == ("gone", str(trouble))
        library.trouble = None
        assert await heard(viewer) == ("back", {})
        await viewer.aclose()  # type: ignore[attr-defined]

    with caplog.at_level(logging.ERROR):
        asyncio.run(watch())
    # A fault of ours is also said on the console, once and with its place in the code.
    assert ["ZeroDivisionError" in (record.exc_text or "") for record in caplog.records] == (
        [True] if isinstance(trouble, ZeroDivisionError) else []
    )


def test_an_event_is_json_whatever_is_in_it() -> None:
    content = event("rows", [{"step": 1, "loss": float("nan"), "bad\udcff.png": "</script>\n"}])
    assert content.startswith(b"event: rows\ndata: ")
    told = json.loads(content.partition(b"data: ")[2], parse_constant=pytest.fail)
    assert told == [{"step": 1, "loss": "nan", "bad?.png": "</script>\n"}]


# --- waiting --------------------------------------------------------------------------------------------------


def test_those_who_wait_for_all_rows_hold_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.web.library.SKETCHED_BYTES", 2**10)
    monkeypatch.setattr("quintet.web.figures.SKETCH_PART_BYTES", 2**10)
    write_run(tmp_path / "run", steps=1_000)
    may_read, advance = threading.Event(), Figures.advance

    def wait(figures: Figures) -> tuple[bool, list[dict[str, Any]]]:
        assert may_read.wait(DEADLINE)
        return advance(figures)

    monkeypatch.setattr(Figures, "advance", wait)
    site = Site(Folders([tmp_path]), read_only=True)

    monkeypatch.setattr("quintet.web.library.LONGEST_READING", 10.0 * DEADLINE)

    async def ask() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = [asyncio.create_task(site.curves(request("/api/curves", "run=run&whole="))) for _ in range(3)]
        try:
            async with asyncio.timeout(DEADLINE):
                for _ in range(5):  # in the first few turns the others come to where they wait
                    await site.runs(request("/api/runs"))
            assert not any(task.done() for task in waiting)
        finally:
            may_read.set()
        assert [reply.status_code for reply in await asyncio.gather(*waiting)] == [200] * 3

    asyncio.run(ask())


def request(path: str, query: str = "") -> Request:
    return Request({"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": []})


# --- trying ---------------------------------------------------------------------------------------------------


def made(tmp_path: Path) -> Job:
    """A wish for a run that is not there, brought to its end."""

    async def make() -> Job:
        workshop = JobQueue()
        job = workshop.start("run", Place(str(tmp_path), str(tmp_path / "run")), GenerationJob("a"))
        assert workshop._task is not None
        await workshop._task
        assert not workshop.busy
        await workshop.close()
        return job

    return asyncio.run(make())


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("read wish; head -c 100000 /dev/zero | tr '\\0' x; echo; read more", "gave no answer"),
        ("exit 1", "gave no answer"),
        (None, "cannot be started: No such file or directory"),
    ],
)
def test_a_process_that_does_not_answer_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, said: str
) -> None:
    worker = tmp_path / "worker"
    if program is not None:
        worker.write_text(f"#!/bin/sh\n{program}\n")
        worker.chmod(0o755)
    monkeypatch.setattr("quintet.web.playground.sys", SimpleNamespace(executable=str(worker)))
    job = made(tmp_path)
    assert job.state == "failed"
    assert said in job.message


def test_a_file_of_the_current_folder_is_not_taken_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("open('taken', 'w').close()\nfrom nothing import loads\n")
    monkeypatch.chdir(tmp_path)
    assert "does not exist" in made(tmp_path).message
    assert not (tmp_path / "taken").exists()


def test_a_long_complaint_is_cut() -> None:
    code = (
        "from quintet.web import worker\n"
        "def complain(self, wish): raise ValueError('x' * 100_000)\n"
        "worker.Worker.make = complain\nworker.main()\n"
    )
    said = subprocess.run([sys.executable, "-c", code], input=b"{}\n", capture_output=True, check=True).stdout
    assert json.loads(said)["error"] == "ValueError: " + "x" * 988
