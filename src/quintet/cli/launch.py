"""`engine.launch`: the processes of a run on one machine, without another launcher.

Each process is the same command again, with the environment variables that torchrun sets. The process of the command
line forwards signals to them, prints their errors once, and ends with their exit code. It does not import torch, unless
`engine.launch=auto` has to count GPUs.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from quintet.common import launched
from quintet.common.cores import usable_cores
from quintet.common.logging import say_once
from quintet.common.rank import check_processes, has_launcher
from quintet.config import RunConfig
from quintet.errors import RunError, UsageError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
PAUSE = 0.05
"""Seconds between two looks at the processes."""
GRACE = 15.0
"""Seconds that the other processes have to log and to end after one of them failed; longer than the watchdog needs."""

ConfigT = TypeVar("ConfigT", bound=RunConfig)


# --- the number of processes ------------------------------------------------------------------------------------


def resolve(config: ConfigT) -> ConfigT:
    """The configuration with the number of processes in place of `engine.launch=auto`."""
    wanted = config.engine.launch
    if launched.is_launched():
        return config.changed({"engine.launch": int(os.environ["WORLD_SIZE"])})
    if has_launcher():
        if wanted != 1:
            say_once("engine.launch", f"engine.launch={wanted} is ignored: another launcher started this process")
        return config if wanted != "auto" else config.changed({"engine.launch": 1})
    number = _fitting_processes(config) if wanted == "auto" else wanted
    if number > 1:
        check_processes(config, number)
    return config.changed({"engine.launch": number})


def processes_to_start(config: RunConfig) -> int:
    """The number of processes that this process has to start; 0 if it trains itself."""
    number = config.engine.launch
    return 0 if number in (1, "auto") or has_launcher() else int(number)


def _fitting_processes(config: RunConfig) -> int:
    """`engine.world_size` if it is set. Otherwise one process per GPU, or per CPU core if there is no GPU; as many of
    them as the batch can be divided by."""
    if config.engine.world_size is not None:
        return config.engine.world_size
    micro_batch = config.train.batch_size // config.train.micro_batches
    most = min(_devices(config.engine.device), micro_batch)
    return next(number for number in range(most, 0, -1) if micro_batch % number == 0)


def _devices(device: str) -> int:
    if device == "mps":
        return 1
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.device_count()
    return usable_cores()


# --- the processes ----------------------------------------------------------------------------------------------


@dataclass
class _Child:
    """One process of the run."""

    rank: int
    process: subprocess.Popen[bytes]
    connection: socket.socket
    ended_here: bool = False
    """Whether it was killed because another process failed."""

    @property
    def code(self) -> int | None:
        """The exit code, minus the signal that ended the process, or None while it runs."""
        return self.process.poll()

    def report(self) -> dict[str, Any]:
        """The error that the process reported before it ended; empty if there is none."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self.connection.recv(launched.LARGEST_REPORT, socket.MSG_DONTWAIT)))
        return {}


def run_processes(words: Sequence[str], number: int) -> int:
    """Run the command with these arguments in `number` processes and return their exit code; raises their error."""
    received: list[signal.Signals] = []
    children: list[_Child] = []
    with _recorded_signals(received):
        try:
            _start(children, words, number)
            sent = _wait(children, received)
        finally:
            for child in children:
                child.process.kill()  # does nothing to one that has ended
                child.process.wait()
        try:
            return _outcome(children, sent)
        finally:
            for child in children:
                child.connection.close()


@contextmanager
def _recorded_signals(received: list[signal.Signals]) -> Iterator[None]:
    """Append stop signals to `received`, as long as the processes run."""

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))

    previous = {number: signal.signal(number, receive) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _start(children: list[_Child], words: Sequence[str], number: int) -> None:
    """Start all processes; `children` has those that could be started."""
    main = sys.modules["__main__"]
    # As in this process, `-m` puts the working directory on the import path, and the script `quintet` does not.
    isolated = [] if getattr(main, "__spec__", None) else ["-P"]
    command = [sys.executable, *isolated, "-m", "quintet", *words]
    with socket.create_server(("127.0.0.1", 0), backlog=number) as store:
        for rank in range(number):
            ours, theirs = socket.socketpair()
            with theirs:
                passed = [theirs.fileno(), *([store.fileno()] if rank == 0 else [])]
                try:
                    process = subprocess.Popen(
                        command,
                        env=_environment(rank, number, store.getsockname()[1], *passed),
                        stdin=subprocess.DEVNULL,
                        pass_fds=passed,
                        # A terminal sends Ctrl-C to a whole process group, and a second signal would end a process
                        # without a checkpoint: only this process gets it, and forwards it once.
                        start_new_session=True,
                    )
                except OSError as error:
                    ours.close()
                    raise RunError(f"cannot start process {rank + 1} of {number}: {error.strerror}") from None
            children.append(_Child(rank, process, ours))


def _environment(rank: int, number: int, port: int, parent: int, store: int | None = None) -> dict[str, str]:
    threads = os.environ.get("OMP_NUM_THREADS") or max(1, usable_cores() // number)
    variables = {
        **{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": threads},
        launched.PARENT_SOCKET: parent,
        **({} if store is None else {launched.STORE_SOCKET: store}),
    }
    return {**os.environ, **{name: str(value) for name, value in variables.items()}}


def _wait(children: Sequence[_Child], received: list[signal.Signals]) -> set[signal.Signals]:
    """Wait until all processes have ended; returns the signals that were forwarded to them."""
    sent: set[signal.Signals] = set()
    deadline: float | None = None
    while any(child.code is None for child in children):
        while received:
            sent.add(received[0])
            number = received.pop(0)
            for child in children:
                child.process.send_signal(number)
        if deadline is None and any(child.code for child in children):
            deadline = time.monotonic() + GRACE
        # What the user must change has to be shown at once, and the other processes have nothing to add.
        if any(child.code == UsageError.exit_code for child in children):
            deadline = -math.inf
        if deadline is not None and time.monotonic() > deadline:
            for child in children:
                child.ended_here |= child.code is None
                child.process.kill()
        time.sleep(PAUSE)
    return sent


def _outcome(children: Sequence[_Child], sent: Collection[int]) -> int:
    """The exit code of the command. Raises the errors of the processes, each once, however many reported it."""
    failed = [(child, child.process.returncode) for child in children if child.code and not child.ended_here]
    for child, code in failed:
        if code < 0 and -code not in sent:
            name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
            reason = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
            raise RunError(
                f"the process of rank {child.rank} was ended by {name}{reason}; the other processes were ended too: "
                "continue with `quintet resume`"
            )
    reports = [(code, report) for child, code in failed if (report := child.report())]
    causes = [(code, report) for code, report in reports if not report["lost_contact"]] or reports
    if causes:
        text = "; ".join(dict.fromkeys(str(report["text"]) for _, report in causes))
        raise (UsageError if causes[0][0] == UsageError.exit_code else RunError)(text)
    return next((code if code > 0 else 128 - code for _, code in failed), 0)
