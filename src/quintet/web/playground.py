"""Playground: generates samples from the page, one job at a time, in a separate process, so that the server needs no
torch and survives a crash."""

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
from quintet.web.folders import RunDir

MAX_TEXT_LENGTH = 500
MAX_NUM = 8
MAX_STEPS = 1_000
"""The limit of `sample.steps`."""
MAX_GUIDANCE_SCALE = 100.0
TIMEOUT_SECONDS = 600.0
"""A job that takes longer is cancelled."""
IDLE_SECONDS = 300.0
"""After this time without a job, the process and its model are unloaded."""
MAX_RESULTS = 20
"""Number of results that remain available."""


@dataclass(frozen=True)
class GenerationJob:
    """Settings of one generation. None: the value of the run's configuration."""

    text: str
    seed: int = 0
    num: int = 1
    guidance_scale: float | None = None
    steps: int | None = None

    @classmethod
    def read(cls, content: Any) -> GenerationJob:
        """From the content of a request; names a value that is out of range."""
        if not isinstance(content, dict):
            raise UsageError("expected an object with text, seed, num, guidance_scale and steps")
        text = content.get("text", "")
        if not isinstance(text, str) or len(text) > MAX_TEXT_LENGTH:
            raise UsageError(f"the text may have at most {MAX_TEXT_LENGTH} characters")
        return cls(
            text,
            _integer(content, "seed", 0, 2**31 - 1) or 0,
            _integer(content, "num", 1, MAX_NUM) or 1,
            _number(content, "guidance_scale", 0.0, MAX_GUIDANCE_SCALE),
            _integer(content, "steps", 1, MAX_STEPS),
        )


def _number(content: dict[str, Any], name: str, minimum: float, maximum: float) -> float | None:
    value = content.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value <= maximum:
        raise UsageError(f"{name} must be a number from {minimum:g} to {maximum:g}")
    return float(value)


def _integer(content: dict[str, Any], name: str, minimum: int, maximum: int) -> int | None:
    value = _number(content, name, minimum, maximum)
    if value is not None and value != int(value):
        raise UsageError(f"{name} must be an integer from {minimum} to {maximum}")
    return None if value is None else int(value)


@dataclass
class QueuedJob:
    """A job in the queue, with its state and results."""

    name: str
    settings: GenerationJob
    run: str
    state: str = "working"
    message: str = ""
    entries: list[dict[str, Any]] = field(default_factory=list)


class JobQueue:
    """Runs one job at a time. The first job creates a temporary folder for results."""

    def __init__(self) -> None:
        self.jobs: dict[str, QueuedJob] = {}
        self._folder: str | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._count = 0

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def results_dir(self) -> RunDir:
        """The folder of the results."""
        if self._folder is None:
            try:
                self._folder = str(Path(tempfile.mkdtemp(prefix="quintet-view-")).resolve())
            except OSError as error:
                raise UsageError(f"cannot create a folder for results: {error.strerror}") from None
        return RunDir(self._folder, self._folder)

    def start(self, label: str, run: RunDir, settings: GenerationJob) -> QueuedJob:
        if self.busy:
            raise UsageError("another job is running; try again when it has finished")
        folder = self.results_dir().folder
        self._count += 1
        job = QueuedJob(f"job-{self._count}", settings, label)
        self.jobs[job.name] = job
        while len(self.jobs) > MAX_RESULTS:
            oldest = next(iter(self.jobs))
            del self.jobs[oldest]
            shutil.rmtree(Path(folder) / oldest, ignore_errors=True)
        self._task = asyncio.create_task(self._run(job, run, folder))
        return job

    async def _run(self, job: QueuedJob, run: RunDir, folder: str) -> None:
        if self._idle is not None:
            self._idle.cancel()
        request = {"run": run.folder, "out": str(Path(folder) / job.name), **vars(job.settings)}
        try:
            answer = await asyncio.wait_for(self._send(request), TIMEOUT_SECONDS)
        except TimeoutError:
            await self._kill()
            answer = {"error": f"cancelled after {TIMEOUT_SECONDS:.0f} seconds"}
        except OSError as error:
            answer = {"error": f"the worker process cannot be started: {error.strerror}"}
        job.message = str(answer.get("error", ""))[:1_000]
        job.entries = samples.entries(self.results_dir(), job.name)
        job.state = "failed" if job.message else "done"
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._unload)

    async def _send(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                # -P: a file in the current folder must not be imported as a module.
                *(sys.executable, "-P", "-m", "quintet.web.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        # ValueError: invalid JSON, no output, or a line that is too long.
        with suppress(BrokenPipeError, ConnectionResetError, ValueError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            answer = json.loads(await process.stdout.readline())
            return answer if isinstance(answer, dict) else {}
        await self._kill()
        return {"error": "the worker process gave no answer; the console of `quintet view` shows its output"}

    def _unload(self) -> None:
        if not self.busy and self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _kill(self) -> None:
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
        await self._kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
