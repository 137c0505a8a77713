"""Reading one file in a process of its own, with limits on time and memory.

The process is forked, so modules that are imported before are shared and do not count. Memory is what the kernel
reports as the peak of the process, above what it used before the file was opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quintet.errors import QuintetError, UnreadableItem
from quintet.media.budget import READ_BUDGET_BYTES

Read = Callable[[Path], object]

SECONDS = 10
"""Most CPU time of one file, in seconds."""
_REPORT = 2**20
_ADDRESSES = 8 * 2**30
"""Address space of the process, above what it has: the machine survives a reader that allocates without end."""
_WALL = 30
"""Multiple of `seconds` after which a process that waits, instead of computing, is ended."""
LONGEST_REASON = 3000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of reading a file. `finding` says which promise of the readers was broken; None if none was."""

    finding: str | None
    reason: str | None
    """Why the file cannot be used; None if it was read."""
    seconds: float
    megabytes: float


def attempt(read: Read, path: Path, *, seconds: float = SECONDS, memory: int = READ_BUDGET_BYTES) -> Outcome:
    """Read a file in a forked process."""
    receiving, sending = os.pipe()
    process = os.fork()
    if not process:
        os.close(receiving)
        _child(read, path, sending, seconds)
    os.close(sending)
    report = _received(receiving, process, seconds * _WALL)
    _, status, usage = os.wait4(process, 0)
    return _judged(report, status, usage.ru_utime + usage.ru_stime, seconds, memory)


def _child(read: Read, path: Path, sending: int, seconds: float) -> None:
    """Never returns: the parent's own clean-up must not run twice."""
    try:
        with contextlib.suppress(OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        size = _status("VmSize") + _ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        os.write(sending, json.dumps(_report(read, path)).encode()[:_REPORT])
    finally:
        os._exit(0)


def _report(read: Read, path: Path) -> dict[str, object]:
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, begun = _status("VmRSS"), time.process_time()
    reason = error = None
    try:
        read(path)
    except (QuintetError, UnreadableItem) as problem:
        reason = str(problem)
    except BaseException as problem:
        error = f"{type(problem).__name__}: {problem}\n{traceback.format_exc()}"
    used = max(0, _status("VmHWM") - before)
    return {"reason": reason, "error": error, "bytes": used, "seconds": time.process_time() - begun}


def _received(receiving: int, process: int, seconds: float) -> bytes:
    """All that the process wrote; a process that waits for ever is killed."""
    deadline = time.monotonic() + seconds
    os.set_blocking(receiving, False)
    found = b""
    pause = 0.0005
    while True:
        try:
            part = os.read(receiving, _REPORT)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.kill(process, signal.SIGKILL)
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
            continue
        if not part:
            break
        found += part
    os.close(receiving)
    return found


def _judged(report: bytes, status: int, used: float, seconds: float, memory: int) -> Outcome:
    if not report:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        late = number in (signal.SIGXCPU, signal.SIGKILL)
        what = f"took more than {seconds:g} s" if late else f"ended the process (signal {number})"
        return Outcome(what, None, used, 0.0)
    found = json.loads(report)
    reason, megabytes = found["reason"], found["bytes"] / 2**20
    finding = None
    if found["error"]:
        finding = f"raised {found['error']}"
    elif found["seconds"] > seconds:
        finding = f"took {found['seconds']:.1f} s"
    elif found["bytes"] > memory:
        finding = f"took {megabytes:.0f} MB"
    elif reason is not None and "not enough memory" in reason:
        finding = "asked for more memory than the machine gave it"
    elif reason is not None and not (reason.strip() and len(reason.splitlines()) == 1 and len(reason) < LONGEST_REASON):
        finding = f"gave no one-line reason: {reason[:200]!r}"
    return Outcome(finding, reason, found["seconds"], megabytes)


def _status(name: str) -> int:
    """A number of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
