"""Data workers: starting the processes of a `DataLoader`, and ending them."""

from __future__ import annotations

import atexit
import multiprocessing
import signal
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import TypeVar

from torch.utils.data import DataLoader

from quintet.errors import RunError

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Signals that stop a run. Workers ignore them."""

KILL_SECONDS = 1.0
"""How long to wait for the end of a killed worker, which may hang in a file system."""

_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""The worker processes of all loaders of this process."""


def start_workers(loader: DataLoader[T]) -> tuple[Iterator[T], set[BaseProcess]]:
    """The batches of a loader, and the worker processes that read them."""
    others = set(multiprocessing.active_children())
    try:
        # DataLoader's handler raises when a worker dies, at any line of the training, even inside an optimizer step.
        # Without that handler, the error is raised when the next batch is requested.
        with _child_handler(signal.getsignal(signal.SIGCHLD)):
            batches = iter(loader)
    except OSError as error:  # no more processes or open files
        raise RunError(
            f"could not start the {loader.num_workers} data workers ({error.strerror}); reduce data.num_workers"
        ) from None
    started = set(multiprocessing.active_children()) - others if loader.num_workers else set()
    if loader.num_workers:
        _workers.update(started)
        # Runs before the exit handlers of torch and of `multiprocessing`, which wait: the last one runs first.
        atexit.unregister(_kill_all)
        atexit.register(_kill_all)
    return batches, started


def kill(workers: Iterable[BaseProcess]) -> None:
    """Kill the workers, and wait for their end: DataLoader's handler, which a user's own loader may have installed,
    would take it for a failure."""
    killed = [worker for worker in list(workers) if worker.is_alive()]
    with _child_handler(signal.SIG_DFL):
        for worker in killed:
            worker.kill()
        for worker in killed:
            worker.join(KILL_SECONDS)


def _kill_all() -> None:
    """Kill the workers of loaders that are still open when the process exits, such as after some steps of a script.

    `multiprocessing` would terminate them by SIGTERM, which they ignore, and then wait for them for ever."""
    kill(_workers)


def ignore_signals(worker: int) -> None:
    """Only the trainer handles stop signals to the process group: it needs its workers until it has saved."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _child_handler(handler: signal._HANDLER) -> Iterator[None]:
    """Set the handler of SIGCHLD, and restore the present one at the end. Threads cannot change it."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD)
    if is_main:
        signal.signal(signal.SIGCHLD, handler)
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGCHLD, before)
