"""Data workers beside loaders of the user."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader
from torch.utils.data._utils.signal_handling import _error_if_any_worker_fails

from quintet.common.workers import kill, start_workers


@pytest.fixture
def handler_of_a_users_loader() -> Iterator[None]:
    """The SIGCHLD handler that a DataLoader installs, once in a process: it raises if a worker was killed."""
    before = signal.signal(signal.SIGCHLD, lambda number, frame: _error_if_any_worker_fails())
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("handler_of_a_users_loader")
def test_killing_workers_raises_nothing_in_a_script_with_a_loader_of_its_own() -> None:
    handler = signal.getsignal(signal.SIGCHLD)
    batches, workers = start_workers(DataLoader(range(1000), num_workers=2, prefetch_factor=1))  # type: ignore[arg-type]
    next(batches)
    kill(workers)
    assert not any(worker.is_alive() for worker in workers)
    assert signal.getsignal(signal.SIGCHLD) is handler
