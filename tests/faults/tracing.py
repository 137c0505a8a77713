"""Traces the file operations of a command with `strace`, and kills it at a chosen one.

Python is not asked, because weights are written by compiled code. `strace` counts each kind of call of each thread on
its own; so an operation is known by its kind and its number in that kind, among those of the thread that trains or, if
saves are watched, of the thread that writes them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from faults.moments import before_calls
from helpers import Process, executed, forked, wait_until

CALLS = (
    "open,openat,openat2,creat,write,pwrite64,writev,pwritev,pwritev2,sendfile,copy_file_range,splice,msync,truncate,"
    "ftruncate,fallocate,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,"
    "chmod,fchmod,fchmodat,fsync,fdatasync,sync_file_range"
)
"""Every call that changes what is on the disk, or may."""

TRAINING = "training"
"""The log of the thread that trains, beside those of other threads and processes."""


@dataclass(frozen=True)
class Operation:
    """One call, as the log of `strace` has it."""

    call: str
    number: int
    """Which of the calls of this kind it is, from one on."""
    text: str
    done: bool
    """Whether the call came back; the one at which a process is killed does not."""

    @property
    def changes(self) -> bool:
        """Whether it may change something; a file that is opened for reading stays what it is."""
        return not self.call.startswith("open") or "O_CREAT" in self.text or "O_TRUNC" in self.text

    def within(self, folder: Path) -> bool:
        """Whether it is done to the folder or to something in it."""
        return re.search(rf"{re.escape(str(folder))}[/\">]", self.text) is not None

    def about(self, folder: Path) -> str:
        """The operation as text, independent of folder and time."""
        text = self.text.replace(str(folder), "RUN").rpartition(" = ")[0]
        # Three things differ: names that the writer of weights draws, numbers of open files, and the length of times.
        text = re.sub(r"\.tmp\w{6}", ".tmp", text)
        text = re.sub(r"\d+<", "<", text)
        return re.sub(r'""\.\.\., \d+', '""...', text)


@dataclass(frozen=True)
class Trace:
    """What became of a command that was watched."""

    code: int
    said: str
    operations: list[Operation]
    """Those of the watched thread."""


@cache
def why_not() -> str | None:
    """Why processes cannot be watched here, if so."""
    program = shutil.which("strace")
    if program is None:
        return "strace is not installed"
    tried = subprocess.run([program, "-o", os.devnull, "true"], check=False, capture_output=True, text=True)
    return f"strace may not watch a process: {tried.stderr.strip()}" if tried.returncode else None


def skip_without_strace() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


def trace(words: Iterable[object], folder: Path, kill_at: Operation | None = None) -> Trace:
    """Run the command to its end in a traced process; if `kill_at` is set, it is killed just before that operation."""
    folder.mkdir()
    watch = watching(folder, kill_at)
    # The command waits until it is traced, so that the counts start at the same point every time.
    with forked(words, folder / "said", prepare=stand_still) as process:
        wait_until(lambda: status_of(process, "State").startswith("T"), process, "the process stood still")
        with executed([*watch, "-ff", "-p", process.pid], folder / "strace") as watcher:
            wait_until(lambda: status_of(process, "TracerPid") == str(watcher.pid), watcher, "the process was watched")
            process.send(signal.SIGCONT)
            code = process.end()
            watcher.end()
        (folder / f"calls.{process.pid}").rename(folder / TRAINING)
        return Trace(code, process.seen, read(folder))


def trace_saves(words: Iterable[object], folder: Path, kill_at: Operation | None = None) -> Trace:
    """As `trace`, but of the thread that writes checkpoints: the process is killed there, wherever its training is."""
    folder.mkdir()
    with forked(words, folder / "said", prepare=StandStillAtTheFirstSave(str(folder / "thread"))) as process:
        wait_until(lambda: status_of(process, "State").startswith("T"), process, "the process stood still")
        thread = int((folder / "thread").read_text(encoding="utf-8"))
        with executed([*watching(folder, kill_at), "-p", thread], folder / "strace") as watcher:
            wait_until(lambda: tracer_of(process, thread) == str(watcher.pid), watcher, "the thread was watched")
            process.send(signal.SIGCONT)
            code = process.end()
            watcher.end()
        (folder / "calls").rename(folder / TRAINING)
        return Trace(code, process.seen, read(folder))


def watching(folder: Path, kill_at: Operation | None) -> list[object]:
    """The words of `strace`, without those that name what it watches."""
    watch = ["strace", "-y", "-s", "0", "-o", folder / "calls", "-e", f"trace={CALLS}"]
    if kill_at is not None:
        watch += ["-e", f"inject={kill_at.call}:signal=KILL:when={kill_at.number}"]
    return watch


@dataclass(frozen=True)
class StandStillAtTheFirstSave:
    """A `prepare`: the process stops when a thread is about to write the first checkpoint, whose number is noted."""

    note: str

    def __call__(self) -> None:
        def stand_still_once(*_: object) -> None:
            if not Path(self.note).exists():
                Path(self.note).write_text(str(threading.get_native_id()), encoding="utf-8")
                # A signal to the process would be taken by any thread, after this one has gone on.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

        before_calls("quintet.common.weights.checkpoint:write", stand_still_once)


def stand_still() -> None:
    """Called in the process to be watched, before it does anything."""
    # Compiled modules would be written by the first process only, which would shift the counts of the others.
    sys.dont_write_bytecode = True
    os.kill(os.getpid(), signal.SIGSTOP)


def status_of(process: Process, name: str) -> str:
    """What the kernel says about a process."""
    return _status(Path(f"/proc/{process.pid}/status"), name)


def tracer_of(process: Process, thread: int) -> str:
    """The process that watches a thread, or 0."""
    return _status(Path(f"/proc/{process.pid}/task/{thread}/status"), "TracerPid")


def _status(file: Path, name: str) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))


def read(folder: Path) -> list[Operation]:
    """The file operations of the watched thread, in their order."""
    counts: Counter[str] = Counter()
    found = []
    for line in (folder / TRAINING).read_text(encoding="utf-8").splitlines():
        call = re.match(r"(\w+)\(", line)
        if call is not None:
            counts[call[1]] += 1
            found.append(Operation(call[1], counts[call[1]], line, not line.endswith("= ?")))
    return found
