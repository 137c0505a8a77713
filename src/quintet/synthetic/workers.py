"""Calls a function for the numbers from 0 on in several processes, for writing large synthetic datasets."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from quintet.common.cores import usable_cores
from quintet.errors import RunError

MIN_PER_WORKER = 500
"""Fewer items than this are not worth another process."""

ResultT = TypeVar("ResultT")


def call_for_all(function: Callable[[int], ResultT], num: int) -> list[ResultT]:
    """`[function(0), …, function(num - 1)]`, computed by one process per available core."""
    workers = min(usable_cores(), num // MIN_PER_WORKER)
    # `function` can only be passed by fork, which is safe on Linux alone.
    if workers < 2 or sys.platform != "linux":
        return [function(index) for index in range(num)]
    context = multiprocessing.get_context("fork")
    parent = os.getpid()
    results: list[Any] = [None] * num
    started = []
    try:
        for worker in range(workers):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(function, range(worker, num, workers), sender, parent))
            process.start()
            sender.close()
            started.append((process, receiver))
        for worker, (_, receiver) in enumerate(started):
            results[worker::workers] = _receive(receiver)
    finally:
        for process, receiver in started:
            process.terminate()
            process.join()
            receiver.close()
    return results


def _work(function: Callable[[int], Any], indices: range, sender: Connection, parent: int) -> None:
    # The parent handles Ctrl-C, and then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    results = []
    try:
        for index in indices:
            if os.getppid() != parent:
                return  # it was killed, and nobody waits for the results
            results.append(function(index))
    except Exception as error:
        sender.send(error)
    else:
        sender.send(results)


def _receive(receiver: Connection) -> list[Any]:
    try:
        found = receiver.recv()
    except EOFError:
        raise RunError("a process that writes the dataset was killed; is there enough memory?") from None
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, list)
    return found
