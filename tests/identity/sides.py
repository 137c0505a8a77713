"""A side: a revision on disk, and running its command line."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

FORKS = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "torch._inductor.config", "torch.distributed.fsdp", "av", "trimesh", "soundfile", "pydantic"]
LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class CommandError(Exception):
    """A command that failed on one side."""


class Stopped(Exception):
    """A command that was not run, or not to its end, because the comparison is over."""


@dataclass(frozen=True)
class Side:
    """A revision: its name in messages, its source and the folder of its results."""

    name: str
    source: Path
    folder: Path


class Runner(Protocol):
    """Runs one command of a side in a folder; standard output and error go to `log` with `.out` and `.err` behind."""

    def __call__(self, side: Side, words: Sequence[str], folder: Path, log: Path, processes: int = 1) -> None: ...


class Processes:
    """Runs commands in processes that have imported torch already, which saves most of the time of a start.

    Each command has a process of its own, which imports quintet from its side's source and from nowhere else.
    """

    def __init__(self) -> None:
        os.environ.update({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
        self._running: set[BaseProcess] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def __call__(self, side: Side, words: Sequence[str], folder: Path, log: Path, processes: int = 1) -> None:
        world = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        logs = [log, *(log.with_name(f"{log.name}-rank-{rank}") for rank in range(1, processes))]
        started = [
            self._start(side, words, folder, own, {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            if processes > 1
            else self._start(side, words, folder, own, {})
            for rank, own in enumerate(logs)
        ]
        failed = self._await(dict(zip(started, logs, strict=True)))
        if self._stopped:
            raise Stopped
        if failed:
            code, own = failed
            said = f"exit code {code}: {last_words(own)}"
            raise CommandError(f"`quintet {' '.join(words)}` failed on the side of {side.name} with {said}")

    def stop(self) -> None:
        """End all commands; further ones are not started."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                end_group(process)

    def _start(
        self, side: Side, words: Sequence[str], folder: Path, log: Path, variables: Mapping[str, str]
    ) -> BaseProcess:
        with self._lock:
            if self._stopped:
                raise Stopped
            arguments = ([*words], str(side.source), str(folder), str(log), dict(variables))
            process = FORKS.Process(target=run_command, args=arguments)
            process.start()
            self._running.add(process)
            return process

    def _await(self, logs: Mapping[BaseProcess, Path]) -> tuple[int, Path] | None:
        """Wait for the processes of one command; exit code and log of the first that fails, which ends the others.

        Exit codes are read under the lock that starts are made under, because a start reads them too, and whoever comes
        second finds an empty pipe and takes it for a failure.
        """
        left, failed = set(logs), None
        while left:
            ended = connection.wait([process.sentinel for process in left])
            for process in [process for process in left if process.sentinel in ended]:
                with self._lock:
                    process.join()
                    self._running.discard(process)
                left.discard(process)
                if process.exitcode and failed is None:
                    failed = process.exitcode, logs[process]
                    for other in left:
                        end_group(other)
        return failed


def end_group(process: BaseProcess) -> None:
    """End a process and whatever it started; one that has no group of its own yet is ended alone."""
    with suppress(ProcessLookupError):
        process.kill()
    if process.pid is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def run_command(words: list[str], source: str, folder: str, log: str, variables: dict[str, str]) -> None:
    """`python -m quintet WORDS` in this process, with one side's source."""
    with suppress(PermissionError):
        os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # as in a process that was not started this way
    for number, suffix in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{log}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update({**variables, "PYTHONPATH": source, "XDG_CACHE_HOME": str(Path(folder) / "cache")})
    os.chdir(folder)
    sys.path.insert(0, source)
    check_source(Path(source))
    sys.argv = ["quintet", *words]
    runpy.run_module("quintet", run_name="__main__", alter_sys=True)


def check_source(source: Path) -> None:
    import quintet

    found = Path(quintet.__file__ or "").resolve()
    if not found.is_relative_to(source.resolve()):
        sys.exit(f"error: quintet was imported from {found.parent} instead of {source}")


def last_words(log: Path) -> str:
    """The last line that a command wrote, which for a failed one is its error."""
    for suffix in ("err", "out"):
        path = Path(f"{log}.{suffix}")
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
        said = [line.strip() for line in lines if line.strip()]
        if said:
            return said[-1]
    return "it said nothing"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
