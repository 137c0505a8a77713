"""Owns the try-it box: one wish at a time, made by a process of its own, so that torch and its memory stay out of the
server and a crash takes nothing with it."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintet.errors import UsageError
from quintet.web import samples
from quintet.web.folders import Place

LONGEST_TEXT = 500
MOST_AT_ONCE = 8
MOST_STEPS = 1_000
"""As many as a run's own `sample.steps` may be."""
LARGEST_GUIDANCE = 100.0
SECONDS = 600.0
"""A wish that takes longer is given up."""
IDLE_SECONDS = 300.0
"""Then the process goes, with the model it holds in memory."""
KEPT = 20
"""Results that are kept to look at."""


@dataclass(frozen=True)
class GenerationJob:
    """What a person asks of a generator. None: as the run's configuration has it."""

    text: str
    seed: int = 0
    num: int = 1
    guidance: float | None = None
    steps: int | None = None

    @classmethod
    def read(cls, given: Any) -> GenerationJob:
        """From what a browser sent; anything out of bounds is refused by name."""
        if not isinstance(given, dict):
            raise UsageError("a wish is an object of text, seed, num, guidance and steps")
        text = given.get("text", "")
        if not isinstance(text, str) or len(text) > LONGEST_TEXT:
            raise UsageError(f"the text may have {LONGEST_TEXT} characters at most")
        return cls(
            text,
            _whole(given, "seed", 0, 2**31 - 1) or 0,
            _whole(given, "num", 1, MOST_AT_ONCE) or 1,
            _number(given, "guidance", 0.0, LARGEST_GUIDANCE),
            _whole(given, "steps", 1, MOST_STEPS),
        )


def _number(given: dict[str, Any], name: str, least: float, most: float) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise UsageError(f"{name} must be a number from {least:g} to {most:g}")
    return float(value)


def _whole(given: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = _number(given, name, least, most)
    if value is not None and value != int(value):
        raise UsageError(f"{name} must be a whole number from {least} to {most}")
    return None if value is None else int(value)


@dataclass
class Job:
    """A wish on its way."""

    name: str
    wish: GenerationJob
    run: str
    state: str = "working"
    message: str = ""
    entries: list[dict[str, Any]] = field(default_factory=list)


class JobQueue:
    """Takes wishes, one at a time. Made without anything on disk; the first wish makes a temporary folder."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._folder: str | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._count = 0

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def place(self) -> Place:
        """Where results lie."""
        if self._folder is None:
            try:
                self._folder = str(Path(tempfile.mkdtemp(prefix="quintet-view-")).resolve())
            except OSError as error:
                raise UsageError(f"there is nowhere to put what is made: {error.strerror}") from None
        return Place(self._folder, self._folder)

    def start(self, label: str, run: Place, wish: GenerationJob) -> Job:
        if self.busy:
            raise UsageError("one at a time: something is being made already")
        folder = self.place().folder
        self._count += 1
        job = Job(f"job-{self._count}", wish, label)
        self.jobs[job.name] = job
        while len(self.jobs) > KEPT:
            oldest = next(iter(self.jobs))
            del self.jobs[oldest]
            shutil.rmtree(Path(folder) / oldest, ignore_errors=True)
        self._task = asyncio.create_task(self._make(job, run, folder))
        return job

    async def _make(self, job: Job, run: Place, folder: str) -> None:
        if self._idle is not None:
            self._idle.cancel()
        wish = {"run": run.folder, "out": str(Path(folder) / job.name), **vars(job.wish)}
        try:
            answer = await asyncio.wait_for(self._ask(wish), SECONDS)
        except TimeoutError:
            await self._end()
            answer = {"error": f"given up after {SECONDS:.0f} seconds"}
        except OSError as error:
            answer = {"error": f"the process that would make it cannot be started: {error.strerror}"}
        job.message = str(answer.get("error", ""))[:1_000]
        job.entries = samples.entries(self.place(), job.name)
        job.state = "failed" if job.message else "done"
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._dismiss)

    async def _ask(self, wish: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                # -P: a file of the current folder must not be taken for a module.
                *(sys.executable, "-P", "-m", "quintet.web.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        # ValueError: no JSON, nothing at all, or a longer line than may be.
        with suppress(BrokenPipeError, ConnectionResetError, ValueError):
            process.stdin.write(json.dumps(wish).encode() + b"\n")
            await process.stdin.drain()
            answer = json.loads(await process.stdout.readline())
            return answer if isinstance(answer, dict) else {}
        await self._end()
        return {"error": "the process that makes it gave no answer; its words are on the console of `quintet view`"}

    def _dismiss(self) -> None:
        if not self.busy and self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._process = None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._idle is not None:
            self._idle.cancel()
        await self._end()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
